//! `pagetide run --exec`: the command becomes the program, as service managers want it. And units
//! and manifests in `examples/` that use it (`examples.rs`).
mod activation;
mod examples;
mod run_directories;
#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::compile::{compile_c, scratch};
use support::pagetide::{able, able_to_fork, binary, can_poison, number};
use support::patience::{is_slow, up_to};
use support::process::{Running, run, start};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(60);

/// A directory that stands for `/run/user/N`, so that the runs of other tests are not seen.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    /// `None` where programs that fork cannot be paged.
    fn new(test: &str) -> Option<Place> {
        if let Err(reason) = able_to_fork() {
            skipped(test, &reason);
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory can be made");
        Some(Place { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `pagetide WORDS`.
    fn pagetide(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary().expect("there is a command"));
        command.args(words);
        command.env("XDG_RUNTIME_DIR", self.directory.path());
        command
    }

    /// `pagetide run --exec --resident 4M OPTIONS -- PROGRAM`.
    fn exec(&self, options: &[&str], program: &str) -> Command {
        let mut command = self.pagetide(&["run", "--exec", "--resident", "4M"]);
        command.args(options).args(["--", program]);
        command
    }

    /// A shell that runs `script`, in which `$pagetide` is the command.
    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", script]);
        command.env("pagetide", binary().expect("there is a command"));
        command.env("XDG_RUNTIME_DIR", self.directory.path());
        command
    }

    /// The run directories there are.
    fn runs(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("pagetide"));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }
}

fn compiled(name: &str, extra: &[&str]) -> PathBuf {
    compile_c("programs", name, extra).unwrap_or_else(|error| panic!("{error}"))
}

fn printable(path: &Path) -> &str {
    path.to_str().expect("a printable path")
}

/// Sends `signal` to the process that was started, and to no other.
fn signal(running: &Running, signal: &str) {
    let pid = running.pid().to_string();
    let sent = Command::new("kill").args(["-s", signal, &pid]).status();
    assert!(sent.expect("kill can be started").success());
}

fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + up_to(60);
    while !happened() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_program_is_the_process_that_the_command_was() {
    let Some(place) = Place::new("the_program_is_the_process_that_the_command_was") else {
        return;
    };
    let running = start(place.exec(&[], "sh").args(["-c", "echo $$; exit 42"]), b"");
    let pid = running.pid();
    let outcome = running.finish(LIMIT);
    outcome.expect_code(42);
    let said = (outcome.stdout_text(), outcome.stderr_text());
    assert_eq!(said, (format!("{pid}\n"), String::new()));
    // Under `run` without it, it is another one: this test can fail.
    let mut beside = place.pagetide(&["run", "--resident", "4M", "--", "sh", "-c", "echo $$"]);
    let running = start(&mut beside, b"");
    let pid = running.pid();
    assert_ne!(running.finish(LIMIT).stdout_text(), format!("{pid}\n"));
}

#[test]
fn exit_codes_and_signals_are_the_programs() {
    let Some(place) = Place::new("exit_codes_and_signals_are_the_programs") else {
        return;
    };
    for (script, code) in [
        ("exit 3", 3),
        ("exit 5", 5),
        ("kill -9 $$", 137),
        ("kill -15 $$", 143),
    ] {
        let outcome = run(place.exec(&[], "sh").args(["-c", script]), LIMIT);
        outcome.expect_code(code);
        assert_eq!(outcome.stderr_text(), "", "{}", outcome.describe());
    }
    let outcome = run(&mut place.exec(&[], "no-such-program-anywhere"), LIMIT);
    outcome
        .expect_code(127)
        .expect_told("no-such-program-anywhere");
    // What was ignored and blocked stays so: SIGXFSZ, which the command blocks for itself, too.
    let script = "trap '' PIPE; grep Sig[BI] /proc/self/status; \
                  $pagetide run --exec --resident 4M -- grep Sig[BI] /proc/self/status";
    let outcome = run(&mut place.shell(script), LIMIT);
    let text = outcome.stdout_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{}", outcome.describe());
    assert_eq!(lines[..2], lines[2..], "{}", outcome.describe());
}

#[test]
fn descriptors_keep_their_numbers_and_none_is_added() {
    let Some(place) = Place::new("descriptors_keep_their_numbers_and_none_is_added") else {
        return;
    };
    let listed = |how: &str| {
        let list =
            "for f in /proc/self/fd/*; do echo ${f##*/} $(readlink $f); done | grep -v /proc";
        let script = format!("exec 3</etc/passwd 7<>/dev/null; exec {how} bash -c '{list}'");
        let outcome = run(place.shell(&script).stdin(Stdio::null()), LIMIT);
        outcome.expect_code(0);
        // Pipes have other numbers each time.
        let text = outcome.stdout_text();
        let of = |line: &str| line.split(':').next().map(str::to_owned);
        text.lines().filter_map(of).collect::<Vec<_>>()
    };
    let native = listed("");
    assert!(
        native.iter().any(|line| line.starts_with("3 ")),
        "{native:?}"
    );
    assert_eq!(listed("$pagetide run --exec --resident 4M --"), native);
}

#[test]
fn a_signal_to_the_command_is_one_to_the_program() {
    let Some(place) = Place::new("a_signal_to_the_command_is_one_to_the_program") else {
        return;
    };
    let ready = place.path("ready");
    let script = "trap 'echo caught; exit 9' TERM; : >$READY; while :; do sleep 0.1; done";
    let mut command = place.exec(&[], "sh");
    command.args(["-c", script]).env("READY", &ready);
    let running = start(&mut command, b"");
    wait_until("the program is ready", || ready.exists());
    signal(&running, "TERM");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(9);
    assert_eq!(outcome.stdout_text(), "caught\n");
}

#[test]
fn a_program_that_forks_is_governed_as_ever() {
    let Some(place) = Place::new("a_program_that_forks_is_governed_as_ever") else {
        return;
    };
    let program = compile_c("hazards", "fork_verify", &[]);
    let program = program.unwrap_or_else(|error| panic!("{error}"));
    let mib = if is_slow() { "8" } else { "24" };
    let outcome = run(place.exec(&[], printable(&program)).arg(mib), LIMIT * 2);
    outcome.expect_code(0);
    assert_eq!(outcome.stderr_text(), "", "{}", outcome.describe());
}

#[test]
fn what_is_said_is_said_on_the_programs_stderr() {
    let Some(place) = Place::new("what_is_said_is_said_on_the_programs_stderr") else {
        return;
    };
    // A page that the store has lost.
    let mut command = place.exec(
        &["--store", "fault:get-corrupt-after=300:ram:"],
        printable(&four_threads()),
    );
    let outcome = run(command.args(["32", "12"]), LIMIT * 2);
    // Where the kernel cannot poison a page (before 6.6), its loss is a SIGKILL.
    let signal = if can_poison() { 7 } else { 9 };
    outcome
        .expect_code(128 + signal)
        .expect_told("pagetide: data were lost: page at 0x");
    // The program itself, which the agent cannot live in; and a descendant, which runs without.
    let mut limited =
        place.shell("ulimit -v 100000; exec $pagetide run --exec --resident 4M -- echo ran");
    let outcome = run(&mut limited, LIMIT);
    outcome.expect_code(3).expect_told("ulimit -v");
    assert_eq!(outcome.stdout_text(), "", "{}", outcome.describe());
    let mut command = place.exec(&[], "bash");
    let outcome = run(
        command.args(["-c", "(ulimit -v 100000; exec /bin/echo ran); exit 4"]),
        LIMIT,
    );
    outcome.expect_code(4).expect_told("is not governed");
    assert_eq!(outcome.stdout_text(), "ran\n", "{}", outcome.describe());
}

fn four_threads() -> PathBuf {
    compiled("four_threads", &[])
}

#[test]
fn what_needs_a_command_at_the_end_is_refused() {
    let name = "what_needs_a_command_at_the_end_is_refused";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let place = Place::new(name).expect("able");
    let file = scratch().join("never-written");
    for option in ["--stats", "--plot", "--trace"] {
        let outcome = run(
            place
                .exec(&[option, printable(&file)], "sh")
                .args(["-c", "echo ran"]),
            LIMIT,
        );
        outcome
            .expect_code(2)
            .expect_told(option)
            .expect_told("pagetide stat");
        assert!(
            outcome.stdout.is_empty() && !file.exists(),
            "{}",
            outcome.describe()
        );
    }
}

#[test]
fn a_locked_program_is_the_process_that_the_command_was() {
    let Some(place) = Place::new("a_locked_program_is_the_process_that_the_command_was") else {
        return;
    };
    let mut command = place.pagetide(&["run", "--exec", "--lock", "on-fault", "--"]);
    command.args(["sh", "-c", "echo $$; grep VmLck /proc/$$/status >&2"]);
    let running = start(&mut command, b"");
    let pid = running.pid();
    let outcome = running.finish(LIMIT);
    if outcome.code() == Some(3) {
        return skipped("run --exec --lock", &outcome.stderr_text());
    }
    outcome.expect_code(0);
    assert_eq!(outcome.stdout_text(), format!("{pid}\n"));
    let locked = number(
        &outcome.stderr_text().replace("VmLck:", "\"VmLck\":"),
        "VmLck",
    );
    assert!(locked > Some(0.0), "{}", outcome.describe());
}
