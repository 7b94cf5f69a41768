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
    for policy in pagetide::Policy::OF_REGIONS {
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

/// An array that is filled in no order: each page once.
#[test]
fn fresh_memory_used_in_no_order_is_filled_by_blocks() {
    if !can_page() {
        return;
    }
    let pages = 8192;
    let budget = (pages * PAGE) as u64;
    let mut region = builder().length(pages * PAGE).resident(budget).build().unwrap();
    for turn in 0..pages {
        let page = turn * 4099 % pages;
        region.as_mut_slice()[page * PAGE] = 1;
    }
    let stats = region.stats();
    assert!(stats.zero_faults <= pages as u64 / 4, "{stats:?}");
    assert_eq!(stats.resident_bytes, budget, "{stats:?}");
    check_law(&region);
}

/// Nine pages of each block, in no order, and no others.
#[test]
fn what_is_filled_in_vain_is_soon_filled_no_more() {
    if !can_page() {
        return;
    }
    let (blocks, used, together) = (2048, 9, 128);
    let (pages, budget) = (blocks * 64, (4096 * PAGE) as u64);
    let mut region = builder().length(pages * PAGE).resident(budget).build().unwrap();
    for group in 0..blocks / together {
        for turn in 0..used * together {
            let block = group * together + turn * 77 % together;
            let page = block * 64 + turn / together * 5 % 64;
            region.as_mut_slice()[page * PAGE] = 1;
        }
    }
    let stats = region.stats();
    let in_vain = stats.zero_fills - stats.zero_faults;
    assert!(stats.zero_faults >= (blocks * used * 8 / 9) as u64, "{stats:?}");
    assert!(in_vain > 0 && in_vain < (pages / 4) as u64, "{in_vain} in vain: {stats:?}");
    check_law(&region);
}

/// Groups of four pages, in no order that is a stream's.
#[test]
fn pages_that_are_used_together_are_read_together() {
    if !can_page() {
        return;
    }
    let (pages, budget, turns) = (16384u64, 4096, 8000);
    for policy in pagetide::Policy::OF_REGIONS {
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
    for policy in pagetide::Policy::OF_REGIONS {
        let mut region = numbered((pages + lists) as usize, budget, policy);
        let named = |number: u64| (word(1, number / 512) | 1).wrapping_mul(number * 7919) % pages;
        let start = region.as_ptr() as u64;
        for number in 0..512 * lists {
            let at = pages as usize * PAGE + 8 * number as usize;
            let address = start + named(number) * PAGE as u64;
            region.as_mut_slice()[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        let walk = |number: u64| {
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
        };
        // Of pages that named nothing for long, one in 64 is looked at: it takes some turns until a
        // list is among them.
        let mut turns = 0..20;
        let is_found = turns.any(|_| {
            (0..512 * lists).for_each(walk);
            region.stats().pointer_pages > 0
        });
        assert!(is_found, "{policy:?}: {:?}", region.stats());
        let (before, turns) = (region.stats(), 3);
        (0..turns).for_each(|_| (0..512 * lists).for_each(walk));
        let after = region.stats();
        let (fetches, pages) = (
            after.fetches - before.fetches,
            after.pointer_pages - before.pointer_pages,
        );
        assert!(pages > fetches / 2, "{policy:?}: {fetches} fetches, {after:?}");
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
    for policy in pagetide::Policy::OF_REGIONS {
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
    for policy in pagetide::Policy::OF_REGIONS {
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
    let deadline = Instant::now() + Duration::from_secs(20);
    // Resident bytes count room from when it is reserved: fetched pages are in place.
    while region.stats().fetched_pages < fetched_before + 512 {
        assert!(Instant::now() < deadline, "{:?}", region.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    let faults = region.stats().faults;
    assert!(region.as_slice()[..512 * PAGE].iter().all(|byte| *byte == 3));
    assert_eq!(region.stats().faults, faults, "a page that was brought in had a fault");
    check_law(&region);
}

/// A file of `pages` pages and `more` bytes, and what is in it. Every fourth page is zeros.
fn source_file(pages: usize, more: usize) -> (std::fs::File, Vec<u8>) {
    let bytes: Vec<u8> = (0..pages * PAGE + more)
        .map(|index| match index / PAGE % 4 {
            0 => 0,
            _ => word(1, index as u64 / 8) as u8,
        })
        .collect();
    let path = std::env::temp_dir().join(format!(
        "pagetide-source-{}-{DELIVERY:?}-{pages}-{more}",
        std::process::id()
    ));
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    (file, bytes)
}

#[test]
fn a_source_is_read_on_demand_and_again_and_never_written() {
    if !can_page() {
        return;
    }
    const PAGES: usize = 2048;
    let (file, bytes) = source_file(PAGES, 100);
    let builder = builder().source(file.try_clone().unwrap(), 0, bytes.len() as u64);
    let region = builder.resident((64 * PAGE) as u64).build().unwrap();
    assert_eq!(region.len(), (PAGES + 1) * PAGE);
    assert_eq!(region.stats().fetched_pages, 0, "nothing is read beforehand");
    assert_eq!(region.as_slice()[1500 * PAGE + 5], bytes[1500 * PAGE + 5]);
    let stats = region.stats();
    assert!(stats.fetched_pages < 128, "{stats:?}");
    for _ in 0..2 {
        assert!(region.as_slice()[..bytes.len()] == bytes[..]);
        assert!(region.as_slice()[bytes.len()..].iter().all(|byte| *byte == 0));
    }
    let stats = region.stats();
    assert_eq!((stats.writebacks, stats.store_pages), (0, 0), "{stats:?}");
    assert!(stats.clean_drops > 2 * PAGES as u64 - 200, "{stats:?}");
    assert!(stats.resident_bytes_max <= (64 * PAGE) as u64, "{stats:?}");
    check_law(&region);
    let mut now = Vec::new();
    std::io::Read::read_to_end(&mut &file, &mut now).unwrap();
    assert!(now == bytes, "the file is as it was");
}

/// Long passes over a source are read ahead of by threads of their own, past the page cache; what
/// was written shows all the same, and the bound holds.
#[test]
fn a_scan_over_a_source_shows_the_file_and_what_was_written() {
    if !can_page() {
        return;
    }
    const PAGES: usize = 8192;
    let (file, mut expected) = source_file(PAGES, 100);
    file.sync_all().unwrap();
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    let builder = builder().source(file, 0, expected.len() as u64);
    let mut region = builder.resident((2048 * PAGE) as u64).build().unwrap();
    for page in (50..PAGES).step_by(100) {
        region.as_mut_slice()[page * PAGE] ^= 0xff;
        expected[page * PAGE] ^= 0xff;
    }
    for pass in 1..=2 {
        assert!(region.as_slice()[..expected.len()] == expected[..], "pass {pass}");
        let stats = region.stats();
        // However late the threads are.
        let ahead = (pass * PAGES / 4) as u64;
        assert!(stats.prefetched_pages > ahead, "{stats:?}");
        assert!(stats.prefetch_hits <= stats.prefetched_pages, "{stats:?}");
        assert!(stats.resident_bytes_max <= (2048 * PAGE) as u64, "{stats:?}");
    }
    // Scans have threads of their own, which an audit does not hold still: they rest soon.
    let until = Instant::now() + Duration::from_secs(10);
    while !region.pager().audit().unwrap().holds() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    check_law(&region);
}

#[test]
fn what_is_written_over_a_source_stays_written_zeros_too() {
    if !can_page() {
        return;
    }
    const PAGES: usize = 1500;
    let (file, mut expected) = source_file(PAGES, 0);
    // Longer than the source: zeros follow.
    let builder = builder().length((PAGES + 700) * PAGE).source(file, 0, (PAGES * PAGE) as u64);
    let mut region = builder.resident((32 * PAGE) as u64).build().unwrap();
    expected.resize((PAGES + 700) * PAGE, 0);
    for round in 0..4000u64 {
        let page = (word(3, round) % (PAGES as u64 + 700)) as usize;
        let bytes = page * PAGE..(page + 1) * PAGE;
        match round % 3 {
            0 => assert!(region.as_slice()[bytes.clone()] == expected[bytes]),
            1 => {
                region.as_mut_slice()[bytes.clone()].fill(0);
                expected[bytes].fill(0);
            }
            _ => {
                region.as_mut_slice()[bytes.start + 9] = round as u8;
                expected[bytes.start + 9] = round as u8;
            }
        }
    }
    assert!(region.as_slice() == expected);
    region.evict(0..region.len()).unwrap();
    assert!(region.as_slice() == expected);
    check_law(&region);
}

#[test]
fn a_source_that_has_too_little_is_an_error() {
    let (file, bytes) = source_file(3, 0);
    let refused = builder().source(file, 0, bytes.len() as u64 + 1).build();
    let message = refused.err().expect("it has not so much").to_string();
    assert!(message.contains("has 12288 bytes, and 12289"), "{message}");
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
fn what_is_discarded_of_a_source_is_as_the_file_has_it() {
    if !can_page() {
        return;
    }
    let (file, bytes) = source_file(64, 0);
    let mut region = builder().source(file, 0, bytes.len() as u64).build().unwrap();
    region.as_mut_slice().fill(7);
    region.discard(0..32 * PAGE).unwrap();
    assert!(region.as_slice()[..32 * PAGE] == bytes[..32 * PAGE]);
    assert!(region.as_slice()[32 * PAGE..].iter().all(|byte| *byte == 7));
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

#[test]
fn what_is_filled_ahead_beside_a_source_is_not_the_source() {
    if !can_page() {
        return;
    }
    const PAGES: usize = 512;
    // Behind the file, and in a block with its last pages, which nobody has looked at.
    let (file, bytes) = source_file(200, 0);
    let length = PAGES * PAGE;
    let builder = builder().length(length).resident(length as u64);
    let mut region = builder.source(file, 0, bytes.len() as u64).build().unwrap();
    for page in (0..312).map(|i| 200 + i * 37 % 312) {
        region.as_mut_slice()[page * PAGE] = 1;
    }
    assert!(region.as_slice()[..bytes.len()] == bytes);
    check_law(&region);
}

/// As numpy's `a[places] += 1` does. A page that is expected to be written takes one fault.
#[test]
fn pages_that_are_all_read_before_the_first_is_written_take_one_fault() {
    if !can_page() {
        return;
    }
    const PAGES: usize = 8192;
    let builder = builder().length(PAGES * PAGE).resident((PAGES / 4 * PAGE) as u64);
    let mut region = builder.build().unwrap();
    (0..PAGES).for_each(|page| region.as_mut_slice()[page * PAGE] = 1);
    let (mut random, mut before) = (1u64, region.stats());
    for round in 0..16 {
        if round == 8 {
            before = region.stats();
        }
        let mut next = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % PAGES
        };
        let pages: Vec<usize> = (0..600).map(|_| next()).collect();
        let bytes = region.as_mut_slice();
        pages.iter().for_each(|page| _ = std::hint::black_box(bytes[page * PAGE]));
        pages.iter().for_each(|page| bytes[page * PAGE] += 1);
    }
    let after = region.stats();
    let (faults, fetches) = (after.faults - before.faults, after.fetches - before.fetches);
    assert!(fetches > 8 * 300, "{fetches}");
    assert!(faults < fetches + fetches / 4, "{faults} faults for {fetches} fetches");
    // A page that comes twice in a round is written twice.
    let written = (0..PAGES).map(|page| u64::from(region.as_slice()[page * PAGE]));
    assert_eq!(written.sum::<u64>(), (PAGES + 16 * 600) as u64);
}
