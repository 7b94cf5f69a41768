// Regions that begin as a file's contents. Included once for each delivery, after the laws.

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
