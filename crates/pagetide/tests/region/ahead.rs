// Pages that come before they are asked for. Included once for each delivery, after the laws.

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
