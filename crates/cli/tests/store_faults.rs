//! When the store fails: what can be mended is, what cannot is said, and nothing ever reads as zeros or as other bytes.
mod support;

use std::time::Duration;

use support::compile::{compile_c, scratch};
use support::pagetide::{able, governed};
use support::process::{Outcome, run};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(120);
/// 128 + SIGBUS: a page was poisoned and the program touched it.
const SIGBUS: i32 = 128 + 7;
const DATA_LOST: i32 = 5;

fn with_store(uri: &str, program: &str, mib: &str) -> Option<Outcome> {
    if let Err(reason) = able() {
        skipped(uri, &reason);
        return None;
    }
    let folder = if program == "four_threads" {
        "programs"
    } else {
        "hazards"
    };
    let path = compile_c(folder, program, &[]).unwrap_or_else(|error| panic!("{error}"));
    Some(run(
        governed(&["--resident", "4M", "--store", uri], path).arg(mib),
        LIMIT,
    ))
}

/// The program must not notice.
fn unnoticed(uri: &str) {
    if let Some(outcome) = with_store(uri, "four_threads", "32") {
        outcome.expect_code(0);
    }
}

/// The program must end with a signal or exit code 5 and a message that names the page; never with a wrong word.
fn lost_loudly(uri: &str) {
    if let Some(outcome) = with_store(uri, "four_threads", "32") {
        let said = outcome.stderr_text();
        assert!(
            !said.contains("FAILED"),
            "wrong bytes were handed out: {}",
            outcome.describe()
        );
        assert!(
            matches!(outcome.code(), Some(SIGBUS | DATA_LOST)),
            "expected SIGBUS or exit 5: {}",
            outcome.describe()
        );
        assert!(
            said.contains("0x"),
            "the message must name the address: {}",
            outcome.describe()
        );
    }
}

/// The program runs on, or it is ended with exit code 5 and a message.
fn held_or_ended(uri: &str) {
    if let Some(outcome) = with_store(uri, "four_threads", "64") {
        let said = outcome.stderr_text();
        assert!(
            !said.contains("FAILED"),
            "wrong bytes were handed out: {}",
            outcome.describe()
        );
        assert!(
            matches!(outcome.code(), Some(0 | DATA_LOST)),
            "expected success or exit 5: {}",
            outcome.describe()
        );
        assert!(
            outcome.code() == Some(0) || !said.trim().is_empty(),
            "exit 5 needs a message: {}",
            outcome.describe()
        );
    }
}

#[test]
fn full_for_a_while() {
    unnoticed("fault:put-full-after=500,put-full-count=20:ram:");
}

#[test]
fn writes_that_fail_for_a_while() {
    unnoticed("fault:put-fail-after=500,put-fail-count=20:ram:");
}

#[test]
fn a_temporary_failure_to_read() {
    unnoticed("fault:get-fail-after=500,get-fail-count=1,fail-kind=temporary:ram:");
}

#[test]
fn slow() {
    unnoticed("fault:put-delay-us=200,get-delay-us=100:ram:");
}

#[test]
fn full_for_ever() {
    held_or_ended("fault:put-full-after=300:ram:");
}

#[test]
fn smaller_than_the_program() {
    held_or_ended("ram:?max=8M");
}

#[test]
fn file_smaller_than_the_program() {
    held_or_ended(&format!("file:{}?max=8M", scratch().display()));
}

#[test]
fn writes_that_always_fail() {
    held_or_ended("fault:put-fail-after=300:ram:");
}

#[test]
fn reads_that_always_fail() {
    lost_loudly("fault:get-fail-after=300:ram:");
}

#[test]
fn reads_that_are_always_corrupt() {
    lost_loudly("fault:get-corrupt-after=300:ram:");
}

#[test]
fn reads_that_are_always_short() {
    lost_loudly("fault:get-short-after=300:ram:");
}

#[test]
fn reads_from_a_file_that_are_always_corrupt() {
    lost_loudly(&format!(
        "fault:get-corrupt-after=300:file:{}",
        scratch().display()
    ));
}

/// A forked child reads what its parent evicted: the same must hold there.
#[test]
fn a_child_never_reads_wrong_bytes() {
    for rule in ["get-corrupt-after=2000", "get-fail-after=2000"] {
        if let Some(outcome) = with_store(&format!("fault:{rule}:ram:"), "fork_verify", "32") {
            let said = outcome.stderr_text();
            assert!(
                !said.contains("is 0000000000000000"),
                "zeros were handed out: {}",
                outcome.describe()
            );
            assert!(
                !said.contains("the word at"),
                "wrong bytes were handed out: {}",
                outcome.describe()
            );
            assert_ne!(
                outcome.code(),
                Some(0),
                "every read fails, so this cannot succeed: {}",
                outcome.describe()
            );
        }
    }
}
