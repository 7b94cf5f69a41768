//! When the store fails: what can be mended is, what cannot is said, and nothing ever reads as
//! zeros or as other bytes.
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

/// Kernel features that are taken to be absent.
#[derive(Clone, Copy)]
enum Kernel {
    /// None: the kernel as it is.
    AsItIs,
    /// Pages are evicted where they are, as before Linux 6.8.
    WithoutMove,
    /// And a page that is lost ends the process, as before Linux 6.6.
    WithoutMoveAndPoison,
}

impl Kernel {
    fn mask(self) -> &'static str {
        match self {
            Kernel::AsItIs => "",
            Kernel::WithoutMove => "move",
            Kernel::WithoutMoveAndPoison => "move,poison",
        }
    }
}

fn with_store(kernel: Kernel, uri: &str, program: &str, words: &str) -> Option<Outcome> {
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
    let mut command = governed(&["--resident", "4M", "--store", uri], path);
    command.env("PAGETIDE_MASK", kernel.mask());
    command.args(words.split(' '));
    Some(run(&mut command, LIMIT))
}

/// The program must not notice.
fn unnoticed(kernel: Kernel, uri: &str) {
    if let Some(outcome) = with_store(kernel, uri, "four_threads", "32") {
        outcome.expect_code(0);
    }
}

/// The program must end with a signal or exit code 5 and a message that names the page; never with
/// a wrong word. It runs for so long that its memory is governed before it is through, also on an
/// emulated processor.
fn lost_loudly(kernel: Kernel, uri: &str) {
    if let Some(outcome) = with_store(kernel, uri, "four_threads", "32 12") {
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
fn held_or_ended(kernel: Kernel, uri: &str) {
    if let Some(outcome) = with_store(kernel, uri, "four_threads", "64") {
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

/// The program waits for a page more than its budget, and is ended after the ten seconds that
/// docs/failure-modes.md states.
fn ended_in_time(kernel: Kernel, uri: &str) {
    if let Some(outcome) = with_store(kernel, uri, "four_threads", "64") {
        outcome
            .expect_code(DATA_LOST)
            .expect_told("has taken no page for 10 s while the program waited");
        let seconds = outcome.elapsed.as_secs_f64();
        assert!(
            (10.0..60.0).contains(&seconds),
            "ended after {seconds:.1} s: {}",
            outcome.describe()
        );
    }
}

fn in_file() -> String {
    scratch().display().to_string()
}

/// Each once as the kernel is, and once with pages evicted where they are.
macro_rules! either_way {
    ($($name:ident: $expected:ident($uri:expr);)*) => {
        $(#[test] fn $name() { $expected(Kernel::AsItIs, $uri) })*

        mod in_place {
            use super::*;
            $(#[test] fn $name() { $expected(Kernel::WithoutMove, $uri) })*
        }
    };
}

either_way! {
    full_for_a_while: unnoticed("fault:put-full-after=500,put-full-count=20:ram:");
    writes_that_fail_for_a_while: unnoticed("fault:put-fail-after=500,put-fail-count=20:ram:");
    a_temporary_failure_to_read:
        unnoticed("fault:get-fail-after=500,get-fail-count=1,fail-kind=temporary:ram:");
    full_for_ever: ended_in_time("fault:put-full-after=300:ram:");
    smaller_than_the_program: held_or_ended("ram:?max=8M");
    file_smaller_than_the_program: held_or_ended(&format!("file:{}?max=8M", in_file()));
    writes_that_always_fail: ended_in_time("fault:put-fail-after=300:ram:");
    reads_that_always_fail: lost_loudly("fault:get-fail-after=300:ram:");
    reads_that_are_always_corrupt: lost_loudly("fault:get-corrupt-after=300:ram:");
    reads_that_are_always_short: lost_loudly("fault:get-short-after=300:ram:");
    reads_from_a_file_that_are_always_corrupt:
        lost_loudly(&format!("fault:get-corrupt-after=300:file:{}", in_file()));
}

#[test]
fn slow() {
    let uri = "fault:put-delay-us=200,get-delay-us=100:ram:";
    unnoticed(Kernel::AsItIs, uri);
}

/// A store that takes some pages and refuses others takes pages: it may go on so for longer than it
/// may refuse them all.
#[test]
fn writes_that_fail_now_and_then_in_place() {
    let uri = "fault:put-fail-after=500,put-fail-every=4,put-delay-us=1000:ram:";
    if let Some(outcome) = with_store(Kernel::WithoutMove, uri, "four_threads", "32") {
        outcome.expect_code(0);
        let seconds = outcome.elapsed.as_secs_f64();
        assert!(
            seconds > 11.0,
            "{seconds:.1} s prove nothing: {}",
            outcome.describe()
        );
    }
}

/// Where no page can be poisoned the process is ended.
#[test]
fn reads_that_always_fail_without_poison() {
    let (kernel, uri) = (
        Kernel::WithoutMoveAndPoison,
        "fault:get-fail-after=300:ram:",
    );
    if let Some(outcome) = with_store(kernel, uri, "four_threads", "32") {
        outcome.expect_code(DATA_LOST);
    }
}

/// A forked child reads what its parent evicted: the same must hold there.
#[test]
fn a_child_never_reads_wrong_bytes() {
    for rule in ["get-corrupt-after=2000", "get-fail-after=2000"] {
        let uri = format!("fault:{rule}:ram:");
        if let Some(outcome) = with_store(Kernel::AsItIs, &uri, "fork_verify", "32") {
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
