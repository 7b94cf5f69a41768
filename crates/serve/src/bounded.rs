//! Messages that anybody can cause at will: some in a time, then how many were left out, so that
//! who connects again and again fills no disk with a log.
use std::time::{Duration, Instant};

/// So many messages in such a time are told.
const TOLD_MAX: u32 = 200;
const WINDOW: Duration = Duration::from_secs(60);
/// Of what a message quotes from others there is this much, in characters.
const TEXT_MAX: usize = 400;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Bounded {
    since: Instant,
    told: u32,
    left_out: u64,
}

impl Bounded {
    /// Nothing was told yet.
    pub fn new(now: Instant) -> Bounded {
        Bounded {
            since: now,
            told: 0,
            left_out: 0,
        }
    }

    /// Has `say` told of `text`, as far as there is room for it `now`.
    pub fn tell(&mut self, now: Instant, text: &str, say: &dyn Fn(&str)) {
        if now.duration_since(self.since) >= WINDOW {
            self.end(say);
            *self = Bounded::new(now);
        }
        if self.told == TOLD_MAX {
            self.left_out += 1;
            return;
        }
        self.told += 1;
        match text.char_indices().nth(TEXT_MAX) {
            Some((end, _)) => say(&format!("{}...", &text[..end])),
            None => say(text),
        }
        if self.told == TOLD_MAX {
            say(&format!(
                "what more is refused within {} seconds is counted only",
                WINDOW.as_secs()
            ));
        }
    }

    /// Has `say` told how many were left out.
    pub fn end(&self, say: &dyn Fn(&str)) {
        if self.left_out > 0 {
            say(&format!("{} more were refused", self.left_out));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_flood_is_counted_and_long_texts_are_cut() {
        let said = RefCell::new(Vec::new());
        let say = |text: &str| said.borrow_mut().push(text.to_owned());
        let begun = Instant::now();
        let mut bounded = Bounded::new(begun);
        bounded.tell(begun, &"ä".repeat(TEXT_MAX + 1), &say);
        assert_eq!(said.borrow()[0], format!("{}...", "ä".repeat(TEXT_MAX)));
        for _ in 0..TOLD_MAX + 9 {
            bounded.tell(begun, "no", &say);
        }
        assert_eq!(said.borrow().len() as u32, TOLD_MAX + 1);
        bounded.tell(begun + WINDOW, "again", &say);
        bounded.end(&say);
        assert_eq!(
            said.borrow()[TOLD_MAX as usize + 1..],
            ["10 more were refused", "again"]
        );
    }
}
