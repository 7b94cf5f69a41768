//! What a word of a command line may be, for completion.
use clap_complete::engine::CompletionCandidate;

use crate::bases::Bases;
use crate::governed::Governed;
use crate::runs;
use crate::text::printable;

/// Commands are shown up to so many characters.
const COMMAND_CHARS_MAX: usize = 60;

/// The governed processes, each with its command.
pub fn processes() -> Vec<CompletionCandidate> {
    let all = runs::all(&Bases::default());
    let candidate = |process: &Governed| {
        let command = printable(&process.reading.statistics.command);
        let command: String = command.chars().take(COMMAND_CHARS_MAX).collect();
        CompletionCandidate::new(process.pid.to_string()).help(Some(command.into()))
    };
    all.iter().map(candidate).collect()
}
