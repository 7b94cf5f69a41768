//! Whether a page that is read will be written next. Installing it writable then saves the second fault of a read followed by a write;
//! it costs a put at eviction if no write comes.
use super::word::{REWRITTEN, Word};

/// Clean installs after which the expectation is formed anew.
const SAMPLE: u32 = 64;
/// Of the pages expected to be written, one in so many is protected all the same, and shows what is true.
const PROBE: u32 = 8;

/// What the program does with the pages it fetches.
#[derive(Debug, Default)]
pub struct WritePredictor {
    predicted: u32,
    clean_installs: u32,
    clean_writes: u32,
    writes_expected: bool,
}

impl WritePredictor {
    /// Whether to install a page writable on a read: it was written after its last fetch, or most pages are at the moment.
    pub fn expects_write(&mut self, word: Word) -> bool {
        self.predicted = self.predicted.wrapping_add(1);
        (word.has(REWRITTEN) || self.writes_expected) && !self.predicted.is_multiple_of(PROBE)
    }

    /// A page was installed write-protected.
    pub fn note_clean_install(&mut self) {
        self.clean_installs += 1;
        if self.clean_installs >= SAMPLE {
            self.writes_expected = self.clean_writes * 2 > self.clean_installs;
            self.clean_installs = 0;
            self.clean_writes = 0;
        }
    }

    /// Such a page was written.
    pub fn note_clean_write(&mut self) {
        self.clean_writes += 1;
    }
}
