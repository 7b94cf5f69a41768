//! `pagetide completions`, and the answers to what that prints: the scripts ask the command itself
//! whenever a command line is completed, as only that knows which processes are governed now.
use std::ffi::OsString;

use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::args::Arguments;
use crate::exit::{Exit, Failure};

/// Set by the scripts, to the shell's name, when they ask. Not `COMPLETE`, which others may set.
const VARIABLE: &str = "PAGETIDE_COMPLETE";
/// The command, as it is typed.
const NAME: &str = "pagetide";

/// Answers a script that asks, and the code to exit with; `None` if none does.
pub fn answer(words: impl Iterator<Item = OsString>) -> Option<u8> {
    let here = std::env::current_dir().ok();
    let asked = CompleteEnv::with_factory(Arguments::command).var(VARIABLE);
    let is_answered = match asked.try_complete(words, here.as_deref()) {
        Ok(false) => return None,
        // The last candidate has no line's end after it, which would have it written.
        Ok(true) => super::printed(Ok(())).is_ok(),
        Err(_) => false,
    };
    // Nothing is told: it would stand in the line that is being typed.
    Some(if is_answered { Exit::Ok } else { Exit::Failed }.code())
}

/// Prints the completion script for a shell.
pub fn completions(shell: Shell) -> Result<u8, Failure> {
    let script = script(shell).map_err(|error| {
        let text = format!("the script for {shell} cannot be made ({error})");
        Failure::new(Exit::Failed, text)
    })?;
    super::print(&script)?;
    Ok(Exit::Ok.code())
}

fn script(shell: Shell) -> std::io::Result<String> {
    let known = Shells::builtins();
    let name = shell.to_string();
    let completer = known
        .completer(&name)
        .ok_or(std::io::ErrorKind::Unsupported)?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, NAME, NAME, NAME, &mut script)?;
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Zsh {
        // Loaded when it is first needed: then there is something to complete already.
        script.push_str(
            "[[ $funcstack[1] == _pagetide ]] && _clap_dynamic_completer_pagetide \"$@\"\n",
        );
    }
    Ok(script)
}
