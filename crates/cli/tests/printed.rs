//! What the commands print arrives whole, or they say that it did not.
mod support;

use std::fs::{File, OpenOptions};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use support::compile::on_path;
use support::pagetide::binary;
use support::process::run;
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(60);

/// How each shell is brought to complete `pagetide st`, a candidate a line. No terminal: what the
/// shells call is called as they call it.
const SHELLS: [(&str, &str); 3] = [
    (
        "bash",
        "eval \"$(pagetide completions bash)\"; COMP_WORDS=(pagetide st); COMP_CWORD=1; \
         COMP_TYPE=9; _clap_complete_pagetide pagetide st pagetide; \
         printf '%s\\n' \"${COMPREPLY[@]}\"",
    ),
    (
        "zsh",
        "compdef() { :; }; _describe() { print -rl -- ${(P)3}; }; \
         eval \"$(pagetide completions zsh)\"; words=(pagetide st); CURRENT=2; \
         _clap_dynamic_completer_pagetide",
    ),
    (
        "fish",
        "pagetide completions fish | source; complete -C 'pagetide st'",
    ),
];

/// The command's directory first, so that the scripts find it by its name.
fn with_path(shell: &str) -> Command {
    let mut folders = vec![binary().unwrap().parent().unwrap().to_owned()];
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    let mut command = Command::new(shell);
    command.env("PATH", std::env::join_paths(folders).unwrap());
    command
}

#[test]
fn every_shell_gets_every_candidate() {
    for (shell, script) in SHELLS {
        if !on_path(shell) {
            skipped(
                "every_shell_gets_every_candidate",
                &format!("{shell} is not installed"),
            );
            continue;
        }
        let outcome = run(with_path(shell).args(["-c", script]), LIMIT);
        let told = outcome.expect_code(0).stdout_text();
        let mut names: Vec<&str> = (told.lines())
            .filter_map(|line| line.split([':', '\t']).next())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["stat", "store"], "{shell}: {}", outcome.describe());
    }
}

/// `words` with stdout and stderr there: how it ended, and what it said if stderr is a pipe.
fn ended(words: &[&str], stdout: impl Into<Stdio>, stderr: Stdio) -> (ExitStatus, String) {
    let mut command = Command::new(binary().unwrap());
    // No runs of others: what there is to print does not depend on them.
    command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
    let child = command.args(words).stdout(stdout).stderr(stderr).spawn();
    let output = child.unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status, said)
}

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

#[test]
fn a_full_stdout_is_said_by_every_command() {
    let this = std::process::id().to_string();
    let cases: [(&[&str], i32); 18] = [
        (&["--help"], 1),
        (&["--version"], 1),
        (&["run", "--help"], 1),
        (&["ps"], 1),
        (&["ps", "--json"], 1),
        (&["ps", "--serving"], 1),
        (&["metrics", "--once"], 1),
        (&["doctor"], 4),
        (&["doctor", "--json"], 4),
        (&["man"], 1),
        (&["completions", "bash"], 1),
        (&["completions", "fish"], 1),
        (&["locks", &this], 1),
        (&["locks", "--json", &this], 1),
        (&["residency", "Cargo.toml"], 1),
        (&["residency", "--json", "Cargo.toml"], 1),
        (&["lock", "--for", "1ms", "Cargo.toml"], 1),
        (&["lock", "--daemon", "Cargo.toml"], 1),
    ];
    for (words, code) in cases {
        let (status, said) = ended(words, full(), Stdio::piped());
        assert_eq!(status.code(), Some(code), "{words:?}: {said}");
        assert!(
            said.contains("stdout cannot be written"),
            "{words:?}: {said}"
        );
    }
}

/// What cannot be told changes nothing.
#[test]
fn a_full_stderr_ends_nothing() {
    for (words, code) in [
        (&["ps"][..], 0),
        (&["stat", "1"], 1),
        (&["--bogus"], 2),
        (&["metrics", "--once", "--run-dir", "/no/such"], 2),
    ] {
        let (status, _) = ended(words, Stdio::null(), full().into());
        assert_eq!(status.code(), Some(code), "{words:?}");
    }
}
