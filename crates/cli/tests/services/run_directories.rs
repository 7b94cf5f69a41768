//! Where runs are kept and found, and when their directories go.
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::support::pagetide::binary;
use super::support::process::{run, start};
use super::{LIMIT, Place, compiled, wait_until};

/// Nobody is there to remove it when the last process ends: the next command does.
#[test]
fn the_run_directory_goes_with_the_next_command() {
    let Some(place) = Place::new("the_run_directory_goes_with_the_next_command") else {
        return;
    };
    let ready = place.path("ready");
    let script = "(echo $BASHPID >$READY; exec sleep 100) >/dev/null 2>&1 & sleep 0.1; exit 0";
    let mut command = place.exec(&[], "bash");
    command.args(["-c", script]).env("READY", &ready);
    let running = start(&mut command, b"");
    let name = format!("run-{}", running.pid());
    running.finish(LIMIT).expect_code(0);
    // A process that goes on keeps it.
    let daemon = || std::fs::read_to_string(&ready).unwrap_or_default();
    wait_until("the daemon has begun", || !daemon().is_empty());
    let daemon = daemon();
    let listed = run(&mut place.pagetide(&["ps"]), LIMIT);
    listed.expect_code(0);
    assert!(
        listed.stdout_text().contains(daemon.trim()),
        "{}",
        listed.describe()
    );
    assert_eq!(place.runs(), [name.as_str()]);
    let _ = Command::new("kill").arg(daemon.trim()).status();
    wait_until("the next command removes it", || {
        run(&mut place.pagetide(&["ps"]), LIMIT).expect_code(0);
        place.runs().is_empty()
    });
}

/// Between the command and the agent in the program nobody but a descriptor says that the run
/// lives.
#[test]
fn the_run_directory_stays_while_the_program_is_loaded() {
    let Some(place) = Place::new("the_run_directory_stays_while_the_program_is_loaded") else {
        return;
    };
    let library = compiled("slow_constructor", &["-shared", "-fPIC"]);
    let go = place.path("go");
    let mut command = place.exec(&[], "sh");
    command.args(["-c", "sort /etc/passwd >/dev/null; exit 5"]);
    command.env("LD_PRELOAD", library).env("SLOW_UNTIL", &go);
    let running = start(&mut command, b"");
    let waits = place.path("go.waits");
    wait_until("the program is being loaded", || waits.exists());
    run(&mut place.pagetide(&["ps"]), LIMIT).expect_code(0);
    assert_eq!(place.runs(), [format!("run-{}", running.pid())]);
    std::fs::write(&go, "").expect("it can be made");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(5);
    assert_eq!(outcome.stderr_text(), "", "{}", outcome.describe());
}

/// In a container that is started again, where each command is process 1.
#[test]
fn a_directory_left_by_an_earlier_process_of_that_number_is_in_nobodys_way() {
    let name = "a_directory_left_by_an_earlier_process_of_that_number_is_in_nobodys_way";
    let Some(place) = Place::new(name) else {
        return;
    };
    for option in ["", "--exec"] {
        let script = format!(
            "umask 077; mkdir -p $XDG_RUNTIME_DIR/pagetide/run-$$; \
             exec $pagetide run {option} --resident 4M -- sh -c 'exit 6'"
        );
        run(&mut place.shell(&script), LIMIT).expect_code(6);
    }
}

#[test]
fn runs_are_kept_and_found_where_it_is_said() {
    let Some(place) = Place::new("runs_are_kept_and_found_where_it_is_said") else {
        return;
    };
    let (here, elsewhere) = (place.path("here"), place.path("elsewhere"));
    for directory in [&here, &elsewhere] {
        std::fs::create_dir(directory).expect("it can be made");
    }
    let script = "echo $$; ls -d $1/run-*; $pagetide ps --json; $pagetide ps --json --run-dir $2";
    let option = format!("--run-dir={}", here.display());
    let ways: [(&[&str], &str, PathBuf); 3] = [
        (&[&option], "PAGETIDE_BASE_DIR", here.clone()),
        (&[], "PAGETIDE_BASE_DIR", here.clone()),
        (&[], "RUNTIME_DIRECTORY", here.join("pagetide")),
    ];
    std::fs::set_permissions(&here, PermissionsExt::from_mode(0o700)).expect("it is ours");
    for (options, variable, base) in ways {
        let mut command = place.pagetide(&["run", "--resident", "4M"]);
        command.args(options).args(["--", "sh", "-c", script, "sh"]);
        command.arg(&base).arg(&elsewhere);
        command.env("pagetide", binary().expect("there is a command"));
        command.env_remove("XDG_RUNTIME_DIR").env(variable, &here);
        let outcome = run(&mut command, LIMIT);
        outcome.expect_code(0);
        let told = outcome.stdout_text();
        let mut lines = told.lines();
        let pid = lines.next().expect("the shell's number");
        let run = lines.next().expect("a directory");
        assert!(run.starts_with(base.to_str().expect("a printable path")));
        let listed = lines.next().expect("those here");
        assert!(listed.contains(&format!("\"pid\":{pid},")), "{told}");
        assert_eq!(lines.next(), Some("[]"), "{told}");
    }
    std::fs::remove_dir(&elsewhere).expect("nothing is in it");
    let absent = format!("--run-dir={}", elsewhere.display());
    for arguments in [
        &["ps"][..],
        &["stat", "1"],
        &["limit", "1", "1M"],
        &["metrics", "--once"],
    ] {
        run(place.pagetide(arguments).arg(&absent), LIMIT)
            .expect_code(2)
            .expect_told("expected the directory that `pagetide run` was given with it");
    }
    let long = "x".repeat(80);
    let mut command = place.pagetide(&["run", "--run-dir", &long, "--", "true"]);
    run(&mut command, LIMIT)
        .expect_code(2)
        .expect_told("too many for the directory of runs; expected at most 76");
}

#[test]
fn a_run_that_is_refused_leaves_the_files_of_the_last_one() {
    let Some(place) = Place::new("a_run_that_is_refused_leaves_the_files_of_the_last_one") else {
        return;
    };
    let files = ["stats", "plot", "trace"].map(|option| (option, place.path(option)));
    let mut command = place.pagetide(&["run", "--resident", "4M"]);
    for (option, path) in &files {
        std::fs::write(path, "of the last run").expect("it can be made");
        command.arg(format!("--{option}={}", path.display()));
    }
    command
        .args(["--", "true"])
        .env("PAGETIDE_BASE_DIR", place.path("absent/too"));
    run(&mut command, LIMIT).expect_told("absent/too");
    for (option, path) in &files {
        let text = std::fs::read_to_string(path).expect("it is there");
        assert_eq!(text, "of the last run", "--{option}");
    }
}
