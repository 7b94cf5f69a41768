//! Programs that no agent is loaded into are named at the end, whatever started them, and no
//! others.
mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use support::compile::{compile_c, on_path, scratch};
use support::pagetide::{able_to_fork, binary, governed};
use support::process::{Outcome, run};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(120);
const SENTENCE: &str = "ran without the agent";
const CHILDREN: [&str; 14] = [
    "posix_spawn",
    "posix_spawnp",
    "system",
    "popen",
    "vfork+execve",
    "vfork+execvp",
    "vfork+execl",
    "vfork+bare-environment",
    "vfork+syscall",
    "vfork+at",
    "vfork+descriptor",
    "fork+execv",
    "fork+execvp",
    "fork+syscall",
];

/// Runs `test` with a program that takes no agent, where programs can be paged and fork.
fn with_static(name: &str, test: impl FnOnce(&Path)) {
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    match compile_c("programs", "exits", &["-static"]) {
        Err(error) => skipped(name, &format!("no static programs here: {error}")),
        Ok(program) => test(&program),
    }
}

fn dynamic() -> PathBuf {
    compile_c("programs", "exits", &[]).unwrap_or_else(|error| panic!("{error}"))
}

fn started(way: &str, count: u32, program: &Path) -> Outcome {
    let starts = compile_c("programs", "starts", &[]).unwrap_or_else(|error| panic!("{error}"));
    let mut command = governed(&["--resident", "4M"], starts);
    command.args([way, &count.to_string()]).arg(program);
    run(&mut command, LIMIT)
}

fn shell(script: &str) -> Outcome {
    let mut command = governed(&["--resident", "4M"], "dash");
    run(command.args(["-c", script]), LIMIT)
}

/// One sentence, that says of `program` why it had no agent.
#[track_caller]
fn expect_named(outcome: &Outcome, program: &Path) {
    let said = outcome.stderr_text();
    let lines: Vec<&str> = said.lines().filter(|l| l.contains(SENTENCE)).collect();
    assert_eq!(lines.len(), 1, "{}", outcome.describe());
    for part in [program.to_str().expect("printable"), "statically linked"] {
        assert!(lines[0].contains(part), "{part}: {}", outcome.describe());
    }
}

#[track_caller]
fn expect_nothing_said(outcome: &Outcome) {
    assert_eq!(outcome.stderr_text(), "", "{}", outcome.describe());
}

#[test]
fn a_static_program_is_named_whatever_started_it() {
    with_static("a_static_program_is_named_whatever_started_it", |program| {
        for way in CHILDREN.iter().chain(&["itself+execve", "itself+syscall"]) {
            let outcome = started(way, 1, program);
            outcome.expect_code(7);
            expect_named(&outcome, program);
            assert!(!outcome.stderr_text().contains("more"), "{way}");
        }
        let outcome = started("spawn-elsewhere", 1, program);
        outcome.expect_code(98);
        expect_named(&outcome, program);
    });
}

#[test]
fn a_program_that_takes_the_agent_is_not_named() {
    with_static("a_program_that_takes_the_agent_is_not_named", |_| {
        let program = dynamic();
        for way in CHILDREN.iter().chain(&["itself+execve", "itself+syscall"]) {
            let outcome = started(way, 1, &program);
            outcome.expect_code(7);
            expect_nothing_said(&outcome);
        }
    });
}

#[test]
fn a_program_that_could_not_be_executed_is_not_named() {
    with_static(
        "a_program_that_could_not_be_executed_is_not_named",
        |program| {
            for way in CHILDREN
                .iter()
                .filter(|way| !["system", "popen"].contains(way))
            {
                let outcome = started(way, 2, Path::new("/nonexistent/program"));
                outcome.expect_code(99);
                expect_nothing_said(&outcome);
            }
            // Found to be static, and then refused by the kernel.
            let copy = scratch().join("one-word-too-long");
            std::fs::copy(program, &copy).expect("it can be copied");
            let script = format!(
                "{} $(head -c 200000 /dev/zero | tr '\\0' x) 2>/dev/null; {} 7; exit $?",
                copy.display(),
                dynamic().display()
            );
            let outcome = shell(&script);
            outcome.expect_code(7);
            expect_nothing_said(&outcome);
        },
    );
}

#[test]
fn shells_and_python_are_seen_through() {
    with_static("shells_and_python_are_seen_through", |program| {
        let path = program.display();
        let outcome = shell(&format!("{path} 7; exit $?"));
        outcome.expect_code(7);
        expect_named(&outcome, program);
        // Through several layers, of which one is a script.
        let script = scratch().join("layer");
        std::fs::write(&script, format!("#!/bin/sh\n{path} 5; exit $?\n")).expect("written");
        let outcome = shell(&format!(
            "sh -c 'dash {} ; exit $?'; exit $?",
            script.display()
        ));
        outcome.expect_code(5);
        expect_named(&outcome, program);
        // A script whose interpreter is static.
        let script = scratch().join("script-of-static");
        std::fs::write(&script, format!("#!{path} 4\n")).expect("written");
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("its mode can be set");
        expect_named(&started("vfork+execve", 1, &script), program);
        // By its name alone.
        let folder = program.parent().expect("it is in a folder").display();
        let name = program.file_name().expect("it has a name");
        let outcome = shell(&format!(
            "PATH={folder}:$PATH; {} 7; exit $?",
            name.display()
        ));
        outcome.expect_code(7);
        expect_named(&outcome, program);
        if !on_path("python3") {
            return skipped("subprocess", "python3 is not installed");
        }
        let run_it =
            format!("import subprocess, sys; sys.exit(subprocess.run(['{path}', '7']).returncode)");
        let mut command = governed(&["--resident", "16M"], "python3");
        let outcome = run(command.args(["-c", &run_it]), LIMIT);
        outcome.expect_code(7);
        expect_named(&outcome, program);
    });
}

#[test]
fn many_starts_are_one_line() {
    with_static("many_starts_are_one_line", |program| {
        for way in ["vfork+execve", "posix_spawn"] {
            let outcome = started(way, 100, program);
            outcome.expect_code(7);
            expect_named(&outcome, program);
            outcome.expect_told("so did 99 more");
        }
        let quiet = ["--resident", "4M", "--quiet"];
        let mut command = governed(&quiet, "dash");
        let outcome = run(
            command.args(["-c", &format!("{} 3; true", program.display())]),
            LIMIT,
        );
        outcome.expect_code(0);
        expect_nothing_said(&outcome);
    });
}

/// What another launcher governs is its own to tell of; what dies before it has an agent is no
/// matter of static linking.
#[test]
fn what_another_launcher_governs_or_dies_at_once_is_not_named() {
    with_static(
        "what_another_launcher_governs_or_dies_at_once_is_not_named",
        |program| {
            let inner = binary().expect("there is a command");
            let outcome = shell(&format!(
                "{} run --resident 2M --quiet -- dash -c '{} 3; exit $?'; exit $?",
                inner.display(),
                program.display()
            ));
            outcome.expect_code(3);
            expect_nothing_said(&outcome);
            let killed = "for i in 1 2 3 4 5 6 7 8 9; do exec_it & kill -9 $!; done; wait; exit 0";
            let outcome = shell(&format!(
                "exec_it() {{ exec {} 0; }}; {killed}",
                dynamic().display()
            ));
            outcome.expect_code(0);
            expect_nothing_said(&outcome);
        },
    );
}

/// The dynamic linker loads nothing into it, also where the privileges are lesser ones.
#[test]
fn a_setuid_program_is_named() {
    use std::os::unix::fs::{PermissionsExt, chown};
    const NOBODY: u32 = 65534;
    let name = "a_setuid_program_is_named";
    with_static(name, |_| {
        if !rustix::process::geteuid().is_root() {
            return skipped(name, "gives a program to another user (needs root)");
        }
        let program = scratch().join("setuid-nobody");
        std::fs::copy(dynamic(), &program).expect("it can be copied");
        chown(&program, Some(NOBODY), None).expect("it can be given away");
        let mode = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&program, mode).expect("its mode can be set");
        };
        mode(0o4755);
        for way in ["vfork+execve", "posix_spawn", "fork+execv"] {
            let outcome = started(way, 1, &program);
            outcome.expect_code(7);
            outcome.expect_told(SENTENCE).expect_told("setuid");
        }
        mode(0o755);
        expect_nothing_said(&started("vfork+execve", 1, &program));
    });
}
