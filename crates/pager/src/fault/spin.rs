//! Whether looking on for the next fault, for a moment, is better than to sleep at once.
//!
//! Going to sleep and being woken costs about as much as looking on in vain does, so that is right
//! while at least every other look is not in vain (competitive spinning: Karlin, Li, Manasse and
//! Owicki, "Empirical studies of competitive spinning for a shared-memory multiprocessor", 1991).
//! It depends on the program: two threads that fault often, or one that computes between faults.

/// How long it is looked on.
const SPIN_NS: u64 = 8_000;
/// The share of all.
const ONE: u32 = 1 << 16;
/// The share is that of about so many looks.
const MEMORY: u32 = 16;
/// While it does not pay, one rest in so many begins with a look, which shows what is true now.
const TRIAL: u32 = 16;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Spin {
    /// Of the last looks, those that found a fault, in parts of [`ONE`].
    fruitful: u32,
    /// Times there was nothing to do.
    rests: u32,
    /// It has been looked on since the last work.
    looking: bool,
}

impl Spin {
    /// It is looked on, until that is seen not to pay.
    pub(super) fn new() -> Spin {
        Spin {
            fruitful: ONE,
            rests: 0,
            looking: false,
        }
    }

    /// There is nothing to do, and the last work was `idle_ns` ago. Whether to look again.
    pub(super) fn goes_on(&mut self, idle_ns: u64) -> bool {
        let soon = idle_ns < SPIN_NS;
        if soon && !self.looking {
            self.rests = self.rests.wrapping_add(1);
            self.looking = self.fruitful >= ONE / 2 || self.rests.is_multiple_of(TRIAL);
        }
        soon && self.looking
    }

    /// The thread goes to sleep.
    pub(super) fn sleeps(&mut self) {
        if self.looking {
            self.end(false);
        }
    }

    /// There was something to do.
    pub(super) fn found(&mut self) {
        if self.looking {
            self.end(true);
        }
    }

    fn end(&mut self, found: bool) {
        self.looking = false;
        let gained = if found { ONE / MEMORY } else { 0 };
        self.fruitful = self.fruitful - self.fruitful / MEMORY + gained;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks in `rests` rests, each ended by a fault after `ns`.
    fn looks(spin: &mut Spin, rests: u32, ns: u64) -> u32 {
        let mut looks = 0;
        for _ in 0..rests {
            let mut idle_ns = 0;
            while idle_ns < ns && spin.goes_on(idle_ns) {
                looks += 1;
                idle_ns += 1000;
            }
            match idle_ns >= ns {
                true => spin.found(),
                false => spin.sleeps(),
            }
        }
        looks
    }

    #[test]
    fn it_is_looked_on_while_that_pays() {
        let mut spin = Spin::new();
        assert_eq!(looks(&mut spin, 100, 5_000), 500);
        // Each look is in vain now: soon only trials are left.
        looks(&mut spin, 100, 1_000_000);
        assert_eq!(
            looks(&mut spin, 160, 1_000_000),
            10 * (SPIN_NS / 1000) as u32
        );
        // Faults come quickly again, which the trials show.
        looks(&mut spin, 1000, 5_000);
        assert_eq!(looks(&mut spin, 100, 5_000), 500);
    }
}
