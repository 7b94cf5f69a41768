//! Pages that cannot be had, and clients that are left before all their pages are there.
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pagetide_kernel::{PageNumber, PageRange};
use rustix::io::Errno;

use super::{Client, End, LATER};
use crate::counters::count;
use crate::fill::Why;
use crate::install::{Failure, Put};
use crate::keeper::Holding;
use crate::memory::Area;
use crate::plan::OnLost;
use crate::source::SourceError;

/// Lost pages of a client that are told of one by one.
const LOST_TOLD: u64 = 8;
/// How long marking what is lost may wait for events, at the end.
const LEAVING_MAX: Duration = Duration::from_secs(4);
/// Everything.
const ALL: PageRange = PageRange {
    start: PageNumber(0),
    end: PageNumber(u64::MAX),
};

impl Client {
    /// Pages that nobody waits for cannot be had.
    pub(super) fn miss(
        &mut self,
        area: Area,
        why: Why,
        error: &SourceError,
        say: &dyn Fn(&str),
    ) -> Result<Option<Duration>, Failure> {
        let first = area.range.address();
        // Those that can be had are told from those that cannot.
        if area.range.pages() > area.unit && self.service.plan.until_whole {
            self.fill.halves_again(area, why);
            return Ok(Some(Duration::ZERO));
        }
        if self.service.plan.on_lost == OnLost::Poison {
            match self.installer.poison(area) {
                Ok(Put::Done) => {
                    count(&self.service.counters.lost_pages, area.unit);
                    self.tell_of_lost(first, error, say);
                    return Ok(Some(Duration::ZERO));
                }
                Ok(_) => {
                    self.fill.again(area, why);
                    self.wait_longer();
                    return Ok(Some(self.later));
                }
                Err(Failure::Gone) => return Err(Failure::Gone),
                Err(Failure::Lost(_)) => {}
            }
        }
        // It matters once somebody waits for it.
        if std::mem::replace(&mut self.whole, false) {
            say(&format!(
                "pages from {first:#x} on were not brought: {error}"
            ));
        }
        Ok(Some(Duration::ZERO))
    }

    /// Of many that are lost, the first are told of.
    fn tell_of_lost(&self, address: usize, why: &SourceError, say: &dyn Fn(&str)) {
        let lost = self.service.counters.lost_pages.load(Relaxed);
        if lost <= LOST_TOLD {
            say(&format!(
                "the page at {address:#x} is lost, whoever touches it gets SIGBUS: {why}"
            ));
        }
        if lost == LOST_TOLD {
            say("more lost pages are not told of");
        }
    }

    /// The end of all has come: a client that has all its pages goes on without anybody. Another
    /// would be left waiting at its next missing page, so pages are lost to it now.
    pub(super) fn leave(&mut self, say: &dyn Fn(&str)) -> End {
        self.share_no_more();
        self.release();
        let holding = self.holding.as_ref();
        if !self.released && holding.is_some_and(Holding::is_handing_over) {
            return End::Kept;
        }
        if self.released {
            self.hear_the_last();
        }
        if self.released || self.service.plan.on_lost == OnLost::Leave {
            return End::Told;
        }
        // It has executed another program since, perhaps, and misses nothing.
        if self.installer.is_gone() {
            return End::Gone;
        }
        match &self.owner {
            Some(owner) => match owner.peer.kill() {
                Ok(()) => End::Lost("it was killed, as not all of its pages are there".into()),
                // It has ended just now.
                Err(Errno::SRCH) => End::Gone,
                Err(errno) => {
                    say(&format!(
                        "it could not be killed ({errno}), and misses pages"
                    ));
                    End::Told
                }
            },
            None => self.poison_absent(),
        }
    }

    /// Reads what was raised before the client was let go of: whoever raised it waits for that, and
    /// nobody reads later.
    fn hear_the_last(&mut self) {
        let until = Instant::now() + LEAVING_MAX;
        while Instant::now() < until {
            let read = self.inbox.read(&mut self.installer);
            match read {
                Ok(0) if !self.installer.uffd().has_event_pending() => return,
                Ok(_) => std::thread::yield_now(),
                Err(_) => return,
            }
        }
    }

    /// Marks all pages that are not there as lost.
    fn poison_absent(&mut self) -> End {
        let until = Instant::now() + LEAVING_MAX;
        let mut lost = 0;
        while let Some(area) = self.installer.memory.absent_in(ALL, 512) {
            if Instant::now() > until {
                return End::Broken("it did not hold still at the end, and misses pages".into());
            }
            let _ = self.inbox.read(&mut self.installer);
            let put = match self.settle() {
                true => self.installer.poison(area),
                false => Ok(Put::Later),
            };
            match put {
                Ok(Put::Done) => lost += area.range.pages(),
                Ok(_) => std::thread::sleep(LATER),
                Err(Failure::Gone) => return End::Gone,
                Err(Failure::Lost(error)) => {
                    return End::Broken(format!("it misses pages, which will be zeros: {error}"));
                }
            }
        }
        count(&self.service.counters.lost_pages, lost);
        End::Lost(format!(
            "{lost} pages did not come; SIGBUS is what they give"
        ))
    }

    /// A page cannot be had. `Some`: the client's service is over.
    pub(super) fn lose(&mut self, why: &SourceError, say: &dyn Fn(&str)) -> Option<End> {
        let fault = self.inbox.faults.front().copied()?;
        let text = format!("the page at {:#x} is lost: {why}", fault.page.address());
        if self.service.plan.on_lost == OnLost::Poison
            && let Some(unit) = self.installer.memory.unit_of(fault.page)
        {
            match self.installer.poison(unit) {
                Ok(Put::Done) => {
                    self.inbox.faults.pop_front();
                    count(&self.service.counters.lost_pages, 1);
                    self.tell_of_lost(unit.range.address(), why, say);
                    return None;
                }
                // The fault stays, and is tried again.
                Ok(_) => {
                    std::thread::sleep(LATER);
                    return None;
                }
                Err(Failure::Gone) => return Some(End::Gone),
                Err(Failure::Lost(_)) => {}
            }
        }
        self.inbox.faults.pop_front();
        count(&self.service.counters.lost_pages, 1);
        self.whole = false;
        let Some(owner) = self
            .owner
            .as_ref()
            .filter(|_| self.service.plan.on_lost == OnLost::Kill)
        else {
            say(&format!("{text}; whoever waits for it is left waiting"));
            return None;
        };
        match owner.peer.kill() {
            Ok(()) => Some(End::Lost(format!("{text}; the client was killed"))),
            Err(errno) => {
                say(&format!("{text}; the client could not be killed ({errno})"));
                None
            }
        }
    }
}
