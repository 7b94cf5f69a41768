//! A program that uses the library, under `pagetide run`: two pagers in one process, each with
//! memory of its own.
#[path = "../../cli/tests/support/mod.rs"]
mod support;

use std::time::Duration;

use pagetide_bench::paging::task::{Home, Phase, Task, WORKER};
use support::pagetide::{able, governed};
use support::process::run;
use support::skip::skipped;

const TIMES: usize = 40;

/// The agent looks for new memory all the time, and a region's is new memory: whoever comes first
/// serves it.
#[test]
fn a_region_keeps_its_memory_from_the_pager_of_its_program() {
    if let Err(reason) = able() {
        return skipped("a region under run", &reason);
    }
    let phases = [0, 100].map(|writes| Phase {
        accesses: 500,
        writes,
    });
    let task = |home| Task {
        warmup: 500,
        phases: phases.into(),
        home,
        ..Task::random_reads(8 << 20, 2 << 20, 0)
    };
    let checksum = |outcome: &support::process::Outcome| {
        assert_eq!(outcome.code(), Some(0), "{}", outcome.describe());
        let found: serde_json::Value = serde_json::from_str(&outcome.stdout_text()).unwrap();
        assert!(
            found["region_bytes_max"].as_u64().unwrap() <= 2 << 20,
            "{found}"
        );
        found["checksum"].as_str().unwrap().to_owned()
    };
    for home in [Home::Thread, Home::Signal] {
        let task = serde_json::to_string(&task(home)).unwrap();
        let mut expected = None;
        for _ in 0..TIMES {
            let mut command = governed(
                &["--quiet", "--resident", "64M"],
                env!("CARGO_BIN_EXE_pagetide-bench"),
            );
            let found = checksum(&run(command.args([WORKER, &task]), Duration::from_secs(60)));
            assert_eq!(*expected.get_or_insert_with(|| found.clone()), found);
        }
    }
}
