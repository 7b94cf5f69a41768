//! How clients are served: what the user chooses.
use std::sync::Arc;

use pagetide_track::WorkingSet;

use crate::bits::Bits;

/// What is done with a client of which a page cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLost {
    /// It is ended with SIGKILL: whoever watches it sees that at once.
    #[default]
    Kill,
    /// The thread that waits for the page waits for ever; the others are served.
    Leave,
    /// Whoever touches the page gets SIGBUS (Linux 6.6; before that it is as `Leave`).
    Poison,
}

/// What a fault means where the client has told of no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Beyond {
    /// It told wrong: the page is lost.
    #[default]
    Lost,
    /// Zeros: it told of what is not zeros alone.
    Zeros,
}

/// How fast pages come that nobody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rate {
    /// They do not come.
    #[default]
    Never,
    /// At most so many bytes a second for each client, at least 1.
    BytesPerSecond(u64),
    /// As fast as can be.
    Unlimited,
}

/// A recorded working set.
#[derive(Debug)]
pub struct Replay {
    /// In their order.
    pages: Vec<u64>,
    members: Bits,
}

impl Replay {
    /// Of `set`, for an image of `image_pages` pages; others are left out.
    pub fn new(set: WorkingSet, image_pages: u64) -> Replay {
        let mut pages = set.pages;
        pages.retain(|page| *page < image_pages);
        let mut members = Bits::new(0..image_pages);
        for page in &pages {
            members.set(*page, 1, true);
        }
        Replay { pages, members }
    }

    /// Its pages, as they were first waited for.
    pub(crate) fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Whether `page` is one of them.
    pub(crate) fn has(&self, page: u64) -> bool {
        self.members.has(page)
    }
}

/// How clients are served.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Pages of 4 KiB that are brought together: of the aligned block that a faulting page is in,
    /// those that are not there come after it. 1: none.
    pub block_pages: u64,
    /// The rest of the image.
    pub rate: Rate,
    /// A page that is lost.
    pub on_lost: OnLost,
    /// A fault where there is no memory of the image.
    pub beyond: Beyond,
    /// A client that has all its pages is no client any more.
    pub until_whole: bool,
    /// These pages come before anything else that nobody waits for.
    pub replay: Option<Arc<Replay>>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            block_pages: 16,
            rate: Rate::default(),
            on_lost: OnLost::default(),
            beyond: Beyond::default(),
            until_whole: false,
            replay: None,
        }
    }
}
