//! What is said of runs that went so and so.
use super::super::summary;
use super::*;
use crate::ledger_file::Reading;
use nix::sys::signal::Signal;
use pagetide_pager::report::Latency;

pub fn process(pid: u32, loss: Option<Loss>, message: &str) -> Governed {
    let statistics = Statistics {
        pid,
        command: "sort big".into(),
        budget_bytes: 256 << 20,
        resident_bytes_max: 255 << 20,
        managed_bytes_max: 1 << 30,
        store_bytes_max: 300 << 20,
        memory_bytes_max: 560 << 20,
        compression_ratio: 2.5,
        evictions: 200_000,
        wall_seconds: 10.0,
        refault_seconds: 5.5,
        cpu_seconds: 4.0,
        faults: 123_456,
        fetches: 100_000,
        writebacks: 5_000,
        fault_latency_ns: Latency {
            p99: 45_000,
            ..Latency::default()
        },
        ..Statistics::default()
    };
    let reading = Reading {
        statistics,
        loss,
        message: message.into(),
        started_ns: 1,
        ..Reading::default()
    };
    Governed {
        pid,
        socket: "".into(),
        reading,
    }
}

#[test]
fn what_many_processes_say_is_said_once_and_each_loss_is_told() {
    let mut outcome = Outcome::default();
    for pid in 10..15 {
        outcome.governed.push(process(pid, None, "store: full"));
        outcome
            .governed
            .push(process(pid + 10, Some(Loss::Page), "page 0x1000"));
    }
    let lines = outcome.messages(Ended::Exited(0), true);
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert_eq!(lines[0], "process 10 (sort big): store: full (and 4 more)");
    assert!(
        lines[1..]
            .iter()
            .all(|line| line.contains("page 0x1000; run it again"))
    );
    assert_eq!(outcome.messages(Ended::Exited(0), false).len(), 5);
}

#[test]
fn the_program_s_code_is_kept_unless_the_run_went_wrong() {
    let mut outcome = Outcome {
        governed: vec![process(9, None, "")],
        ..Outcome::default()
    };
    assert_eq!(outcome.code(Ended::Exited(42)), 42);
    assert_eq!(outcome.code(Ended::Killed(Signal::SIGTERM)), 143);
    assert_eq!(
        outcome.messages(Ended::Exited(0), true),
        Vec::<String>::new()
    );
    outcome.refusals.push((10, "no userfaultfd".into()));
    assert_eq!(outcome.code(Ended::Exited(42)), 3);
    assert_eq!(outcome.code(Ended::Killed(Signal::SIGTERM)), 3);
    let refused = Ended::Exited(Cause::Store.exit_status());
    assert_eq!(outcome.code(refused), Exit::Store.code());
    outcome
        .governed
        .push(process(11, Some(Loss::Pager), "page 0x1000: checksum"));
    assert_eq!(outcome.code(Ended::Exited(42)), 5);
    let lines = outcome.messages(Ended::Exited(0), false);
    assert_eq!(
        lines,
        [
            "process 10 cannot be paged: no userfaultfd",
            "process 11 (sort big): page 0x1000: checksum"
        ]
    );
}

#[test]
fn a_lost_page_is_named_with_the_next_step() {
    let outcome = Outcome {
        governed: vec![process(
            9,
            Some(Loss::Page),
            "data were lost: page at 0x1000 is lost: x",
        )],
        ..Outcome::default()
    };
    let lines = outcome.messages(Ended::Exited(0), false);
    assert!(lines[0].starts_with("process 9 (sort big): data were lost: page at 0x1000"));
    assert!(lines[0].contains("--store"));
}

#[test]
fn one_that_was_ended_for_a_loss_does_not_go_on() {
    let outcome = Outcome {
        left_running: vec![process(9, Some(Loss::Page), "data were lost")],
        ..Outcome::default()
    };
    assert_eq!(outcome.left_running(), None);
    let outcome = Outcome {
        left_running: vec![process(9, None, ""), process(10, None, "")],
        lost: vec![(9, "data were lost".into())],
        ..Outcome::default()
    };
    let told = outcome.left_running().unwrap();
    assert!(told.starts_with("process 10 (sort big) goes on"), "{told}");
}

#[test]
fn who_was_not_governed_for_one_reason_is_told_of_once() {
    let notes = [
        (9, "few descriptors"),
        (10, "no space"),
        (11, "few descriptors"),
    ];
    let outcome = Outcome {
        ungoverned: notes.map(|(pid, reason)| (pid, reason.to_owned())).to_vec(),
        ..Outcome::default()
    };
    let told = outcome.ungoverned();
    assert_eq!(told.len(), 2);
    assert!(told[0].starts_with("process 9 was not governed, and so were 1 more: few"));
    assert!(told[1].starts_with("process 10 was not governed: no space"));
}

#[test]
fn a_run_without_an_agent_is_told_apart_from_one_that_never_began() {
    let none = Outcome::default();
    assert_eq!(none.code(Ended::Exited(0)), 3);
    assert_eq!(none.messages(Ended::Exited(0), false).len(), 1);
    assert_eq!(none.code(Ended::Exited(127)), 127);
    assert_eq!(none.code(Ended::Killed(Signal::SIGKILL)), 137);
    assert_eq!(summary::line(&none.governed), None);
    let removed = Outcome {
        removed: Some("/run/pagetide/run-7".into()),
        ..none
    };
    assert_eq!(removed.code(Ended::Exited(42)), 42);
    let lines = removed.messages(Ended::Exited(42), true);
    assert!(lines[0].starts_with("/run/pagetide/run-7: the run's directory was removed"));
    assert_eq!(
        (lines.len(), removed.messages(Ended::Exited(42), false)),
        (1, vec![])
    );
}

#[test]
fn what_was_executed_and_made_no_ledger_is_told_of() {
    let image = |pid, executing| {
        let mut image = process(pid, None, "");
        image.reading.executing = executing;
        image
    };
    let lines = |governed| {
        let outcome = Outcome {
            governed,
            ..Outcome::default()
        };
        outcome.messages(Ended::Exited(0), true)
    };
    assert!(lines(vec![image(9, true), image(9, false)]).is_empty());
    let said = lines(vec![image(9, true), image(10, true), image(9, true)]);
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("process 10") && said[0].contains("so did 1 more"));
    let outcome = Outcome {
        governed: vec![image(9, true)],
        ungoverned: vec![(9, "too tight a limit".into())],
        ..Outcome::default()
    };
    assert_eq!(outcome.messages(Ended::Exited(0), true).len(), 1);
    assert!(outcome.messages(Ended::Exited(0), false).is_empty());
}

#[test]
fn a_loss_of_a_process_without_counters_is_told_and_decides_the_code() {
    let outcome = Outcome {
        governed: vec![process(9, None, "")],
        uncounted: vec![(10, "no file".into()), (11, "no file".into())],
        lost: vec![(11, "a forked child cannot be governed: x".into())],
        ..Outcome::default()
    };
    assert_eq!(outcome.code(Ended::Exited(0)), Exit::DataLost.code());
    let lines = outcome.messages(Ended::Exited(0), true);
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("process 10 ") && lines[0].contains("so were 1 more"));
    assert_eq!(lines[1], "process 11: a forked child cannot be governed: x");
    assert_eq!(outcome.messages(Ended::Exited(0), false), lines[1..]);
}

#[test]
fn warnings_are_said_only_when_wanted() {
    let outcome = Outcome {
        governed: vec![process(9, None, "store slow")],
        ..Outcome::default()
    };
    assert_eq!(
        outcome.messages(Ended::Exited(0), true),
        ["process 9 (sort big): store slow"]
    );
    assert!(outcome.messages(Ended::Exited(0), false).is_empty());
    assert_eq!(outcome.code(Ended::Exited(0)), 0);
}

#[test]
fn statistics_are_one_object_a_line() {
    let outcome = Outcome {
        governed: vec![process(9, None, ""), process(10, None, "")],
        ..Outcome::default()
    };
    let mut out = Vec::new();
    outcome.write_statistics(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<Statistics> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.iter().map(|s| s.pid).collect::<Vec<_>>(), [9, 10]);
}
