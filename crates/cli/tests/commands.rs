//! The commands beside `run`, and the demonstration: how they end, and what they say.
mod support;

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use support::compile::{on_path, scratch};
use support::pagetide::{NO_FORK, able, binary, can_fork, governed, number};
use support::patience::up_to;
use support::process::{Outcome, Running, run, start};
use support::resident::family;
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(60);

fn said(words: &[&str]) -> Outcome {
    run(Command::new(binary().unwrap()).args(words), LIMIT)
}

/// Runs `test` unless this system cannot page.
fn where_able(name: &str, test: impl FnOnce()) {
    match able() {
        Ok(_) => test(),
        Err(reason) => skipped(name, &reason),
    }
}

/// `pagetide top` on a terminal of its own, which is in our hands.
struct Top {
    child: Child,
    terminal: File,
}

impl Top {
    /// Starts it and waits until it has the terminal.
    fn start() -> Top {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal: OwnedFd = openpt(flags).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let other_end = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NOCTTY.bits() as i32)
            .open(Path::new(std::ffi::OsStr::from_bytes(name.as_bytes())))
            .unwrap();
        let stdio = || Stdio::from(other_end.try_clone().unwrap());
        let child = Command::new(binary().unwrap())
            .arg("top")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        let mut terminal = File::from(terminal);
        let mut drawn = [0; 64];
        assert!(terminal.read(&mut drawn).unwrap() > 0);
        // So that it is past its start, and waits for keys.
        std::thread::sleep(Duration::from_millis(500));
        Top { child, terminal }
    }

    /// How it ended, which is to be soon.
    fn ended(child: &mut Child) -> ExitStatus {
        let begun = Instant::now();
        while begun.elapsed() < up_to(10) {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("top went on");
    }
}

#[test]
fn top_ends_when_its_terminal_goes_away() {
    let Top {
        mut child,
        terminal,
    } = Top::start();
    drop(terminal);
    assert!(Top::ended(&mut child).success());
}

#[test]
fn top_ends_at_a_key_and_at_a_signal() {
    let mut top = Top::start();
    top.terminal.write_all(b"jq").unwrap();
    assert!(Top::ended(&mut top.child).success());
    let mut top = Top::start();
    kill_process(Pid::from_child(&top.child), Signal::TERM).unwrap();
    assert!(Top::ended(&mut top.child).success());
}

#[test]
fn an_option_that_is_none_is_not_taken_for_the_program() {
    for (words, part) in [
        (
            &["run", "--residnet", "16M", "--", "true"][..],
            "--resident",
        ),
        (&["run", "--bogus", "--", "true"], "--bogus"),
        (&["run", "-r", "8M", "--", "true"], "-r"),
    ] {
        let outcome = said(words);
        outcome.expect_code(2);
        let told = outcome.stderr_text();
        assert!(told.contains(part), "{words:?}: {told}");
    }
    let outcome = said(&["run", "--", "--odd-name"]);
    outcome.expect_code(127);
    assert!(outcome.stderr_text().contains("--odd-name"));
}

#[test]
fn a_program_s_options_are_its_own() {
    where_able("a_program_s_options_are_its_own", || {
        let words = ["run", "-q", "echo", "-x", "--resident", "--", "--help"];
        let outcome = said(&words);
        outcome.expect_code(0);
        assert_eq!(outcome.stdout_text(), "-x --resident -- --help\n");
    });
}

#[test]
fn wrong_words_say_what_was_expected() {
    for (words, code, part) in [
        (&["stat", "abc"][..], 2, "a number such as 4711"),
        (&["stat", "99999999999"], 2, "a number such as 4711"),
        (&["limit", "abc", "64M"], 2, "a number such as 4711"),
        (&["stat", "1"], 1, "pagetide ps"),
        (&["store", "ping", "foo"], 4, "expected a remote store"),
        (&["store", "ping", "ram:"], 4, "no server to ask"),
        (
            &["store", "ping", "valkey://127.0.0.1:1"],
            4,
            "is the server running?",
        ),
        (
            &["store", "ping", "valkey+unix:///no/such"],
            4,
            "is the server running",
        ),
        (&["store", "bench", "file:/proc/none"], 4, "file:/var/tmp/"),
    ] {
        said(words).expect_code(code).expect_told(part);
    }
}

#[test]
fn every_command_s_help_has_its_exit_codes() {
    for words in [
        "run",
        "ps",
        "stat",
        "limit",
        "top",
        "doctor",
        "snapshot",
        "snapshot diff",
        "store",
        "store ping",
        "lock",
        "residency",
        "locks",
    ] {
        let mut words: Vec<&str> = words.split(' ').collect();
        words.push("--help");
        let outcome = said(&words);
        let help = outcome.expect_code(0).stdout_text();
        assert!(help.contains("Exit codes:"), "{words:?}: {help}");
    }
}

#[test]
fn outputs_of_a_run_have_files_of_their_own() {
    where_able("outputs_of_a_run_have_files_of_their_own", || {
        let path = scratch().join("both");
        let path = path.to_str().unwrap();
        let outcome = said(&["run", "--stats", path, "--plot", path, "--", "echo", "ran"]);
        outcome.expect_code(2);
        assert!(outcome.stderr_text().contains("the same file"));
        assert_eq!(outcome.stdout_text(), "");
    });
}

/// Asks until the run has a process, or says why not.
fn asked(words: &[&str], running: &mut Running, enough: impl Fn(&Outcome) -> bool) -> Outcome {
    let begun = Instant::now();
    loop {
        let outcome = said(words);
        if enough(&outcome) || begun.elapsed() > up_to(20) {
            return outcome;
        }
        assert!(running.is_running(), "{}", outcome.describe());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_launcher_s_process_id_stands_for_its_program() {
    where_able("the_launcher_s_process_id_stands_for_its_program", || {
        let mut one = start(governed(&["--resident", "4M"], "sleep").arg("60"), b"");
        let launcher = one.pid().to_string();
        let outcome = asked(&["stat", &launcher, "--json"], &mut one, |outcome| {
            outcome.code() == Some(0)
        });
        let text = outcome.expect_code(0).stdout_text();
        assert!(text.contains("sleep 60"), "{text}");
        assert_ne!(number(&text, "pid"), launcher.parse().ok());
        said(&["limit", &launcher, "2M"]).expect_code(0);

        if !can_fork() {
            return skipped("of several processes", NO_FORK);
        }
        let mut command = governed(&["--resident", "4M"], "sh");
        let mut two = start(command.args(["-c", "sleep 61 & sleep 62; true"]), b"");
        let launcher = two.pid().to_string();
        // The shell's own words name both.
        let outcome = asked(&["stat", &launcher], &mut two, |outcome| {
            let told = outcome.stdout_text();
            let named = |one: &str| told.matches(one).count();
            named("sleep 61") >= 2 && named("sleep 62") >= 2
        });
        let told = outcome.expect_code(0).stdout_text();
        assert!(
            told.starts_with(&format!("run {launcher}: ")) && told.contains("sleep 61"),
            "{told}"
        );
        // What they have together, and each of them below.
        for part in ["\nfaults ", "\nstalled ", "\u{251c} ", "\u{2514} "] {
            assert!(told.contains(part), "{part} is not in:\n{told}");
        }
        let listed = said(&["ps"]).stdout_text();
        let whole = format!("{launcher} ");
        let whole = listed
            .lines()
            .find(|line| line.trim_start().starts_with(&whole));
        assert!(
            whole.is_some_and(|line| line.ends_with(" processes")),
            "{listed}"
        );
        // What they need is told of all; programs that rest need nothing that could be told.
        let curve = ["stat", &launcher, "--curve", "--for", "1"];
        said(&curve)
            .expect_code(1)
            .expect_told("nothing is known yet of what they need");
        let told = said(&[&curve[..], &["--json"]].concat())
            .expect_code(0)
            .stdout_text();
        assert!(told.matches("\"need\":null").count() >= 2, "{told}");
    });
}

/// A stopped process answers nothing; the time it was given is what that takes.
/// What the scripts of `pagetide completions` are told of the last of some words, by line.
fn completed(words: &[&str]) -> String {
    let mut command = Command::new(binary().unwrap());
    command
        .env("PAGETIDE_COMPLETE", "fish")
        .arg("--")
        .args(words);
    let outcome = run(&mut command, LIMIT);
    outcome.expect_code(0);
    outcome.stdout_text()
}

#[test]
fn process_ids_are_completed_with_those_that_are_governed() {
    where_able(
        "process_ids_are_completed_with_those_that_are_governed",
        || {
            let mut running = start(governed(&["--resident", "16M"], "sleep").arg("63"), b"");
            let launcher = running.pid().to_string();
            let stat = asked(&["stat", &launcher, "--json"], &mut running, |outcome| {
                outcome.code() == Some(0)
            });
            let pid = number(&stat.stdout_text(), "pid").expect("a number") as u32;
            for command in ["stat", "limit"] {
                let told = completed(&["pagetide", command, ""]);
                let line = told.lines().find(|line| line.starts_with(&pid.to_string()));
                assert!(
                    line.is_some_and(|line| line.contains("sleep 63")),
                    "{command}: {told}"
                );
            }
            assert!(completed(&["pagetide", "run", "--me"]).contains("--memory"));
            assert!(!completed(&["pagetide", "metrics", ""]).contains(&pid.to_string()));
        },
    );
}

#[test]
fn completion_scripts_ask_the_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let outcome = said(&["completions", shell]);
        outcome.expect_code(0);
        assert!(
            outcome.stdout_text().contains("PAGETIDE_COMPLETE"),
            "{shell}"
        );
    }
    let mut command = Command::new(binary().unwrap());
    let unknown = run(
        command.env("PAGETIDE_COMPLETE", "csh").arg("--version"),
        LIMIT,
    );
    unknown.expect_code(1);
}

#[test]
fn a_limit_gives_up_in_time() {
    where_able("a_limit_gives_up_in_time", || {
        let mut running = start(governed(&["--resident", "4M"], "sleep").arg("60"), b"");
        let launcher = running.pid().to_string();
        let outcome = asked(&["stat", &launcher, "--json"], &mut running, |outcome| {
            outcome.code() == Some(0)
        });
        let pid = number(&outcome.stdout_text(), "pid").unwrap() as i32;
        kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
        let begun = Instant::now();
        let outcome = said(&["limit", &pid.to_string(), "2M", "--timeout", "0.5"]);
        assert!(begun.elapsed() < Duration::from_secs(2));
        outcome.expect_code(1);
        assert!(
            outcome.stderr_text().contains("kill -CONT"),
            "{}",
            outcome.describe()
        );
    });
}

#[test]
fn a_file_store_under_a_limit_on_file_sizes_is_told_so() {
    where_able(
        "a_file_store_under_a_limit_on_file_sizes_is_told_so",
        || {
            for (limit, code) in [(0, 3), (1, 3), (512, 4)] {
                let script = format!(
                    "ulimit -f {limit}; exec {} run --resident 4M --store file:{} -- echo ran",
                    binary().unwrap().display(),
                    scratch().display()
                );
                let outcome = run(Command::new("bash").args(["-c", &script]), LIMIT);
                outcome.expect_code(code);
                let told = outcome.stderr_text();
                assert!(
                    told.contains("RLIMIT_FSIZE") && told.contains("ulimit -f"),
                    "{limit}: {told}"
                );
                assert_eq!(outcome.stdout_text(), "");
            }
        },
    );
}

/// Nor is it killed where what it says has no room; and the program's own writes end it as ever.
#[test]
fn a_limit_on_file_sizes_kills_nobody_but_the_program() {
    where_able("a_limit_on_file_sizes_kills_nobody_but_the_program", || {
        let out = scratch().join("no-room");
        let file = format!("file:{}", scratch().display());
        let each = "ram: --per-process";
        for (limit, store, code) in [
            (0, &*file, 3),
            (100, "ram:", 3),
            (300, "ram:", 128 + 25),
            (100, each, 128 + 25),
        ] {
            let script = format!(
                "ulimit -c 0; ulimit -f {limit}; exec {} run --store {store} -- \
                 head -c 400000 /dev/zero >{out} 2>{out}",
                binary().unwrap().display(),
                out = out.display()
            );
            run(Command::new("bash").args(["-c", &script]), LIMIT).expect_code(code);
        }
    });
}

/// Interrupted while its program runs, the demonstration takes that with it: `finish` waits for
/// whoever holds its output.
#[test]
fn an_interrupted_demonstration_ends_its_program() {
    const NAME: &str = "an_interrupted_demonstration_ends_its_program";
    if !on_path("sqlite3") {
        return skipped(NAME, "sqlite3 is not installed");
    }
    where_able(NAME, || {
        if !binary().unwrap().with_file_name("pagetide-bench").exists() {
            return skipped(NAME, "pagetide-bench is not built");
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo.py");
        let mut command = Command::new("python3");
        command.arg(script).arg("--pagetide").arg(binary().unwrap());
        command.arg("--out").arg(scratch().join("demo"));
        let running = start(&mut command, b"");
        let begun = Instant::now();
        let works = |pid: u32| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|words| words.contains("items.sql"))
        };
        while !family(running.pid()).into_iter().any(works) {
            assert!(begun.elapsed() < LIMIT, "it did not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
        // It knows of its child a moment after that is there.
        std::thread::sleep(Duration::from_millis(300));
        let pid = Pid::from_raw(running.pid() as i32).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let outcome = running.finish(begun.elapsed() + Duration::from_secs(20));
        outcome.expect_code(130);
        assert!(
            !outcome.stderr_text().contains("Traceback"),
            "{}",
            outcome.describe()
        );
    });
}

#[test]
fn the_version_and_the_man_pages_are_there() {
    let version = said(&["-V"]).expect_code(0).stdout_text();
    let start = format!("pagetide {} (", env!("CARGO_PKG_VERSION"));
    assert!(
        version.starts_with(&start) && version.contains("features: "),
        "{version}"
    );
    let directory = tempfile::tempdir().unwrap();
    said(&["man", directory.path().to_str().unwrap()]).expect_code(0);
    for page in [
        "pagetide.1",
        "pagetide-run.1",
        "pagetide-limit.1",
        "pagetide-metrics.1",
    ] {
        let text = std::fs::read_to_string(directory.path().join(page)).expect(page);
        assert!(text.contains(".TH"), "{page}");
    }
    // One that is not there is made; where a page is, none can be.
    let new = directory.path().join("new/pages");
    said(&["man", new.to_str().unwrap()]).expect_code(0);
    assert!(new.join("pagetide.1").is_file());
    let taken = new.join("pagetide.1/pages");
    said(&["man", taken.to_str().unwrap()])
        .expect_code(1)
        .expect_told("pagetide.1/pages");
}
