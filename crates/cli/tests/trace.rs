//! `run --trace` records the faults of the program, and says what is wrong with a file it cannot
//! write.
mod support;

use std::collections::HashSet;
use std::process::Command;
use std::time::Duration;

use pagetide_pager::recorder::{self, Kind};
use support::compile::{compile_c, scratch};
use support::pagetide::{able, able_to_fork, governed};
use support::process::run;
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn a_trace_holds_the_faults_that_were_served() {
    if let Err(reason) = able_to_fork() {
        return skipped("trace", &reason);
    }
    let program =
        compile_c("hazards", "static_arrays", &[]).unwrap_or_else(|error| panic!("{error}"));
    let (trace, stats) = (scratch().join("faults.trace"), scratch().join("trace.json"));
    let (trace_path, stats_path) = (trace.to_str().unwrap(), stats.to_str().unwrap());
    let options = [
        "--resident",
        "4M",
        "--trace",
        trace_path,
        "--stats",
        stats_path,
    ];
    for policy in ["fifo", "s3fifo"] {
        let mut command = governed(&[&options[..], &["--policy", policy]].concat(), &program);
        run(command.arg("16"), LIMIT).expect_code(0);
        let bytes = std::fs::read(&trace).unwrap();
        let records: Vec<_> = recorder::parse(&bytes).unwrap().expect("a trace").collect();
        let fetched = records
            .iter()
            .filter(|r| matches!(r.kind, Kind::Read | Kind::Write))
            .count();
        let statistics: serde_json::Value = serde_json::from_str(
            std::fs::read_to_string(&stats)
                .unwrap()
                .lines()
                .next()
                .unwrap(),
        )
        .unwrap();
        assert_eq!(
            Some(fetched as u64),
            statistics["fetches"].as_u64(),
            "{statistics}"
        );
        let pages: HashSet<u64> = records.iter().map(|r| r.page.0).collect();
        assert!(pages.len() > 1024, "{} pages are no 16 MiB", pages.len());
        assert_eq!(
            bytes.len(),
            4096 + 8 * records.len(),
            "the file is as long as what it holds"
        );
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named_before_the_program_starts() {
    let Ok(binary) = able() else {
        return skipped("trace", "no paging here");
    };
    let outcome = run(
        Command::new(binary).args(["run", "--trace", "/nonexistent/t", "--", "/bin/true"]),
        LIMIT,
    );
    outcome.expect_code(2);
    assert!(
        outcome.stderr_text().contains("/nonexistent/t"),
        "{}",
        outcome.stderr_text()
    );
}
