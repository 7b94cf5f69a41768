//! What nobody waits for: brought a little at a time, and shared with a second thread while nobody
//! waits for anything.
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Client, LATER, LATER_MAX};
use crate::counters::count;
use crate::fill::{Next, Why};
use crate::install::{Failure, Put, after};
use crate::memory::Area;
use crate::plan::Rate;
use crate::second::{Done, Second};

/// So long nobody has waited: a client that runs, and faults, needs the processor itself, and is
/// answered sooner by one thread that does little at a time.
const QUIET: Duration = Duration::from_millis(2);
/// Pages brought that nobody waits for, after which messages are looked for.
const LOOK_PAGES: u64 = 32;

impl Client {
    /// Brings some of what nobody waits for; how long there is nothing more to bring. `None`: until
    /// something happens.
    pub(super) fn bring_more(&mut self, say: &dyn Fn(&str)) -> Result<Option<Duration>, Failure> {
        let enough = self.installer.installed + LOOK_PAGES;
        // Pages of a working set come one by one: to look for messages after each would take as
        // long as they do.
        for _ in 1..LOOK_PAGES {
            let wait = self.bring_next(say)?;
            if wait != Some(Duration::ZERO) || self.installer.installed >= enough {
                return Ok(wait);
            }
        }
        Ok(Some(Duration::ZERO))
    }

    /// The same with what comes next.
    fn bring_next(&mut self, say: &dyn Fn(&str)) -> Result<Option<Duration>, Failure> {
        if self.recorder().is_some() || self.released || !self.has_begun() {
            return Ok(None);
        }
        let now = Instant::now();
        match self
            .fill
            .next(&self.installer.memory, &self.service.plan, now)
        {
            Next::At(when) => Ok(Some(when - now)),
            Next::Pages(area, Why::Background) if self.share(area, now) => Ok(Some(Duration::ZERO)),
            Next::Pages(area, why) => self.bring(area, why, say),
            Next::Done if self.hold_still() => Ok(Some(Duration::ZERO)),
            Next::Done => {
                self.share_no_more();
                self.release_if_whole();
                Ok(None)
            }
        }
    }

    fn bring(
        &mut self,
        area: Area,
        why: Why,
        say: &dyn Fn(&str),
    ) -> Result<Option<Duration>, Failure> {
        let counters = Arc::clone(&self.service.counters);
        let counter = match why {
            Why::Block => &counters.block_pages,
            Why::WorkingSet => &counters.working_set_pages,
            Why::Background => &counters.background_pages,
        };
        let before = self.installer.installed;
        let put = self.installer.put(area);
        count(counter, self.installer.installed - before);
        match put {
            Ok(Put::Done) => {
                self.later = LATER;
                Ok(Some(Duration::ZERO))
            }
            Ok(Put::Later) => {
                self.fill.again(area, why);
                self.wait_longer();
                Ok(Some(self.later))
            }
            Ok(Put::NoMemory) => {
                self.fill.again(area, why);
                Ok(Some(LATER_MAX))
            }
            Err(Failure::Lost(error)) => self.miss(area, why, &error, say),
            Err(gone) => Err(gone),
        }
    }

    /// Gives `area`, of the background, to the second thread; false if this one is to bring it.
    fn share(&mut self, area: Area, now: Instant) -> bool {
        // A huge page is one copy, which would have to be waited for.
        if self.service.plan.rate != Rate::Unlimited || area.unit > 1 {
            return false;
        }
        // What was taken back is done by this thread first: both come to an end then.
        if std::mem::take(&mut self.own_turn) || now.duration_since(self.waited_for) < QUIET {
            return false;
        }
        if self.second.is_none() && !self.alone {
            self.second = Second::start(self.installer.hand.another());
            self.alone = self.second.is_none();
        }
        let Some(second) = &self.second else {
            return false;
        };
        let given = second.give(area);
        let done = second.done();
        self.note_shared(done);
        given
    }

    /// Has the second thread hold still; whether it had anything.
    pub(super) fn hold_still(&mut self) -> bool {
        let Some(second) = &self.second else {
            return false;
        };
        let (waiting, done) = second.recall();
        let had = !waiting.is_empty() || !done.is_empty();
        self.own_turn = !waiting.is_empty();
        waiting.iter().for_each(|area| self.fill.bring_back(*area));
        self.note_shared(done);
        had
    }

    /// Ends the second thread, which has nothing to do any more.
    pub(super) fn share_no_more(&mut self) {
        self.hold_still();
        self.second = None;
    }

    fn note_shared(&mut self, done: Vec<Done>) {
        for Done { area, parts } in done {
            let mut rest = area;
            for (pages, origin) in parts {
                self.installer.note(rest, pages, origin);
                count(&self.service.counters.background_pages, pages);
                count(&self.service.counters.second_pages, pages);
                rest = after(rest, pages);
            }
            if !rest.range.is_empty() {
                self.fill.bring_back(rest);
            }
        }
    }
}
