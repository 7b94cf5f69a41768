// Pins. Included once for each delivery, after the laws.

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
    region.evict(100 * PAGE..101 * PAGE).unwrap();
    drop(region.pin(100 * PAGE..101 * PAGE).unwrap());
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

/// The fault thread rests meanwhile, so what it had to be asked for would not be there.
#[test]
fn a_pin_of_resident_pages_asks_nobody() {
    if !can_page() {
        return;
    }
    let mut region = builder().length(64 * PAGE).build().unwrap();
    region.as_mut_slice().fill(7);
    region.pager().pause();
    let (told, hears) = std::sync::mpsc::channel();
    let pinned = std::thread::scope(|scope| {
        scope.spawn(|| {
            let first = region.pin(0..24 * PAGE).unwrap();
            drop(region.pin(16 * PAGE..56 * PAGE).unwrap());
            drop(first);
            told.send(()).unwrap();
        });
        let pinned = hears.recv_timeout(crate::patience::up_to(20));
        region.pager().resume();
        pinned
    });
    assert!(pinned.is_ok(), "a pin waited for the fault thread");
    region.evict(0..region.len()).unwrap();
    assert_eq!(region.stats().resident_bytes, 0, "all pins were let go");
    check_law(&region);
}

#[test]
fn what_is_pinned_while_it_is_evicted_is_there() {
    if !can_page() {
        return;
    }
    const PAGES: usize = 64;
    let region = builder().length(PAGES * PAGE).build().unwrap();
    for page in 0..PAGES {
        // SAFETY: within the region, which no other thread writes to.
        unsafe { region.as_ptr().add(page * PAGE).write(page as u8 + 1) };
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stopped() {
                region.evict(0..PAGES * PAGE).unwrap();
            }
        });
        let missing = (0..4000).find_map(|turn| {
            let first = word(1, turn) as usize % PAGES;
            let count = 1 + word(2, turn) as usize % (PAGES - first).min(8);
            let _pinned = region.pin(first * PAGE..(first + count) * PAGE).unwrap();
            let start = region.as_ptr() as usize / PAGE;
            let words = (first..first + count).map(|page| {
                let page = pagetide_kernel::PageNumber((start + page) as u64);
                region.pager().table.load(page)
            });
            let gone = |word: &pagetide_pager::page::word::Word| {
                use pagetide_pager::page::word::State::{Clean, Resident};
                !matches!(word.state(), Resident | Clean)
            };
            words.clone().find(gone).map(|word| (turn, first, count, word))
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(missing, None, "turn, first page, pages, word");
    });
    for page in 0..PAGES {
        assert_eq!(region.as_slice()[page * PAGE], page as u8 + 1);
    }
    check_law(&region);
}

#[test]
fn a_page_with_the_most_pins_can_be_written() {
    if !can_page() {
        return;
    }
    let mut region = builder().length(512 * PAGE).build().unwrap();
    region.as_mut_slice()[0] = 1;
    region.evict(0..PAGE).unwrap();
    let pins: Vec<_> = (0..254).map(|_| region.pin(0..PAGE).unwrap()).collect();
    assert!(matches!(
        region.pin(0..2 * PAGE),
        Err(pagetide::RegionError::PinCount(254))
    ));
    // Its first write is a fault that pins it once more.
    // SAFETY: within the region, which no other thread uses.
    unsafe { region.as_ptr().write_volatile(2) };
    drop(pins);
    assert_eq!(region.as_slice()[0], 2);
    region.evict(0..PAGE).unwrap();
    assert_eq!(region.as_slice()[0], 2);
    check_law(&region);
}

/// Clean pages are protected, and with delivery by signal a call that writes to such a page fails.
#[test]
fn system_calls_write_to_what_is_pinned() {
    if !can_page() {
        return;
    }
    use std::io::Read as _;
    let mut region = builder().length(64 * PAGE).resident((32 * PAGE) as u64).build().unwrap();
    region.as_mut_slice().fill(7);
    let sum = region.as_slice().iter().step_by(PAGE).map(|byte| u32::from(*byte)).sum::<u32>();
    assert_eq!(sum, 64 * 7);
    region.evict(0..64 * PAGE).unwrap();
    let (start, pinned) = (region.as_ptr(), region.pin(3 * PAGE..19 * PAGE).unwrap());
    // SAFETY: pinned, and nobody else uses these bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start.add(3 * PAGE), 16 * PAGE) };
    std::fs::File::open("/dev/zero").unwrap().read_exact(bytes).unwrap();
    drop(pinned);
    region.evict(0..64 * PAGE).unwrap();
    let expected = |at: usize| if (3 * PAGE..19 * PAGE).contains(&at) { 0 } else { 7 };
    assert!(region.as_slice().iter().enumerate().all(|(at, byte)| *byte == expected(at)));
}

/// Which is more than S3-FIFO's small queue is to have.
#[test]
fn half_of_the_budget_can_be_pinned() {
    if !can_page() {
        return;
    }
    let mut region = builder().length(256 * PAGE).resident((64 * PAGE) as u64).build().unwrap();
    region.as_mut_slice().fill(1);
    for round in 0..40 {
        let first = word(8, round) as usize % (256 - 32);
        let start = region.as_ptr();
        let pinned = region.pin(first * PAGE..(first + 32) * PAGE).unwrap();
        for touch in 0..200 {
            let page = word(round, touch) as usize % 256;
            // SAFETY: within the region, whose bytes nobody else uses.
            unsafe { start.add(page * PAGE).write_volatile(round as u8) };
        }
        drop(pinned);
    }
    check_law(&region);
}
