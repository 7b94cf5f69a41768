//! What the commands print arrives whole, or they say that it did not.
mod support;

use std::process::Command;
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
