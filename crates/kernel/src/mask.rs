//! Kernel features treated as absent although the kernel has them, so that the ways that older
//! kernels take can be taken on any.
//!
//! A setting for tests: `PAGETIDE_MASK` holds names of [`NAMES`], separated by commas. It is read
//! once, before the first question to the kernel; whatever asks for a masked feature gets the
//! answer of a kernel that never had it.
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::uffd::feature;

/// The environment variable.
pub const VARIABLE: &str = "PAGETIDE_MASK";

/// What can be masked, with the kernel release that brought each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Masked {
    /// Threads as the target of `pidfd_open` (6.9).
    PidfdThread = 1 << 0,
    /// `/dev/userfaultfd` (6.1).
    Device = 1 << 1,
    /// `PAGEMAP_SCAN` (6.7).
    PagemapScan = 1 << 2,
    /// `process_madvise(MADV_DONTNEED)` on oneself (6.13).
    ProcessMadvise = 1 << 3,
    /// `UFFDIO_MOVE` (6.8).
    Move = 1 << 4,
    /// `UFFDIO_POISON` (6.6).
    Poison = 1 << 5,
    /// Write-protection that the kernel resolves itself (6.7).
    WpAsync = 1 << 6,
    /// Write-protection of pages that are not there (6.4).
    WpUnpopulated = 1 << 7,
    /// Read-write protection (7.3).
    Rwp = 1 << 8,
    /// That the kernel knows how many events are under way (5.15).
    EventCount = 1 << 9,
    /// Write-protection of shared memory, and of pages installed in read-only memory (5.19).
    WpShmem = 1 << 10,
}

/// Names in [`VARIABLE`], and what each masks.
pub const NAMES: [(&str, Masked); 11] = [
    ("pidfd-thread", Masked::PidfdThread),
    ("device", Masked::Device),
    ("pagemap-scan", Masked::PagemapScan),
    ("process-madvise", Masked::ProcessMadvise),
    ("move", Masked::Move),
    ("poison", Masked::Poison),
    ("wp-async", Masked::WpAsync),
    ("wp-unpopulated", Masked::WpUnpopulated),
    ("rwp", Masked::Rwp),
    ("event-count", Masked::EventCount),
    ("wp-shmem", Masked::WpShmem),
];

/// A set of masked features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mask(u32);

/// A word of [`VARIABLE`] that names no feature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{VARIABLE}: '{word}' is no feature that can be masked; those are {}",
    names()
)]
pub struct Unknown {
    /// The word.
    pub word: String,
}

fn names() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

impl Mask {
    /// Reads a list of names; empty words are passed over.
    pub fn parse(text: &str) -> Result<Mask, Unknown> {
        let mut words = text.split(',').map(str::trim).filter(|w| !w.is_empty());
        words.try_fold(Mask::default(), |mask, word| {
            let known = NAMES.iter().find(|(name, _)| *name == word);
            let (_, masked) = known.ok_or_else(|| Unknown { word: word.into() })?;
            Ok(Mask(mask.0 | *masked as u32))
        })
    }

    /// Whether `feature` is to be treated as absent.
    pub fn hides(self, feature: Masked) -> bool {
        self.0 & feature as u32 != 0
    }

    /// The names in it, separated by commas; empty for none.
    pub fn describe(self) -> String {
        let mut masked = NAMES.to_vec();
        masked.retain(|(_, feature)| self.hides(*feature));
        let names: Vec<&str> = masked.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }

    /// `features` as `UFFDIO_API` answers them, without the masked ones.
    pub(crate) fn uffd_features(self, features: u64) -> u64 {
        const BITS: [(Masked, u64); 6] = [
            (Masked::Move, feature::MOVE),
            (Masked::Poison, feature::POISON),
            (Masked::WpAsync, feature::WP_ASYNC),
            (Masked::WpUnpopulated, feature::WP_UNPOPULATED),
            (Masked::Rwp, feature::RWP | feature::RWP_ASYNC),
            (Masked::WpShmem, feature::WP_HUGETLBFS_SHMEM),
        ];
        let hidden = BITS.iter().filter(|(feature, _)| self.hides(*feature));
        features & !hidden.fold(0, |bits, (_, bit)| bits | bit)
    }
}

/// Not read from the environment yet.
const UNREAD: u32 = u32::MAX;
static IN_FORCE: AtomicU32 = AtomicU32::new(UNREAD);

/// The mask in force. The first call reads the environment, and allocates; [`read`] can be called
/// early for that. Words that name nothing are passed over here: whoever can refuse them asks
/// [`check_environment`].
pub fn in_force() -> Mask {
    match IN_FORCE.load(Ordering::Relaxed) {
        UNREAD => read(),
        bits => Mask(bits),
    }
}

/// Reads the environment, on a thread that may allocate. A child that is forked later keeps what
/// was read.
pub fn read() -> Mask {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    let words = text.split(',').filter_map(|word| Mask::parse(word).ok());
    let mask = Mask(words.fold(0, |bits, mask| bits | mask.0));
    IN_FORCE.store(mask.0, Ordering::Relaxed);
    mask
}

/// Whether every word of the environment variable names something.
///
/// # Errors
/// The first word that does not.
pub fn check_environment() -> Result<(), Unknown> {
    Mask::parse(&std::env::var(VARIABLE).unwrap_or_default()).map(drop)
}

/// `errno` if `feature` is masked: the answer of a kernel without it.
pub fn check(feature: Masked, errno: Errno) -> Result<(), Errno> {
    if in_force().hides(feature) {
        Err(errno)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_shown() {
        let mask = Mask::parse(" move, poison,,").unwrap();
        assert!(mask.hides(Masked::Move) && mask.hides(Masked::Poison));
        assert!(!mask.hides(Masked::Device));
        assert_eq!(mask.describe(), "move, poison");
        assert_eq!(Mask::parse(""), Ok(Mask::default()));
        assert_eq!(Mask::default().describe(), "");
        let said = Mask::parse("move,mov").unwrap_err().to_string();
        assert!(
            said.contains("'mov'") && said.contains("wp-async"),
            "{said}"
        );
    }

    #[test]
    fn every_name_masks_something_of_its_own() {
        let bits = NAMES.map(|(_, feature)| feature as u32);
        assert_eq!(bits.iter().fold(0, |all, bit| all ^ bit), 0x7FF);
        let all = Mask::parse(&names()).unwrap();
        let hidden = feature::MOVE | feature::POISON | feature::WP_ASYNC | feature::WP_UNPOPULATED;
        let hidden = hidden | feature::RWP | feature::RWP_ASYNC | feature::WP_HUGETLBFS_SHMEM;
        assert_eq!(all.uffd_features(u64::MAX), !hidden);
    }
}
