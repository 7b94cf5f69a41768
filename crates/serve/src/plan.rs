//! How clients are served: what the user chooses.
use std::sync::Arc;

use pagetide_track::WorkingSet;

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
    pub working_set: Option<Arc<WorkingSet>>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            block_pages: 16,
            rate: Rate::default(),
            on_lost: OnLost::default(),
            beyond: Beyond::default(),
            until_whole: false,
            working_set: None,
        }
    }
}
