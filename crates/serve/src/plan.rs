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
    /// These pages come before anything else that nobody waits for.
    pub working_set: Option<Arc<WorkingSet>>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            block_pages: 16,
            rate: Rate::default(),
            on_lost: OnLost::default(),
            working_set: None,
        }
    }
}
