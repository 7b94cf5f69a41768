//! Regions that are made and freed, one after another, as a program does that runs for long: what
//! each had is given back. The only test of its program, because it looks at the process's size.
use pagetide::{Delivery, Region};

/// Bytes of address space that this process has.
fn size() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    4096 * pages
}

#[test]
fn a_process_can_make_and_free_regions_for_ever() {
    const LENGTH: usize = 64 * 4096;
    for delivery in [Delivery::Thread, Delivery::Signal] {
        let make = |bytes: u64| {
            let builder = Region::builder().delivery(delivery).length(LENGTH);
            let mut region = builder.resident(bytes).build()?;
            region.as_mut_slice().fill(7);
            Ok(region)
        };
        let once = || make(LENGTH as u64 / 4);
        if let Err(error) = once() as Result<Region, pagetide::RegionError> {
            return eprintln!("SKIPPED: no region can be made here: {error}");
        }
        (0..32).for_each(|_| drop(once().unwrap()));
        let before = size();
        (0..200).for_each(|_| drop(once().unwrap()));
        let grown = size().saturating_sub(before);
        // A ledger is 56 KiB.
        assert!(grown < 1 << 20, "{delivery:?}: {grown} bytes more");
        // No bound at all.
        let region = make(u64::MAX).unwrap();
        assert_eq!(region.stats().resident_bytes, LENGTH as u64);
        region.set_budget(u64::MAX).unwrap();
        assert_eq!(region.stats().resident_bytes, LENGTH as u64);
    }
}
