//! A region against plain memory: whatever is written reads back, whatever the budget and the
//! delivery of faults.
#[path = "../../cli/tests/support/patience.rs"]
mod patience;

mod thread_delivery {
    const DELIVERY: pagetide::Delivery = pagetide::Delivery::Thread;
    include!("region/laws.rs");

    #[test]
    fn system_calls_work_on_missing_pages() {
        if !can_page() {
            return;
        }
        let mut region = builder()
            .length(512 * PAGE)
            .resident((16 * PAGE) as u64)
            .build()
            .unwrap();
        let data: Vec<u8> = (0..512 * PAGE).map(|i| (i / 7 % 256) as u8).collect();
        let file = std::env::temp_dir().join(format!("pagetide-region-{}", std::process::id()));
        std::fs::write(&file, &data).unwrap();
        use std::io::Read;
        std::fs::File::open(&file)
            .unwrap()
            .read_exact(region.as_mut_slice())
            .unwrap();
        region.evict(0..512 * PAGE).unwrap();
        std::fs::write(&file, region.as_slice()).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), data);
        std::fs::remove_file(&file).unwrap();
    }
}

mod signal_delivery {
    const DELIVERY: pagetide::Delivery = pagetide::Delivery::Signal;
    include!("region/laws.rs");
}
