//! A run inside a run, as docs/nested-runs.md has it.
mod support;

use std::time::Duration;

use serde_json::Value;
use support::pagetide::{able_to_fork, binary, governed};
use support::process::run;
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;

fn statistics(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.map(Result::unwrap).collect()
}

#[test]
fn a_run_inside_a_run_has_a_budget_and_statistics_of_its_own() {
    let name = "a_run_inside_a_run_has_a_budget_and_statistics_of_its_own";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let directory = tempfile::tempdir().unwrap();
    let [outer, inner] = ["outer", "inner"].map(|name| directory.path().join(name));
    let outer_stats = outer.to_str().unwrap();
    let options = ["--resident", "64M", "--stats", outer_stats];
    let mut command = governed(&options, binary().unwrap());
    command
        .args(["run", "--resident", "16M", "--stats"])
        .arg(&inner);
    command.args(["--", "sh", "-c", "exit 7"]);
    run(&mut command, LIMIT).expect_code(7);
    let budgets = |all: &[Value]| -> Vec<u64> {
        let budgets = all.iter().map(|one| one["run_budget_bytes"].as_u64());
        budgets.map(Option::unwrap).collect()
    };
    let is_program = |one: &Value| one["command"].as_str().unwrap().starts_with("sh -c exit 7");
    let (of_outer, of_inner) = (statistics(&outer), statistics(&inner));
    assert!(budgets(&of_outer).iter().all(|bytes| *bytes == 64 * MIB));
    assert!(budgets(&of_inner).iter().all(|bytes| *bytes == 16 * MIB));
    assert!(!of_outer.is_empty() && !of_outer.iter().any(is_program));
    assert!(of_inner.iter().any(is_program), "{of_inner:?}");
}
