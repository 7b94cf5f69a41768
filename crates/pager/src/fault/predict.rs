//! Whether a page that is read will be written next. Installing it writable then saves the second
//! fault of a read followed by a write; it costs a put at eviction if no write comes.

/// The share of all.
const ONE: u32 = 1 << 16;
/// The account is of about so many installs and writes. A program may read many pages before it
/// writes them all, as `a[places] += 1` does in numpy.
const MEMORY: u32 = 512;
/// Of the pages expected to be written, one in so many is protected all the same, and shows what is
/// true: often at first, seldom where nearly all of those were written.
const PROBE: (u32, u32) = (8, 32);

/// What the program does with the pages it fetches.
#[derive(Debug, Default)]
pub struct WritePredictor {
    predicted: u32,
    /// Of the protected installs of late and the writes to such pages, the share of the writes, in
    /// parts of [`ONE`]: a half where all are written, a third where one in two is.
    writes: u32,
}

impl WritePredictor {
    /// Whether to install a page writable on a read: it was written after its last fetch, or most
    /// pages are at the moment.
    pub fn expects_write(&mut self, rewritten: bool) -> bool {
        self.predicted = self.predicted.wrapping_add(1);
        let probe = match self.writes > ONE / 8 * 3 {
            true => PROBE.1,
            false => PROBE.0,
        };
        (rewritten || self.writes > ONE / 3) && !self.predicted.is_multiple_of(probe)
    }

    /// A page was installed write-protected.
    pub fn note_clean_install(&mut self) {
        self.writes -= self.writes / MEMORY;
    }

    /// Such a page was written.
    pub fn note_clean_write(&mut self) {
        self.writes += (ONE - self.writes) / MEMORY;
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
        fetch(&mut predictor, 4000, true);
        assert_eq!(fetch(&mut predictor, 3200, true), 3100);
        // What is read only is soon protected again.
        fetch(&mut predictor, 8000, false);
        assert_eq!(fetch(&mut predictor, 1000, false), 0);
    }

    #[test]
    fn pages_that_are_written_long_after_they_were_read_are_expected_to_be() {
        let (mut predictor, mut writable) = (WritePredictor::default(), 0);
        for _ in 0..4 {
            writable = 0;
            for _ in 0..10_000 {
                match predictor.expects_write(false) {
                    true => writable += 1,
                    false => predictor.note_clean_install(),
                }
            }
            (writable..10_000).for_each(|_| predictor.note_clean_write());
        }
        assert!(writable > 9000, "{writable} of 10000");
    }

    #[test]
    fn one_page_in_three_that_is_written_is_not_most() {
        let mut predictor = WritePredictor::default();
        let writable = (0..9000).map(|page| fetch(&mut predictor, 1, page % 3 == 0));
        assert_eq!(writable.sum::<u32>(), 0);
    }
}
