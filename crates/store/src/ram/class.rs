//! Size classes: how many bytes a blob is given, chosen so that few are wasted.

/// Bytes in a slab, the unit in which memory is taken from and given back to the system.
pub(crate) const SLAB: usize = 64 << 10;
/// Number of classes.
pub(crate) const CLASSES: usize = 2 + PACKED_MAX / STEP + 1;
/// The largest blob that counts as compressed: a page that does not shrink to three quarters is
/// kept plain, because unpacking it would cost more than the memory it saves is worth.
pub(crate) const PACKED_MAX: usize = 3072;
const STEP: usize = 64;
const PLAIN: usize = 4096;

/// A class by number. Classes 0 and 1 are 32 and 48 bytes, for pages that are almost all the same;
/// then steps of 64 bytes up to [`PACKED_MAX`] (2 % waste on a typical blob of 1.5 KiB); the last
/// is a whole page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(u8);

impl Class {
    /// The class of a blob of `len` bytes, at most a page.
    pub(crate) fn of(len: usize) -> Class {
        let number = match len {
            0..=32 => 0,
            33..=48 => 1,
            49..=PACKED_MAX => 1 + len.div_ceil(STEP),
            _ => CLASSES - 1,
        };
        Class(number as u8)
    }

    /// Its place in tables of [`CLASSES`] entries.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Bytes per blob: a multiple of 16.
    pub(crate) fn size(self) -> usize {
        match self.index() {
            0 => 32,
            1 => 48,
            number if number < CLASSES - 1 => (number - 1) * STEP,
            _ => PLAIN,
        }
    }

    /// Blobs per slab.
    pub(crate) fn capacity(self) -> u16 {
        (SLAB / self.size()) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_fits_its_class_tightly() {
        for len in 1..=PLAIN {
            let class = Class::of(len);
            assert!(class.index() < CLASSES);
            assert!(class.size() >= len, "{len}");
            assert!(class.size().is_multiple_of(16));
            if len <= PACKED_MAX {
                assert!(class.size() - len < STEP, "{len}");
            }
        }
        assert_eq!(Class::of(PLAIN).size(), PLAIN);
        assert_eq!(Class::of(PACKED_MAX).size(), PACKED_MAX);
        assert_eq!(Class::of(PACKED_MAX).index(), CLASSES - 2);
    }
}
