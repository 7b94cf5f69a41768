//! One suite of behaviours, run against every store.

#[path = "behaviour/common.rs"]
mod common;
#[path = "behaviour/freezes.rs"]
mod freezes;
#[path = "behaviour/laws.rs"]
mod laws;
#[path = "behaviour/model.rs"]
mod model;

macro_rules! behaviours {
    ($($store:ident: $uri:expr;)*) => { $(
        mod $store {
            use crate::common::Fixture;
            use crate::{freezes, laws, model};
            use proptest::prelude::*;
            use std::path::Path;

            fn fixture() -> Fixture {
                let uri: fn(&Path) -> String = $uri;
                Fixture::new(uri)
            }

            behaviours!(@laws round_trips batches_of_any_size slots_are_dense_and_reused
                overwriting_in_circles_keeps_the_bytes_and_the_room an_unused_slot_is_corrupt_never_zeros
                usage_adds_up threads_do_not_disturb_each_other);
            behaviours!(@freezes a_forked_child_reads_what_the_parent_deletes
                frozen_slots_are_not_reused_until_thawed freezes_overlap);

            proptest! {
                #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
                #[test]
                fn any_sequence_of_calls_matches_a_map(steps in model::steps()) {
                    model::check(&*fixture().store, steps);
                }
            }
        }
    )* };
    (@laws $($law:ident)*) => { $(
        #[test]
        fn $law() {
            laws::$law(&fixture());
        }
    )* };
    (@freezes $($law:ident)*) => { $(
        #[test]
        fn $law() {
            freezes::$law(&fixture());
        }
    )* };
}

behaviours! {
    ram: |_| "ram:".to_owned();
    ram_max: |_| "ram:?max=64M".to_owned();
    file_in_directory: |directory| format!("file:{}/", directory.display());
    file_at_path: |directory| format!("file:{}/pages", directory.display());
    file_max: |directory| format!("file:{}/pages?max=64M", directory.display());
    file_kept: |directory| format!("file://{}/pages?keep=1", directory.display());
    ram_in_front_of_ram: |_| "ram:?max=2M&then=ram:?max=64M".to_owned();
    ram_in_front_of_faults: |_| "ram:?max=2M&then=fault:put-fail-after=400,put-fail-count=3,fail-kind=temporary:ram:".to_owned();
    ram_behind_passing_faults: |_| "fault:put-fail-after=40,put-fail-count=3,get-fail-after=90,get-fail-count=4,fail-kind=temporary:ram:".to_owned();
    file_slow: |directory| format!("fault:get-delay-us=1,put-delay-us=1:file:{}", directory.display());
}

#[test]
fn a_full_ram_store_is_clean_and_recoverable() {
    laws::full_is_clean_and_recoverable(&*pagetide_store::open("ram:?max=8M").unwrap(), 8 << 20);
}

#[test]
fn a_full_file_store_is_clean_and_recoverable() {
    let fixture = common::Fixture::new(|directory| format!("file:{}?max=8M", directory.display()));
    laws::full_is_clean_and_recoverable(&*fixture.store, 8 << 20);
    assert!(
        fixture
            .directory
            .path()
            .read_dir()
            .unwrap()
            .next()
            .is_none(),
        "the file has no name"
    );
}

#[test]
fn what_may_be_held_in_memory_can_be_changed_at_any_time() {
    let store = pagetide_store::open("ram:").unwrap();
    let most: u64 = 2 << 20;
    store.hold_at_most(most);
    let (held, error) = laws::fill(&*store);
    assert_eq!(error.kind, pagetide_store::ErrorKind::Full, "{error}");
    let usage = store.usage();
    assert!((most / 2..=most).contains(&usage.shared_bytes), "{usage:?}");
    // Less than is held: nothing is taken, and nothing is lost.
    store.hold_at_most(most / 2);
    assert!(laws::fill(&*store).0.is_empty());
    store.hold_at_most(2 * most);
    assert!(!laws::fill(&*store).0.is_empty());
    assert!((most..=2 * most).contains(&store.usage().shared_bytes));
    for (slot, seed) in held {
        common::assert_holds(&*store, slot, &common::random_page(seed));
    }
}

#[test]
fn a_tier_keeps_to_what_it_may_hold_in_memory_and_moves_the_rest() {
    let fixture =
        common::Fixture::new(|directory| format!("ram:?max=8M&then=file:{}/", directory.display()));
    let store = &*fixture.store;
    assert!(store.capabilities().spills);
    let pages: Vec<_> = (0..3000).map(common::random_page).collect();
    let mut slots = Vec::new();
    // Then less, then nothing at all.
    for (most, some) in [
        (6, &pages[..1400]),
        (3, &pages[1400..2900]),
        (0, &pages[2900..]),
    ] {
        store.hold_at_most(most << 20);
        slots.extend(common::put_all(store, some));
        let held = store.usage().shared_bytes;
        assert!(held <= most << 20 || most == 0, "{held} of {most} MiB");
    }
    for (slot, page) in slots.iter().zip(&pages) {
        common::assert_holds(store, *slot, page);
    }
}
