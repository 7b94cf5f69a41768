//! Whether a page that is read will be written next. Installing it writable then saves the second
//! fault of a read followed by a write; it costs a put at eviction if no write comes.

/// Clean installs after which the expectation is formed anew, while writes are not expected and
/// while they are.
const SAMPLE: (u32, u32) = (64, 16);
/// Of the pages expected to be written, one in so many is protected all the same, and shows what is
/// true: often at first, seldom once nearly all of those were written, time and again.
const PROBE: (u32, u32) = (8, 32);

/// What the program does with the pages it fetches.
#[derive(Debug)]
pub struct WritePredictor {
    predicted: u32,
    probe: u32,
    clean_installs: u32,
    clean_writes: u32,
    writes_expected: bool,
}

impl Default for WritePredictor {
    fn default() -> WritePredictor {
        WritePredictor {
            predicted: 0,
            probe: PROBE.0,
            clean_installs: 0,
            clean_writes: 0,
            writes_expected: false,
        }
    }
}

impl WritePredictor {
    /// Whether to install a page writable on a read: it was written after its last fetch, or most
    /// pages are at the moment.
    pub fn expects_write(&mut self, rewritten: bool) -> bool {
        self.predicted = self.predicted.wrapping_add(1);
        (rewritten || self.writes_expected) && !self.predicted.is_multiple_of(self.probe)
    }

    /// A page was installed write-protected.
    pub fn note_clean_install(&mut self) {
        self.clean_installs += 1;
        let sample = if self.writes_expected {
            SAMPLE.1
        } else {
            SAMPLE.0
        };
        if self.clean_installs >= sample {
            let confirmed =
                self.writes_expected && self.clean_writes * 8 >= self.clean_installs * 7;
            self.probe = match confirmed {
                true => (2 * self.probe).min(PROBE.1),
                false => PROBE.0,
            };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Fetches `pages` pages by reads, which are written next or not; returns how many were
    /// installed writable.
    fn fetch(predictor: &mut WritePredictor, pages: u32, written: bool) -> u32 {
        let mut writable = 0;
        for _ in 0..pages {
            if predictor.expects_write(false) {
                writable += 1;
                continue;
            }
            predictor.note_clean_install();
            if written {
                predictor.note_clean_write();
            }
        }
        writable
    }

    #[test]
    fn where_all_pages_are_written_few_are_protected_and_a_change_is_noticed() {
        let mut predictor = WritePredictor::default();
        assert_eq!(fetch(&mut predictor, 1000, false), 0);
        fetch(&mut predictor, 1000, true);
        assert!(fetch(&mut predictor, 3200, true) >= 3100);
        // What is read only is soon protected again.
        fetch(&mut predictor, 1200, false);
        assert_eq!(fetch(&mut predictor, 1000, false), 0);
    }
}
