//! Text of others.
use std::io::IsTerminal as _;

/// Text from a process, fit for a terminal: control characters are shown as `?`.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// The same for a message, which may have several lines.
pub fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// Text from a process, for the last column of a table: at most `most` characters where a person
/// looks at a terminal, and all of it where a program reads.
pub fn for_column(text: &str, most: usize) -> String {
    let most = match std::io::stdout().is_terminal() {
        true => most,
        false => usize::MAX,
    };
    printable(text).chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_s_text_cannot_drive_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a?[2Jb?c");
        assert_eq!(printable_lines("a\0b\n\x1bc"), "a?b\n?c");
    }
}
