// Included once for each delivery; DELIVERY names it.
use pagetide::{Region, RegionBuilder};
use proptest::prelude::*;

const PAGE: usize = 4096;

fn builder() -> RegionBuilder {
    Region::builder().delivery(DELIVERY)
}

fn can_page() -> bool {
    match builder().length(PAGE).build() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("SKIPPED: no region can be made here: {error}");
            false
        }
    }
}

fn word(seed: u64, index: u64) -> u64 {
    (index ^ seed)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(17)
}

fn check_law(region: &Region) {
    let audit = region.pager().audit().unwrap();
    assert!(audit.holds(), "the bookkeeping law is broken: {audit:?}");
}

#[test]
fn a_fault_that_waits_for_room_counts_once() {
    if !can_page() {
        return;
    }
    // So small a budget has no reserve: once it is full, each page waits for another to leave.
    const PAGES: usize = 256;
    const RESIDENT: usize = 16;
    let waited = |resident: usize| {
        let mut region = (builder().length(PAGES * PAGE))
            .resident((resident * PAGE) as u64)
            .build()
            .unwrap();
        // Downwards, where no zeros are installed ahead.
        for page in region.as_mut_slice().chunks_exact_mut(PAGE).rev() {
            page[0] = 1;
        }
        region.stats().faults_waited
    };
    assert_eq!(waited(PAGES), 0);
    let some = waited(RESIDENT);
    let most = (PAGES - RESIDENT) as u64;
    assert!((most / 2..=most).contains(&some), "{some} of {most} waited");
}

#[test]
fn everything_written_reads_back_at_a_sixteenth() {
    if !can_page() {
        return;
    }
    let pages = 16 << 8;
    let mut region = builder()
        .length(pages * PAGE)
        .resident((pages / 16 * PAGE) as u64)
        .build()
        .unwrap();
    for round in 0..3u64 {
        for (index, chunk) in region.as_mut_slice().chunks_exact_mut(8).enumerate() {
            // Half of each page is hard to compress, half is not.
            let value = if index % 512 < 256 {
                word(round, index as u64)
            } else {
                round
            };
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        for (index, chunk) in region.as_slice().chunks_exact(8).enumerate() {
            let value = if index % 512 < 256 {
                word(round, index as u64)
            } else {
                round
            };
            assert_eq!(
                u64::from_le_bytes(chunk.try_into().unwrap()),
                value,
                "word {index} of round {round}"
            );
        }
    }
    let stats = region.stats();
    assert!(
        stats.evictions > pages as u64 && stats.fetched_pages > pages as u64,
        "{stats:?}"
    );
    assert!(
        stats.resident_bytes_max <= (pages / 16 * PAGE) as u64,
        "{stats:?}"
    );
    check_law(&region);
}

#[test]
fn memory_that_fits_in_the_budget_is_never_evicted_ahead_of_need() {
    if !can_page() {
        return;
    }
    let pages = 4096;
    let mut region = builder()
        .length(pages * PAGE)
        .resident((pages * PAGE) as u64)
        .build()
        .unwrap();
    for round in 0..3u64 {
        for (page, bytes) in region.as_mut_slice().chunks_exact_mut(PAGE).enumerate() {
            bytes[8..16].copy_from_slice(&word(round, page as u64).to_le_bytes());
        }
    }
    // The evictor looks by itself ten times a second.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let stats = region.stats();
    assert_eq!((stats.evictions, stats.fetches), (0, 0));
    assert_eq!(stats.resident_bytes, (pages * PAGE) as u64);
    // With less there is a reserve again, and the bound holds.
    region.set_budget((pages / 2 * PAGE) as u64).unwrap();
    for (page, bytes) in region.as_slice().chunks_exact(PAGE).enumerate() {
        let found = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        assert_eq!(found, word(2, page as u64));
    }
    check_law(&region);
}

#[test]
fn one_page_is_enough_to_copy_across_page_borders() {
    if !can_page() {
        return;
    }
    let mut region = builder()
        .length(64 * PAGE)
        .resident(1)
        .build()
        .unwrap();
    let memory = region.as_mut_slice();
    for (index, byte) in memory.iter_mut().enumerate() {
        *byte = (index % 251) as u8;
    }
    for page in 1..32 {
        let (from, to) = (page * PAGE - 777, (page + 31) * PAGE - 333);
        memory.copy_within(from..from + 1000, to);
        for i in 0..1000 {
            assert_eq!(memory[to + i], memory[from + i]);
        }
    }
}

#[test]
fn threads_see_each_others_writes() {
    if !can_page() {
        return;
    }
    let (pages, rounds) = (2048usize, crate::patience::fewer(60_000));
    let region = builder()
        .length(pages * PAGE)
        .resident((100 * PAGE) as u64)
        .build()
        .unwrap();
    let base = region.as_ptr() as usize;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let mut state = thread + 1;
                for _ in 0..rounds {
                    state = state
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let page = (state >> 33) as usize % pages;
                    let cell = (base + page * PAGE + 8 * thread as usize) as *mut u64;
                    // SAFETY: each thread has its own cell in every page, within the region, which
                    // outlives the scope.
                    unsafe {
                        let value = cell.read_volatile();
                        let count = value >> 32;
                        assert!(
                            value == 0 || value as u32 as usize == page,
                            "page {page} holds {value:#x}"
                        );
                        cell.write_volatile((count + 1) << 32 | page as u64);
                    }
                }
            });
        }
    });
    let total: u64 = region
        .as_slice()
        .chunks_exact(PAGE)
        .flat_map(|p| p[..32].chunks_exact(8))
        .map(|c| u64::from_le_bytes(c.try_into().unwrap()) >> 32)
        .sum();
    assert_eq!(total, 4 * rounds);
    check_law(&region);
}

#[test]
fn pinned_pages_stay() {
    if !can_page() {
        return;
    }
    let mut region = builder()
        .length(256 * PAGE)
        .resident((32 * PAGE) as u64)
        .build()
        .unwrap();
    region.as_mut_slice().fill(7);
    let guard = region.pin(10 * PAGE..20 * PAGE).unwrap();
    assert!(region.pin(100 * PAGE..200 * PAGE).is_err());
    let before = region.stats();
    let sum: u64 = region.as_slice().iter().map(|b| u64::from(*b)).sum();
    assert_eq!(sum, 7 * 256 * PAGE as u64);
    // A fault is counted after its thread was woken; a request is served after every fault before
    // it was counted.
    drop(region.pin(10 * PAGE..11 * PAGE).unwrap());
    let faults = region.stats().faults;
    let pinned: u64 = region.as_slice()[10 * PAGE..20 * PAGE]
        .iter()
        .map(|b| u64::from(*b))
        .sum();
    assert_eq!(pinned, 70 * PAGE as u64);
    assert_eq!(
        region.stats().faults,
        faults,
        "reading pinned pages faulted; before: {before:?}"
    );
    drop(guard);
    region.evict(0..256 * PAGE).unwrap();
    assert_eq!(region.stats().resident_bytes, 0);
    check_law(&region);
}

#[derive(Debug, Clone)]
enum Step {
    Write(u16, u8),
    Check(u16),
    Evict(u16, u8),
    Prefetch(u16, u8),
    Budget(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (any::<u16>(), any::<u8>()).prop_map(|(p, v)| Step::Write(p, v)),
        6 => any::<u16>().prop_map(Step::Check),
        1 => (any::<u16>(), any::<u8>()).prop_map(|(p, n)| Step::Evict(p, n)),
        1 => (any::<u16>(), any::<u8>()).prop_map(|(p, n)| Step::Prefetch(p, n)),
        1 => any::<u8>().prop_map(Step::Budget),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn any_sequence_of_operations_leaves_the_bytes_right(steps in steps(), budget in 1u64..40) {
        const PAGES: usize = 128;
        prop_assume!(can_page());
        let builder = builder().length(PAGES * PAGE).resident(budget * PAGE as u64);
        let mut region = builder.build().unwrap();
        let mut model = [0u8; PAGES];
        for step in steps {
            let page = |p: u16| p as usize % PAGES;
            let end = |p: u16, n: u8| (page(p) + n as usize % 20).min(PAGES);
            let range = |p: u16, n: u8| page(p) * PAGE..end(p, n) * PAGE;
            match step {
                Step::Write(p, v) => {
                    model[page(p)] = v;
                    region.as_mut_slice()[page(p) * PAGE..][..PAGE].fill(v);
                }
                Step::Check(p) => {
                    let bytes = &region.as_slice()[page(p) * PAGE..][..PAGE];
                    prop_assert!(bytes.iter().all(|b| *b == model[page(p)]), "page {}", page(p));
                }
                Step::Evict(p, n) => region.evict(range(p, n)).unwrap(),
                Step::Prefetch(p, n) => region.prefetch(range(p, n)).unwrap(),
                Step::Budget(n) => region.set_budget((n as u64 % 40 + 1) * PAGE as u64).unwrap(),
            }
        }
        for (page, value) in model.iter().enumerate() {
            let bytes = &region.as_slice()[page * PAGE..][..PAGE];
            prop_assert!(bytes.iter().all(|b| b == value), "page {page} does not hold {value}");
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
        let audit = region.pager().audit().unwrap();
        prop_assert!(audit.holds(), "{audit:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn a_store_that_refuses_pages_for_a_while_loses_nothing(
        steps in steps(),
        budget in 1u64..40,
        after in 1u32..200,
        count in 1u32..7,
    ) {
        const PAGES: usize = 128;
        prop_assume!(can_page());
        let uri = format!("fault:put-fail-after={after},put-fail-count={count}:ram:");
        let builder = builder().length(PAGES * PAGE).resident(budget * PAGE as u64);
        let mut region = builder.store_uri(&uri).build().unwrap();
        let mut model = [0u8; PAGES];
        for step in steps {
            let page = |p: u16| p as usize % PAGES;
            match step {
                Step::Write(p, v) => {
                    model[page(p)] = v;
                    // Two words, so that the page is not same-filled and the store is really asked.
                    region.as_mut_slice()[page(p) * PAGE..][..PAGE].fill(v);
                    region.as_mut_slice()[page(p) * PAGE] = !v;
                }
                Step::Check(p) => {
                    let bytes = &region.as_slice()[page(p) * PAGE..][1..PAGE];
                    prop_assert!(bytes.iter().all(|b| *b == model[page(p)]), "page {}", page(p));
                }
                Step::Evict(p, _) => region.evict(page(p) * PAGE..(page(p) + 1) * PAGE).unwrap(),
                _ => {}
            }
        }
        for (page, value) in model.iter().enumerate() {
            let bytes = &region.as_slice()[page * PAGE..][1..PAGE];
            prop_assert!(bytes.iter().all(|b| b == value), "page {page} does not hold {value}");
        }
        let audit = region.pager().audit().unwrap();
        prop_assert!(audit.holds(), "{audit:?}");
    }
}

/// A region of `pages` of which `budget` may be resident; a word of each tells which it is.
fn numbered(pages: usize, budget: usize, policy: pagetide::Policy) -> Region {
    let mut region = builder()
        .length(pages * PAGE)
        .resident((budget * PAGE) as u64)
        .policy(policy)
        .build()
        .unwrap();
    for (page, chunk) in region.as_mut_slice().chunks_exact_mut(PAGE).enumerate() {
        chunk[..8].copy_from_slice(&word(7, page as u64).to_le_bytes());
    }
    region
}

#[test]
fn a_stream_is_read_ahead_within_the_budget_and_nothing_is_lost() {
    if !can_page() {
        return;
    }
    let (pages, budget) = (8192, 1024);
    for policy in pagetide::Policy::ALL {
        let region = numbered(pages, budget, policy);
        let check = |page: usize| {
            let bytes = region.as_slice()[page * PAGE..][..8].try_into().unwrap();
            assert_eq!(u64::from_le_bytes(bytes), word(7, page as u64), "page {page}");
        };
        let before = region.stats();
        (0..pages).for_each(check);
        (0..pages).rev().for_each(check);
        (0..3).for_each(|first| (first..pages).step_by(3).for_each(check));
        let after = region.stats();
        let prefetched = after.prefetched_pages - before.prefetched_pages;
        let hits = after.prefetch_hits - before.prefetch_hits;
        assert!(prefetched > 0 && hits > 0 && hits <= prefetched, "{after:?}");
        assert!(after.resident_bytes_max <= (budget * PAGE) as u64, "{after:?}");
        check_law(&region);
    }
}

/// Groups of four pages, in no order that is a stream's.
#[test]
fn pages_that_are_used_together_are_read_together() {
    if !can_page() {
        return;
    }
    let (pages, budget, turns) = (16384u64, 4096, 8000);
    for policy in pagetide::Policy::ALL {
        let region = numbered(pages as usize, budget, policy);
        let before = region.stats();
        for turn in 0..turns {
            // Below that the evictor makes room; a block is read only where there is some.
            let reserve = budget as u64 / 32 / 2;
            while region.stats().resident_bytes > (budget as u64 - reserve) * PAGE as u64 {
                std::thread::yield_now();
            }
            let group = word(turn, 3) % (pages / 4);
            for page in [0, 3, 1, 2].map(|index| 4 * group + index) {
                let bytes = region.as_slice()[page as usize * PAGE..][..8].try_into().unwrap();
                assert_eq!(u64::from_le_bytes(bytes), word(7, page), "page {page}");
            }
        }
        let after = region.stats();
        let fetches = after.fetches - before.fetches;
        assert!(fetches < 3 * turns, "{policy:?}: {fetches} fetches, {after:?}");
        assert!(after.block_pages > turns, "{policy:?}: {after:?}");
        check_law(&region);
    }
}

/// Pages in no order, but in that in which the pages of a list name them.
#[test]
fn what_a_list_names_is_read_ahead() {
    if !can_page() {
        return;
    }
    let (pages, lists, budget) = (8192u64, 64u64, 4096);
    for policy in pagetide::Policy::ALL {
        let mut region = numbered((pages + lists) as usize, budget, policy);
        let named = |number: u64| (word(1, number / 512) | 1).wrapping_mul(number * 7919) % pages;
        let start = region.as_ptr() as u64;
        for number in 0..512 * lists {
            let at = pages as usize * PAGE + 8 * number as usize;
            let address = start + named(number) * PAGE as u64;
            region.as_mut_slice()[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        let before = region.stats();
        let turns = 3;
        for number in (0..turns).flat_map(|_| 0..512 * lists) {
            // As in a program that does something with what it reads.
            let reserve = budget as u64 / 32 / 2;
            while region.stats().resident_bytes > (budget as u64 - reserve) * PAGE as u64 {
                std::thread::yield_now();
            }
            let at = pages as usize * PAGE + 8 * number as usize;
            let address = region.as_slice()[at..at + 8].try_into().unwrap();
            let page = (u64::from_le_bytes(address) - start) / PAGE as u64;
            assert_eq!(page, named(number), "word {number}");
            let bytes = region.as_slice()[page as usize * PAGE..][..8].try_into().unwrap();
            assert_eq!(u64::from_le_bytes(bytes), word(7, page), "page {page}");
        }
        let after = region.stats();
        let (fetches, pages) = (after.fetches - before.fetches, after.pointer_pages);
        assert!(pages > fetches / 4, "{policy:?}: {fetches} fetches, {after:?}");
        check_law(&region);
    }
}

/// What is only read is put once, however often it comes and goes.
#[test]
fn a_page_that_is_only_read_is_not_put_again() {
    if !can_page() {
        return;
    }
    let (pages, budget) = (2048u64, 512);
    for policy in pagetide::Policy::ALL {
        let region = numbered(pages as usize, budget, policy);
        for turn in 0..8 * pages {
            // In no order that is read ahead.
            let page = word(turn, 3) % pages;
            let bytes = region.as_slice()[page as usize * PAGE..][..8].try_into().unwrap();
            assert_eq!(u64::from_le_bytes(bytes), word(7, page), "page {page}");
        }
        let stats = region.stats();
        assert!(stats.evictions > 4 * pages, "{policy:?}: {stats:?}");
        assert!(stats.writebacks <= pages, "{policy:?}: {stats:?}");
        check_law(&region);
    }
}

/// Scans of what is half resident: a window read ahead passes over pages that are there already.
#[test]
fn no_more_pages_read_ahead_are_used_than_were_read_ahead() {
    if !can_page() {
        return;
    }
    let (pages, budget) = (2048, 1024);
    for policy in pagetide::Policy::ALL {
        let region = numbered(pages, budget, policy);
        for _ in 0..20 {
            let sum = region.as_slice().iter().step_by(PAGE);
            std::hint::black_box(sum.fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
        }
        let stats = region.stats();
        let used = stats.prefetch_hits > 0 && stats.prefetch_hits <= stats.prefetched_pages;
        assert!(used, "{policy:?}: {stats:?}");
    }
}

#[test]
fn an_explicit_prefetch_brings_a_range_without_a_fault() {
    if !can_page() {
        return;
    }
    let mut region = builder()
        .length(1024 * PAGE)
        .resident((1024 * PAGE) as u64)
        .build()
        .unwrap();
    region.as_mut_slice().fill(3);
    region.evict(0..1024 * PAGE).unwrap();
    let fetched_before = region.stats().fetched_pages;
    region.prefetch(0..512 * PAGE).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    // Resident bytes count room from when it is reserved: fetched pages are in place.
    while region.stats().fetched_pages < fetched_before + 512 {
        assert!(std::time::Instant::now() < deadline, "{:?}", region.stats());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let faults = region.stats().faults;
    assert!(region.as_slice()[..512 * PAGE].iter().all(|byte| *byte == 3));
    assert_eq!(region.stats().faults, faults, "a page that was brought in had a fault");
    check_law(&region);
}
