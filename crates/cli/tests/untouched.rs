//! What must be untouched by `pagetide run`: exit code, signals, standard streams, working
//! directory; and what it says when it cannot run.
mod support;

use std::process::Command;
use std::time::Duration;

use support::compile::{compile_c, scratch};
use support::pagetide::{able, able_to_fork, binary, copy_for_anybody, governed};
use support::patience::is_slow;
use support::process::{run, start};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(60);
const SMALL: [&str; 3] = ["--resident", "4M", "--quiet"];

/// Runs `test` unless this system cannot page.
fn where_able(name: &str, test: impl FnOnce()) {
    match able() {
        Ok(_) => test(),
        Err(reason) => skipped(name, &reason),
    }
}

/// Runs `test` unless this system cannot page programs that fork.
fn where_forking(name: &str, test: impl FnOnce()) {
    match able_to_fork() {
        Ok(_) => test(),
        Err(reason) => skipped(name, &reason),
    }
}

fn shell(script: &str) -> Command {
    let mut command = governed(&SMALL, "sh");
    command.args(["-c", script]);
    command
}

#[test]
fn exit_codes() {
    where_able("exit_codes", || {
        for code in [0, 1, 2, 3, 4, 5, 42, 127, 255] {
            run(&mut shell(&format!("exit {code}")), LIMIT).expect_code(code);
        }
    });
}

#[test]
fn signals_end_it_as_128_and_their_number() {
    where_able("signals_end_it_as_128_and_their_number", || {
        for signal in [1, 2, 3, 6, 9, 11, 13, 14, 15] {
            // Under nohup this test would inherit an ignored SIGHUP, and so would the shell.
            let killed = format!("env --default-signal sh -c 'kill -{signal} $$'");
            run(&mut shell(&format!("ulimit -c 0; exec {killed}")), LIMIT)
                .expect_code(128 + signal);
        }
    });
}

#[test]
fn a_signal_to_the_command_reaches_the_program() {
    where_able("a_signal_to_the_command_reaches_the_program", || {
        let mut command =
            shell("trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.1; done");
        let running = start(&mut command, b"");
        std::thread::sleep(Duration::from_secs(2));
        // The launcher alone, as a service manager would.
        let kill = format!("kill -TERM {}", running.pid());
        Command::new("sh")
            .args(["-c", &kill])
            .status()
            .expect("sh can be started");
        let outcome = running.finish(LIMIT);
        outcome.expect_code(9);
        assert_eq!(
            outcome.stdout_text(),
            "ready\ncaught\n",
            "{}",
            outcome.describe()
        );
    });
}

#[test]
fn standard_streams() {
    where_able("standard_streams", || {
        let bytes: Vec<u8> = (0..3_000_000u32)
            .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
            .collect();
        let outcome = start(&mut governed(&SMALL, "cat"), &bytes).finish(LIMIT);
        outcome.expect_code(0);
        assert!(
            outcome.stdout == bytes,
            "cat did not pass its input through"
        );
        assert!(outcome.stderr.is_empty(), "{}", outcome.describe());
        let outcome = run(&mut shell("echo to stderr >&2"), LIMIT);
        assert_eq!(
            (outcome.stdout_text(), outcome.stderr_text()),
            (String::new(), "to stderr\n".to_owned())
        );
    });
}

#[test]
fn working_directory_and_environment() {
    where_forking("working_directory_and_environment", || {
        let native = run(
            Command::new("sh")
                .args(["-c", "pwd; umask; ulimit -a; trap"])
                .current_dir("/usr"),
            LIMIT,
        );
        let paged = run(
            shell("pwd; umask; ulimit -a; trap").current_dir("/usr"),
            LIMIT,
        );
        assert_eq!(native.stdout_text(), paged.stdout_text());
        let outcome = run(
            shell("echo $MARK; env | grep -c ^MARK=").env("MARK", "kept as it is"),
            LIMIT,
        );
        assert_eq!(
            outcome.stdout_text(),
            "kept as it is\n1\n",
            "{}",
            outcome.describe()
        );
    });
}

#[test]
fn stats_are_one_object_a_process() {
    where_forking("stats_are_one_object_a_process", || {
        let program =
            compile_c("hazards", "fork_verify", &[]).unwrap_or_else(|error| panic!("{error}"));
        let mib = if is_slow() { "16" } else { "64" };
        let file = scratch().join("stats.json");
        let path = file.to_str().expect("a printable path");
        run(
            governed(&["--resident", "4M", "--stats", path], &program).arg(mib),
            LIMIT * 2,
        )
        .expect_code(0);
        let text = std::fs::read_to_string(&file).expect("--stats wrote its file");
        assert!(
            text.matches("\"pid\"").count() >= 3,
            "the program and its two children: {text}"
        );
        for field in "pid command budget_bytes resident_bytes_max managed_bytes_max store_bytes \
             store_bytes_max memory_bytes memory_bytes_max stall_seconds faults faults_waited faults_taken_back zero_faults zero_fills \
             fetches fetched_pages prefetched_pages \
             prefetch_hits block_pages pointer_pages evictions clean_drops writebacks same_filled \
             compression_ratio errors \
             fault_latency_ns mean p50 p90 p99 p999 max fault_thread_cpu_seconds \
             evictor_cpu_seconds wall_seconds"
            .split_whitespace()
        {
            assert!(
                text.contains(&format!("\"{field}\"")),
                "{field} is not in {text}"
            );
        }
    });
}

#[test]
fn wrong_use_is_exit_2() {
    let binary = match binary() {
        Ok(binary) => binary,
        Err(_) if std::env::var_os("PAGETIDE_TESTS_NATIVE").is_some() => {
            return skipped("wrong_use_is_exit_2", "native half only");
        }
        Err(error) => panic!("{error}"),
    };
    for words in [
        &["run"][..],
        &["run", "--resident", "many", "--", "true"],
        &["run", "--resident", "0", "--", "true"],
        &["dance"],
        &[],
    ] {
        let outcome = run(Command::new(&binary).args(words), LIMIT);
        outcome.expect_code(2);
        assert!(
            !outcome.stderr.is_empty(),
            "{words:?} must say what is wrong"
        );
    }
}

#[test]
fn a_store_that_cannot_be_opened_is_exit_4() {
    where_able("a_store_that_cannot_be_opened_is_exit_4", || {
        for uri in [
            "nowhere:",
            "file:/nonexistent/directory/pages",
            "ram:?max=many",
        ] {
            let outcome = run(
                &mut governed(&["--resident", "4M", "--store", uri], "true"),
                LIMIT,
            );
            outcome.expect_code(4);
            assert!(
                outcome
                    .stderr_text()
                    .contains(uri.split(':').next().unwrap_or_default()),
                "{}",
                outcome.describe()
            );
        }
    });
}

#[test]
fn a_program_that_cannot_be_paged_is_exit_3_and_named() {
    where_able(
        "a_program_that_cannot_be_paged_is_exit_3_and_named",
        || match compile_c("programs", "four_threads", &["-static"]) {
            Err(error) => skipped("static programs", &error),
            Ok(program) => {
                let outcome = run(governed(&["--resident", "4M"], &program).arg("1"), LIMIT);
                outcome.expect_code(3);
                assert!(
                    outcome.stderr_text().contains("static"),
                    "{}",
                    outcome.describe()
                );
            }
        },
    );
}

#[test]
fn a_static_program_in_a_script_is_told_of() {
    where_able("a_static_program_in_a_script_is_told_of", || {
        let program = match compile_c("programs", "four_threads", &["-static"]) {
            Err(error) => return skipped("static programs", &error),
            Ok(program) => program.display().to_string(),
        };
        let script = format!("exec {program} 1");
        let mut command = governed(&["--resident", "4M"], "sh");
        let outcome = run(command.args(["-c", &script]), LIMIT);
        outcome.expect_code(0);
        assert!(
            outcome.stderr_text().contains("statically linked"),
            "{}",
            outcome.describe()
        );
        let outcome = run(
            governed(&["--resident", "4M"], "sh")
                .args(["-c", "exec /nonexistent; true; exec true"]),
            LIMIT,
        );
        assert!(!outcome.stderr_text().contains("statically linked"));
    });
}

/// Run by somebody it would give privileges to: the loader puts no agent into it.
#[test]
fn a_setuid_program_is_exit_3_and_named() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    let name = "a_setuid_program_is_exit_3_and_named";
    where_able(name, || {
        if !rustix::process::geteuid().is_root() {
            return skipped(name, "makes a program setuid root (needs root)");
        }
        // Where anybody may read it.
        let directory = tempfile::tempdir().expect("a directory can be made");
        copy_for_anybody(directory.path());
        let program = directory.path().join("true");
        std::fs::copy("/bin/true", &program)
            .and_then(|_| {
                std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755))
            })
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let outcome = run(
            Command::new(directory.path().join("pagetide"))
                .args(["run", "--resident", "4M", "--"])
                .arg(&program)
                .uid(NOBODY)
                .gid(NOBODY),
            LIMIT,
        );
        outcome.expect_code(3);
        let said = outcome.stderr_text();
        assert!(
            said.contains("setuid") && said.contains(&program.display().to_string()),
            "{}",
            outcome.describe()
        );
    });
}

#[test]
fn a_missing_program_is_said_so() {
    where_able("a_missing_program_is_said_so", || {
        let outcome = run(&mut governed(&SMALL, "no-such-program-anywhere"), LIMIT);
        outcome.expect_code(127);
        assert!(
            outcome.stderr_text().contains("no-such-program-anywhere"),
            "{}",
            outcome.describe()
        );
    });
}

/// The inner command governs what it starts, with a budget of its own.
#[test]
fn a_run_inside_a_run_has_its_own_budget() {
    where_forking("a_run_inside_a_run_has_its_own_budget", || {
        let stats = scratch().join("nested.json");
        let mut command = governed(&["--resident", "8M", "--quiet"], "sh");
        command.args(["-c", "\"$@\"", "sh"]);
        command.arg(binary().expect("there is a command"));
        command.args(["run", "--quiet", "--resident", "2M", "--stats"]);
        command
            .arg(&stats)
            .args(["--", "sh", "-c", "seq 3000 | sort -n | tail -1; exit 7"]);
        let outcome = run(&mut command, LIMIT);
        outcome.expect_code(7);
        assert_eq!(outcome.stdout_text(), "3000\n", "{}", outcome.describe());
        let text = std::fs::read_to_string(&stats).expect("the inner run wrote its statistics");
        assert!(
            !text.is_empty()
                && text
                    .lines()
                    .all(|line| line.contains("\"run_budget_bytes\":2097152")),
            "{text}"
        );
    });
}

/// Whoever goes on when the program has ended is named, and marked in the statistics.
#[test]
fn a_daemon_is_named_at_the_end() {
    where_forking("a_daemon_is_named_at_the_end", || {
        let file = scratch().join(format!("daemon-{}.json", std::process::id()));
        let stats = file.to_str().expect("the path is UTF-8");
        // By then it is what it is to be.
        let daemon = "sleep 100 >/dev/null 2>&1 & echo $!; sleep 1";
        let options = ["--resident", "4M", "--stats", stats];
        let outcome = run(governed(&options, "sh").args(["-c", daemon]), LIMIT);
        outcome.expect_code(0);
        let pid = outcome.stdout_text().trim().to_owned();
        let _ = Command::new("kill").arg(&pid).status();
        outcome.expect_told(&format!(
            "process {pid} (sleep 100) goes on, and is governed"
        ));
        let text = std::fs::read_to_string(&file).expect("--stats wrote its file");
        for line in text.lines() {
            let is_daemon = line.contains("\"command\":\"sleep 100\"");
            let goes_on = line.contains("\"running\":true");
            assert_eq!(is_daemon, goes_on, "{text}");
        }
        let outcome = run(
            governed(&["--resident", "4M"], "sh").args(["-c", "true | cat"]),
            LIMIT,
        );
        assert!(
            !outcome.stderr_text().contains("goes on"),
            "{}",
            outcome.describe()
        );
    });
}

/// What the agent cannot live with is refused before the program starts, with the line that mends
/// it.
#[test]
fn limits_too_small_for_the_agent_are_exit_3_with_the_fix() {
    where_able(
        "limits_too_small_for_the_agent_are_exit_3_with_the_fix",
        || {
            let pagetide = binary().expect("there is a command");
            for limit in [
                "-v 100000",
                "-n 4",
                "-n 6",
                "-n 8",
                "-n 10",
                "-n 11",
                "-f 1",
            ] {
                let script = format!(
                    "ulimit {limit}; exec {} run --resident 4M -- echo ran",
                    pagetide.display()
                );
                let outcome = run(Command::new("bash").args(["-c", &script]), LIMIT);
                outcome.expect_code(3);
                let option = &limit[..2];
                assert!(
                    outcome.stdout.is_empty()
                        && outcome.stderr_text().contains(&format!("ulimit {option}")),
                    "{limit}: {}",
                    outcome.describe()
                );
                let told = outcome.stderr_text();
                assert!(
                    option != "-n" || !told.contains("userfaultfd") && !told.contains("space"),
                    "{told}"
                );
            }
        },
    );
}

/// Pagetide's own memory does not count as data: neither a limit from before nor one set by the
/// program is in the way.
#[test]
fn a_limit_on_data_is_the_programs_own() {
    where_forking("a_limit_on_data_is_the_programs_own", || {
        let pagetide = binary().expect("there is a command");
        let children = "(echo in a child) && echo through a pipe | cat && sh -c 'echo executed'";
        let within = format!("ulimit -d 65536; {children}");
        let before = format!(
            "ulimit -d 65536; exec {} run --resident 4M -- sh -c \"$1\"",
            pagetide.display()
        );
        let mut limited = Command::new("bash");
        limited.args(["-c", &before, "bash", children]);
        for command in [&mut shell(&within), &mut limited] {
            let outcome = run(command, LIMIT);
            outcome.expect_code(0);
            let said = (outcome.stdout_text(), outcome.stderr_text());
            let expected = "in a child\nthrough a pipe\nexecuted\n";
            assert_eq!(said, (expected.to_owned(), String::new()));
        }
    });
}

/// A descendant that sets itself such a limit runs all the same.
#[test]
fn a_descendant_that_cannot_be_governed_runs_without() {
    where_forking("a_descendant_that_cannot_be_governed_runs_without", || {
        let mut command = governed(&["--resident", "4M"], "bash");
        let outcome = run(
            command.args(["-c", "(ulimit -v 100000; exec /bin/echo ran); exit 4"]),
            LIMIT,
        );
        outcome.expect_code(4);
        assert_eq!(outcome.stdout_text(), "ran\n", "{}", outcome.describe());
        assert!(
            outcome.stderr_text().contains("was not governed"),
            "{}",
            outcome.describe()
        );
        // Too little for the ledger, not for the agent; and too little for the agent. What stands
        // in the way is put into words by a thread of the agent's, which must leave the C library's
        // locks as they were: `echo` takes one.
        for (limit, said) in [("-f 1", "in no statistics"), ("-n 8", "was not governed")] {
            let script = format!("(ulimit {limit}; exec /bin/echo ran); exit 4");
            let mut command = governed(&["--resident", "4M"], "bash");
            let outcome = run(command.args(["-c", &script]), LIMIT);
            outcome.expect_code(4);
            assert_eq!(outcome.stdout_text(), "ran\n", "{}", outcome.describe());
            let text = outcome.stderr_text();
            assert!(
                text.contains(said) && text.contains(&format!("`ulimit {}", &limit[..2])),
                "{}",
                outcome.describe()
            );
        }
    });
}

#[test]
fn a_file_that_is_no_agent_is_refused_before_the_program_starts() {
    where_able(
        "a_file_that_is_no_agent_is_refused_before_the_program_starts",
        || {
            let mut command = shell("echo ran");
            let outcome = run(command.env("PAGETIDE_AGENT", "/etc/passwd"), LIMIT);
            outcome.expect_code(3);
            assert!(
                outcome.stdout.is_empty() && outcome.stderr_text().contains("PAGETIDE_AGENT"),
                "{}",
                outcome.describe()
            );
        },
    );
}
