//! What was done: counted for each client, and for all.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one client, or of all.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        /// What [`Counters`] were at a moment.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// What they are now.
            pub fn read(&self) -> Counts {
                Counts {
                    $($name: self.$name.load(Relaxed),)*
                }
            }

            /// Adds what another has counted.
            pub fn add(&self, counts: &Counts) {
                $(self.$name.fetch_add(counts.$name, Relaxed);)*
            }
        }
    };
}

counters! {
    /// Faults on missing pages that were heard of.
    faults,
    /// Faults on write-protected pages, whose protection was ended.
    write_faults,
    /// Pages of 4 KiB installed for a thread that waited.
    fault_pages,
    /// Pages installed as neighbours of those.
    block_pages,
    /// Pages installed from the recorded working set.
    working_set_pages,
    /// Pages installed because all were to come.
    background_pages,
    /// Of those, pages installed by a second thread.
    second_pages,
    /// Faults on pages of the recorded working set, which were waited for before they came.
    working_set_faults,
    /// Of all pages installed, those that were zeros.
    zero_pages,
    /// Of all pages installed, those whose bytes were in the image's files.
    image_pages,
    /// Those whose bytes were in a store.
    store_pages,
    /// Those whose bytes came from a page server.
    page_server_pages,
    /// Pages of zeros for threads that waited where the image has nothing.
    beyond_pages,
    /// Pages that clients gave up.
    removed_pages,
    /// Pages that were there already when they were to be installed.
    present_pages,
    /// Faults put off because an event was under way.
    deferred,
    /// Pages that could not be had.
    lost_pages,
    /// Times that a client forked: the child is a client from then on.
    forks,
    /// Times that a client moved memory.
    moves,
}

/// Where the bytes of an installed page were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: they are zeros.
    Zeros,
    /// In the files of an image.
    Image,
    /// In a store.
    Store,
    /// At a page server.
    PageServer,
}

impl Counters {
    /// What counts the pages installed from `origin`.
    pub(crate) fn from(&self, origin: Origin) -> &AtomicU64 {
        match origin {
            Origin::Zeros => &self.zero_pages,
            Origin::Image => &self.image_pages,
            Origin::Store => &self.store_pages,
            Origin::PageServer => &self.page_server_pages,
        }
    }
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up() {
        let (one, all) = (Counters::default(), Counters::default());
        count(&one.faults, 3);
        all.add(&one.read());
        all.add(&one.read());
        assert_eq!(all.read().faults, 6);
    }
}
