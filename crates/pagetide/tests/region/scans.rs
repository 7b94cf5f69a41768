// Scans. Included once for each delivery, after the laws.

/// Pages that are used all the time, in no order, are to stay while others are passed through again
/// and again. Whoever takes the pages of the scan for used ones, as they came back, loses those.
#[test]
fn a_scan_takes_the_place_of_its_own_pages() {
    if !can_page() {
        return;
    }
    let (scanned, used, budget) = (2048, 1600, 2048);
    let region = numbered(scanned + used, budget, pagetide::Policy::S3Fifo);
    let touch = |page: usize| {
        let bytes = region.as_slice()[page * PAGE..][..8].try_into().unwrap();
        assert_eq!(u64::from_le_bytes(bytes), word(7, page as u64), "page {page}");
    };
    let before = region.stats().fetched_pages;
    for step in 0..3 * scanned {
        touch(used + step % scanned);
        for index in 4 * step..4 * step + 4 {
            touch((word(1, index as u64) >> 16) as usize % used);
        }
    }
    let fetched = region.stats().fetched_pages - before;
    // Measured: 7300 to 7600, and where they are taken for used 11 500 to 12 900.
    let most = 3 * scanned as u64 * 3 / 2;
    assert!(fetched <= most, "{fetched} of {most}: {:?}", region.stats());
    check_law(&region);
}
