//! A region against plain memory: whatever is written reads back, whatever the budget and the
//! delivery of faults.
#[path = "../../cli/tests/support/patience.rs"]
mod patience;

mod thread_delivery {
    const DELIVERY: pagetide::Delivery = pagetide::Delivery::Thread;
    include!("region/laws.rs");
    include!("region/ahead.rs");
    include!("region/sources.rs");
    include!("region/pins.rs");
    include!("region/scans.rs");

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

mod thread_delivery_on_one_processor {
    /// What the fault thread does after it has woken a thread comes after what that thread does
    /// next. Without MOVE first writes are faults.
    #[test]
    fn discarding_beside_threads_that_write_elsewhere_loses_nothing() {
        let test = "thread_delivery::discarding_beside_threads_that_write_elsewhere_loses_nothing";
        let any = rustix::thread::sched_getaffinity(None).unwrap();
        let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| any.is_set(*cpu));
        let mut only = rustix::thread::CpuSet::new();
        only.set(first.expect("it runs somewhere"));
        // Of this thread, and so of the process it starts.
        rustix::thread::sched_setaffinity(None, &only).unwrap();
        for _ in 0..2 {
            super::pass_without_moving(test);
        }
    }
}

/// Runs a test of this file in a process of its own where pages are evicted in place.
fn pass_without_moving(test: &str) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test]).env("PAGETIDE_MASK", "move");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
fn what_is_pinned_while_it_is_evicted_in_place_is_there() {
    for delivery in ["thread_delivery", "signal_delivery"] {
        pass_without_moving(&format!(
            "{delivery}::what_is_pinned_while_it_is_evicted_is_there"
        ));
    }
}

mod signal_delivery {
    const DELIVERY: pagetide::Delivery = pagetide::Delivery::Signal;
    include!("region/laws.rs");
    include!("region/ahead.rs");
    include!("region/sources.rs");
    include!("region/pins.rs");
    include!("region/scans.rs");
}
