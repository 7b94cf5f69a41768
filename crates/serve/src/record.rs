//! The order in which clients first waited for pages of the image, for a later start.
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use pagetide_track::{SnapshotId, WorkingSet};

use crate::bits::Bits;

/// Most pages recorded.
const PAGES_MAX: usize = 1 << 27;

/// See the module's text.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    image: SnapshotId,
    recorded: Mutex<Recorded>,
    /// Nothing more is recorded, and pages come as if nothing were.
    over: AtomicBool,
}

#[derive(Debug, Default)]
struct Recorded {
    seen: Bits,
    pages: Vec<u64>,
}

impl Recorder {
    /// Of an image of so many pages, to be saved at `path`.
    pub fn new(path: &Path, image: SnapshotId, pages: u64) -> Recorder {
        Recorder {
            path: path.to_owned(),
            image,
            recorded: Mutex::new(Recorded {
                seen: Bits::new(0..pages),
                pages: Vec::new(),
            }),
            over: AtomicBool::new(false),
        }
    }

    /// Ends the recording.
    pub fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// Whether it has not ended.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.over.load(Relaxed)
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded
            .lock()
            .unwrap_or_else(|held| held.into_inner())
    }

    /// Pages of the image were waited for, as one. What is beyond the image is not recorded.
    pub(crate) fn note(&self, first: u64, count: u64) {
        let mut recorded = self.recorded();
        for page in first..first + count {
            if recorded.seen.set(page, 1, true) > 0 && recorded.pages.len() < PAGES_MAX {
                recorded.pages.push(page);
            }
        }
    }

    /// Writes what was recorded so far; how many pages. The file appears when it is complete.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self) -> io::Result<usize> {
        let set = WorkingSet {
            snapshot: self.image,
            pages: self.recorded().pages.clone(),
        };
        set.save(&self.path)?;
        Ok(set.pages.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_recorded_once_in_order() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("set");
        let id = SnapshotId([7; 16]);
        let recorder = Recorder::new(&path, id, 200);
        for (first, count) in [(9, 1), (3, 2), (9, 1), (2, 3), (1000, 1)] {
            recorder.note(first, count);
        }
        assert_eq!(recorder.save().unwrap(), 4);
        assert_eq!(WorkingSet::load(&path, id).unwrap().pages, [9, 3, 4, 2]);
    }
}
