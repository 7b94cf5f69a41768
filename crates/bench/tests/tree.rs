//! `pagetide-bench tree` as a user calls it, on little memory.
#[path = "../../cli/tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Command;

use support::pagetide::number;
use support::skip::skipped;

#[test]
fn both_ways_and_a_start_are_measured() {
    let bench = Path::new(env!("CARGO_BIN_EXE_pagetide-bench"));
    let pagetide = bench.with_file_name("pagetide");
    if !pagetide.exists() {
        let reason = format!("there is no {}", pagetide.display());
        return skipped("both_ways_and_a_start_are_measured", &reason);
    }
    let words = "tree --resident 4M --accesses 2000 --starts 3 --runs 1 --json";
    let mut command = Command::new(bench);
    let output = command.args(words.split(' ')).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.contains("userfaultfd") && !output.status.success() {
        return skipped("both_ways_and_a_start_are_measured", &errors);
    }
    assert!(output.status.success(), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    for field in [
        "shared_seconds",
        "divided_seconds",
        "governed_seconds",
        "bare_seconds",
    ] {
        assert!(
            number(&printed, field).is_some_and(|seconds| seconds > 0.0),
            "{printed}"
        );
    }
}
