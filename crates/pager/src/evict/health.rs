//! How the store takes pages: when one that refuses is asked again, and when the program must be
//! ended.
use std::time::Duration;

/// How long the store may refuse every page while the program waits for room, before the program is
/// ended. Stated in docs/failure-modes.md.
pub const STALL_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a round in which it took none, doubling from the first to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(320));

/// What the evictor remembers of the store's answers.
#[derive(Debug)]
pub(super) struct StoreHealth {
    /// When the row of refusals began, as far as the program waited.
    refusing_since_ns: Option<u64>,
    /// It refused a page in the round under way.
    refused: bool,
    backoff: Duration,
    asked_again_at_ns: u64,
}

impl StoreHealth {
    /// Nothing is known against it.
    pub fn new() -> StoreHealth {
        StoreHealth {
            refusing_since_ns: None,
            refused: false,
            backoff: BACKOFF.0,
            asked_again_at_ns: 0,
        }
    }

    /// A round begins.
    pub fn begin_round(&mut self) {
        self.refused = false;
    }

    /// It took a page, so it does take pages; or nobody needs it to.
    pub fn note_well(&mut self) {
        self.refusing_since_ns = None;
        self.backoff = BACKOFF.0;
    }

    /// It refused a page while the program waited for room (`starving`) or not. Whether that has
    /// gone on for too long.
    pub fn note_refusal(&mut self, now_ns: u64, starving: bool) -> bool {
        self.refused = true;
        let since = *self.refusing_since_ns.get_or_insert(now_ns);
        if !starving {
            self.refusing_since_ns = Some(now_ns);
        }
        starving && now_ns - since > STALL_LIMIT.as_nanos() as u64
    }

    /// Whether it refused a page in this round.
    pub fn has_refused(&self) -> bool {
        self.refused
    }

    /// Nothing could be evicted because it refused: it is given time.
    pub fn back_off(&mut self, now_ns: u64) {
        self.asked_again_at_ns = now_ns + self.backoff.as_nanos() as u64;
        self.backoff = (self.backoff * 2).min(BACKOFF.1);
    }

    /// How long it is still given.
    pub fn pause(&self, now_ns: u64) -> Option<Duration> {
        let left = self.asked_again_at_ns.saturating_sub(now_ns);
        (left > 0).then(|| Duration::from_nanos(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_row_of_refusals_ends_after_the_limit() {
        let mut health = StoreHealth::new();
        assert!(!health.note_refusal(SECOND, true));
        assert!(!health.note_refusal(11 * SECOND, true));
        assert!(health.note_refusal(11 * SECOND + 1, true));
    }

    #[test]
    fn one_page_taken_begins_the_count_anew() {
        let mut health = StoreHealth::new();
        for second in 0..60 {
            assert!(!health.note_refusal(second * SECOND, true));
            if second % 5 == 0 {
                health.note_well();
            }
        }
    }

    #[test]
    fn time_in_which_nobody_waits_does_not_count() {
        let mut health = StoreHealth::new();
        for second in 0..60 {
            assert!(!health.note_refusal(second * SECOND, false));
        }
        assert!(!health.note_refusal(60 * SECOND, true));
        assert!(health.note_refusal(70 * SECOND, true));
    }

    #[test]
    fn it_is_asked_again_later_and_later() {
        let mut health = StoreHealth::new();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            health.back_off(SECOND);
            pauses.extend(health.pause(SECOND).map(|pause| pause.as_millis()));
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 320]);
        assert_eq!(health.pause(2 * SECOND), None);
        health.note_well();
        health.back_off(2 * SECOND);
        assert_eq!(health.pause(2 * SECOND), Some(BACKOFF.0));
    }
}
