//! Hearing the terminal: its keys, and that it has gone away.
//!
//! Crossterm's own reader takes the end of a terminal for an input of nothing, and looks for more
//! for ever.
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

const ESCAPE: u8 = 0x1b;
/// More than anybody types between two looks; the rest is read at the next.
const READ_BYTES: usize = 256;

/// What came of listening.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// These keys; none when the time is over or a signal came.
    Keys(Vec<KeyEvent>),
    /// There is no terminal any more.
    Gone,
}

/// The keyboard, and the beginning of a sequence that has not come in full.
#[derive(Debug, Default)]
pub struct Keyboard {
    pending: Vec<u8>,
}

impl Keyboard {
    /// Waits at most `patience` for keys on stdin, which is a terminal in raw mode.
    pub fn listen(&mut self, patience: Duration) -> io::Result<Heard> {
        let stdin = rustix::stdio::stdin();
        let timeout = Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => return Ok(Heard::Keys(self.settle())),
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Heard::Keys(Vec::new())),
            Err(error) => return Err(error.into()),
        }
        let state = polled[0].revents();
        if state.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(Heard::Gone);
        }
        let mut bytes = [0; READ_BYTES];
        match rustix::io::read(stdin, &mut bytes) {
            // It may have gone since it was asked.
            Ok(0) | Err(Errno::IO) => Ok(Heard::Gone),
            Ok(count) => Ok(Heard::Keys(self.take(&bytes[..count]))),
            Err(Errno::INTR | Errno::AGAIN) => Ok(Heard::Keys(Vec::new())),
            Err(error) => Err(error.into()),
        }
    }

    /// The keys in `bytes`, after what came before them.
    fn take(&mut self, bytes: &[u8]) -> Vec<KeyEvent> {
        self.pending.extend_from_slice(bytes);
        let mut keys = Vec::new();
        let mut rest = &self.pending[..];
        while let Some((len, key)) = first_key(rest) {
            keys.extend(key);
            rest = &rest[len..];
        }
        self.pending = rest.to_vec();
        keys
    }

    /// Nothing followed: an escape by itself is the key, and what remains of a sequence is none.
    fn settle(&mut self) -> Vec<KeyEvent> {
        let alone = self.pending == [ESCAPE];
        self.pending.clear();
        if alone {
            vec![plain(KeyCode::Esc)]
        } else {
            Vec::new()
        }
    }
}

fn plain(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

/// How many bytes the first key has, and which it is if it is one of ours; `None` if it is not
/// complete.
fn first_key(bytes: &[u8]) -> Option<(usize, Option<KeyEvent>)> {
    let code = match bytes {
        [] | [ESCAPE] | [ESCAPE, b'O'] => return None,
        [ESCAPE, b'O', last, ..] => return Some((3, arrow(*last))),
        [ESCAPE, b'[', rest @ ..] => {
            // Parameters, then one byte that says what it is.
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte))?;
            return Some((end + 3, arrow(rest[end]).filter(|_| end == 0)));
        }
        // Two keys, or one with Alt, which counts as the key.
        [ESCAPE, ESCAPE, ..] => KeyCode::Esc,
        [ESCAPE, ..] => return Some((1, None)),
        [0x03, ..] => {
            let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
            return Some((1, Some(key)));
        }
        [b'\r' | b'\n', ..] => KeyCode::Enter,
        [0x08 | 0x7f, ..] => KeyCode::Backspace,
        [byte @ b' '..=b'~', ..] => KeyCode::Char(char::from(*byte)),
        _ => return Some((1, None)),
    };
    Some((1, Some(plain(code))))
}

fn arrow(last: u8) -> Option<KeyEvent> {
    match last {
        b'A' => Some(plain(KeyCode::Up)),
        b'B' => Some(plain(KeyCode::Down)),
        _ => None,
    }
}

/// Whether stdin and stdout are a terminal.
pub fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(keys: Vec<KeyEvent>) -> Vec<KeyCode> {
        keys.into_iter().map(|key| key.code).collect()
    }

    #[test]
    fn keys_are_told_apart_however_they_are_cut() {
        let typed = b"\x1b[A\x1bOBjl6\x7f\r\x1b[1;5A\x1b[3~+\xc3\xa9";
        let expected = [
            KeyCode::Up,
            KeyCode::Down,
            KeyCode::Char('j'),
            KeyCode::Char('l'),
            KeyCode::Char('6'),
            KeyCode::Backspace,
            KeyCode::Enter,
            KeyCode::Char('+'),
        ];
        assert_eq!(codes(Keyboard::default().take(typed)), expected);
        let mut keyboard = Keyboard::default();
        let one_by_one = typed.chunks(1).flat_map(|byte| keyboard.take(byte));
        assert_eq!(codes(one_by_one.collect()), expected);
    }

    #[test]
    fn an_escape_is_a_key_when_nothing_follows() {
        let mut keyboard = Keyboard::default();
        assert_eq!(keyboard.take(b"\x1b"), []);
        assert_eq!(codes(keyboard.settle()), [KeyCode::Esc]);
        assert_eq!(keyboard.settle(), []);
        assert_eq!(keyboard.take(b"\x1b["), []);
        assert_eq!(keyboard.settle(), []);
        assert_eq!(codes(keyboard.take(b"\x1bq")), [KeyCode::Char('q')]);
    }

    #[test]
    fn control_c_is_a_key_in_raw_mode() {
        let keys = Keyboard::default().take(b"\x03");
        assert_eq!(
            keys,
            [KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)]
        );
    }
}
