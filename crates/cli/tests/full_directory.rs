//! A run whose directory's file system is full: nothing of what matters at the end is lost.
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::compile::{compile_c, on_path};
use support::pagetide::{able_to_fork, binary};
use support::process::{Outcome, run};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(120);
/// Fills the directory of runs; what the shell starts from then on has no room for a ledger.
const FILL: &str = "cat /dev/zero >\"$1/base/fill\" 2>/dev/null; cd \"$1\"";

/// Runs `outer` in a shell with mounts of its own, where `$1` is a directory with a small `base`
/// for runs and `inner`, a script, and `pagetide` is the command. Nothing where that cannot be.
fn in_small_base(name: &str, inner: &str, outer: &str) -> Option<(Outcome, tempfile::TempDir)> {
    let missing = || {
        let is_root = rustix::process::geteuid().is_root();
        let tools = ["unshare", "mount"].into_iter().find(|tool| !on_path(tool));
        let no_tool = tools.map(|tool| format!("there is no {tool} here"));
        no_tool.or((!is_root).then(|| "needs root".to_owned()))
    };
    if let Some(reason) = able_to_fork().err().or_else(missing) {
        skipped(name, &reason);
        return None;
    }
    let place = tempfile::tempdir().expect("a directory can be made");
    std::fs::create_dir(place.path().join("base")).expect("it is ours");
    std::fs::write(place.path().join("inner"), format!("{FILL}; {inner}")).expect("it is ours");
    let script = format!(
        "mount --make-rprivate / && mount -t tmpfs -o size=1M,mode=700 none \"$1/base\" || exit 99
         pagetide() {{ \"$0\" \"$@\"; }}
         {outer}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    command.arg(binary().expect("able() was asked first"));
    let outcome = run(command.arg(place.path()), LIMIT);
    if outcome.code() == Some(99) || outcome.stderr_text().contains("unshare failed") {
        skipped(name, "no mount of its own can be had");
        return None;
    }
    Some((outcome, place))
}

fn program(folder: &str, name: &str) -> PathBuf {
    compile_c(folder, name, &[]).unwrap_or_else(|error| panic!("{error}"))
}

fn read(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).unwrap_or_default()
}

#[test]
fn a_process_without_a_ledger_that_lost_a_page_makes_the_exit_code_5() {
    let name = "a_process_without_a_ledger_that_lost_a_page_makes_the_exit_code_5";
    let loses = program("programs", "four_threads");
    let inner = format!(
        "{} 32 12; ls \"$PAGETIDE_RUN_DIR\" >seen; true",
        loses.display()
    );
    let outer = "pagetide run --run-dir \"$1/base\" --resident 4M \
                 --store fault:get-corrupt-after=300:ram: -- sh \"$1/inner\" \"$1\"";
    let Some((outcome, place)) = in_small_base(name, &inner, outer) else {
        return;
    };
    outcome.expect_code(5);
    outcome.expect_told("data were lost: page at 0x");
    outcome.expect_told("was governed, but is in no statistics");
    let seen = read(place.path(), "seen");
    let ledgers = seen.lines().filter(|file| file.ends_with(".stats"));
    assert_eq!(ledgers.count(), 2, "of the shell and of cat: {seen}");
}

#[test]
fn a_process_without_a_ledger_is_listed_and_limited_and_keeps_the_directory() {
    let name = "a_process_without_a_ledger_is_listed_and_limited_and_keeps_the_directory";
    let worker = program("programs", "share_worker");
    // The worker goes on when the shell, and so the run, has ended.
    let inner = format!(
        "{} 8 idle \"$1/end\" >\"$1/out\" & echo $! >\"$1/pid.new\"; mv pid.new pid; \
         until [ -e listed ]; do sleep 0.05; done",
        worker.display()
    );
    let outer = "pagetide run --run-dir \"$1/base\" --resident 4M -- sh \"$1/inner\" \"$1\" &
         until [ -e \"$1/pid\" ]; do sleep 0.05; done
         pid=$(cat \"$1/pid\")
         for i in $(seq 200); do
             pagetide stat --run-dir \"$1/base\" $pid >\"$1/stat\"
             grep -q share_worker \"$1/stat\" && break
             sleep 0.05
         done
         pagetide ps --run-dir \"$1/base\" >\"$1/ps\"
         pagetide limit --run-dir \"$1/base\" $pid 2M
         touch \"$1/listed\"; wait; echo ended $? >&2
         pagetide ps --run-dir \"$1/base\" >\"$1/later\"; touch \"$1/end\"
         until [ -s \"$1/out\" ]; do sleep 0.05; done; cat \"$1/out\"";
    let Some((outcome, place)) = in_small_base(name, &inner, outer) else {
        return;
    };
    let pid = read(place.path(), "pid");
    let pid = pid.trim();
    for list in ["ps", "later"] {
        let text = read(place.path(), list);
        let listed = text
            .lines()
            .any(|line| line.split_whitespace().next() == Some(pid));
        assert!(listed, "{list}: {text}{}", outcome.describe());
    }
    assert!(read(place.path(), "stat").contains("share_worker"));
    outcome.expect_told(&format!("process {pid}: at most 2 MiB of the run's 4 MiB"));
    outcome.expect_told(&format!("process {pid} ("));
    outcome.expect_told("goes on, and is governed");
    assert!(outcome.stdout_text().contains("ok share_worker"));
}

#[test]
fn a_run_that_has_no_room_for_what_is_told_at_its_end_does_not_begin() {
    let name = "a_run_that_has_no_room_for_what_is_told_at_its_end_does_not_begin";
    let outer = "cat /dev/zero >\"$1/base/fill\" 2>/dev/null
         pagetide run --run-dir \"$1/base\" --per-process --resident 4M -- touch \"$1/ran\"
         code=$?; ls \"$1/base\"; exit $code";
    let Some((outcome, place)) = in_small_base(name, "", outer) else {
        return;
    };
    outcome.expect_code(3).expect_told("/lines: cannot be made");
    assert_eq!(outcome.stdout_text(), "fill\n");
    assert!(!place.path().join("ran").exists());
}
