// Included once for each delivery; DELIVERY names it.
use std::time::{Duration, Instant};

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
    // So far from each other that no zeros are installed ahead.
    const APART: usize = 64;
    let waited = |resident: usize| {
        let mut region = (builder().length(PAGES * APART * PAGE))
            .resident((resident * PAGE) as u64)
            .build()
            .unwrap();
        for pages in region.as_mut_slice().chunks_exact_mut(APART * PAGE) {
            pages[0] = 1;
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
    std::thread::sleep(Duration::from_millis(300));
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
        std::thread::sleep(Duration::from_millis(2));
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

#[test]
fn what_is_discarded_is_zeros_and_its_room_is_given_back() {
    if !can_page() {
        return;
    }
    const PAGES: usize = 1024;
    let builder = builder().length(PAGES * PAGE).resident((256 * PAGE) as u64);
    let mut region = builder.build().unwrap();
    let fill = |region: &mut Region| {
        for (index, bytes) in region.as_mut_slice().chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&word(9, index as u64).to_le_bytes());
        }
    };
    fill(&mut region);
    let pinned = region.pin(10 * PAGE..11 * PAGE).unwrap();
    // Pages in every state: some are on their way out, some in the store.
    region.discard(5 * PAGE - 1..1000 * PAGE + 1).unwrap();
    let is_zeros = |page: usize| region.as_slice()[page * PAGE..][..PAGE] == [0; PAGE];
    for page in 0..PAGES {
        assert_eq!(is_zeros(page), (5..1000).contains(&page) && page != 10, "page {page}");
    }
    drop(pinned);
    check_law(&region);
    region.discard(0..PAGES * PAGE).unwrap();
    region.evict(0..PAGES * PAGE).unwrap();
    let stats = region.stats();
    assert_eq!((stats.resident_bytes, stats.store_pages), (0, 0), "{stats:?}");
    fill(&mut region);
    let right = |(index, bytes): (usize, &[u8])| bytes == word(9, index as u64).to_le_bytes();
    assert!(region.as_slice().chunks_exact(8).enumerate().all(right));
    check_law(&region);
}

#[test]
fn discarding_beside_threads_that_write_elsewhere_loses_nothing() {
    if !can_page() {
        return;
    }
    const PAGES: usize = 512;
    let builder = builder().length(PAGES * PAGE).resident((48 * PAGE) as u64);
    let region = builder.build().unwrap();
    let (start, step) = (region.as_ptr() as usize, 2 * PAGE);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..60u64 {
                for page in 0..PAGES / 2 {
                    let at = (start + page * step) as *mut u64;
                    // SAFETY: even pages are this thread's alone.
                    unsafe {
                        let expected = if round == 0 { 0 } else { word(round - 1, page as u64) };
                        assert_eq!(at.read(), expected, "page {page} of round {round}");
                        at.write(word(round, page as u64));
                    }
                }
            }
        });
        for round in 0..3000usize {
            let page = 2 * (word(7, round as u64) as usize % (PAGES / 2)) + 1;
            // SAFETY: odd pages are this thread's alone.
            unsafe { ((start + page * PAGE) as *mut u64).write(1) };
            region.discard(page * PAGE..(page + 1) * PAGE).unwrap();
            // SAFETY: as above.
            assert_eq!(unsafe { ((start + page * PAGE) as *const u64).read() }, 0);
        }
    });
    check_law(&region);
}
