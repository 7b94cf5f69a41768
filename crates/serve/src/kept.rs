//! What is known of a client's pages, in a file in memory that outlives this process where somebody
//! keeps its descriptor.
//!
//! It has the client's areas, the two bits of each page, and whether events are being heard: that
//! is noted before the userfaultfd is read, and taken back once all that was read is in the bits.
//! An event that is read is heard of by nobody else. So if this process ends in between, it is
//! known that something may be missing, and if it ends at any other moment, that nothing is: what a
//! client gave up is in the bits, whatever was still unread is read by who takes over, and a page
//! of which nothing was noted is brought again, which the kernel refuses if it is there.
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use pagetide_kernel::{PageNumber, PageRange};
use pagetide_track::SnapshotId;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;

use crate::area::Area;
use crate::words::{Hearing, Part, parts};

/// What follows the word that tells whether events are being heard; another layout has another
/// number.
const MAGIC: u64 = u64::from_le_bytes(*b"PTSERVE1");
/// Words before the areas, with that one: the magic, the image's id (two), its pages, how many
/// areas, the lowest page with bits, and how many words of bits there are of a kind.
const HEAD: usize = 8;
/// Words of an area.
const AREA: usize = 4;
/// Its size does not change: reading it raises no SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// What a file has.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The client's memory when it came.
    pub areas: Vec<Area>,
    /// The lowest page with bits.
    pub base: u64,
    /// The bits of pages that are placed, and of those that were given up.
    pub placed: Part,
    pub removed: Part,
    pub hearing: Hearing,
}

/// Which image a client is served from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Of {
    pub id: SnapshotId,
    pub pages: u64,
}

impl Kept {
    /// A new file for a client with `areas`, whose pages of the image are within `bounds`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(
        areas: Vec<Area>,
        bounds: std::ops::Range<u64>,
        of: Of,
    ) -> Result<(OwnedFd, Kept), Errno> {
        let bits = (bounds.end - bounds.start).div_ceil(64) as usize;
        let lens = [HEAD - 1, AREA * areas.len(), bits, bits];
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(c"pagetide-client", flags)?;
        ftruncate(&file, (1 + lens.iter().sum::<usize>()) as u64 * 8)?;
        fcntl_add_seals(&file, SEALS)?;
        let ([mut head, mut told, placed, removed], hearing) = parts(&file, lens)?;
        let (low, high) = id_words(of.id);
        let (count, base) = (areas.len() as u64, bounds.start);
        head.copy_from_slice(&[MAGIC, low, high, of.pages, count, base, bits as u64]);
        for (area, words) in areas.iter().zip(told.chunks_exact_mut(AREA)) {
            let range = area.range;
            words.copy_from_slice(&[range.start.0, range.pages(), area.first, area.unit]);
        }
        let kept = Kept {
            areas,
            base,
            placed,
            removed,
            hearing,
        };
        Ok((file, kept))
    }

    /// Reads what an earlier process wrote, for the same image.
    ///
    /// # Errors
    /// What is wrong: also that it ended while it was hearing events.
    pub fn open(file: OwnedFd, of: Of) -> Result<Kept, String> {
        let told = |errno: Errno| format!("what is known of its pages cannot be read: {errno}");
        let other = || "what is known of its pages is not of this version".to_owned();
        let seals = fcntl_get_seals(&file).map_err(told)?;
        let file = File::from(file);
        let len = file.metadata().map_or(0, |meta| meta.len());
        let mut head = [0; HEAD * 8];
        let read = file.read_exact_at(&mut head, 0);
        if !seals.contains(SEALS) || !len.is_multiple_of(8) || read.is_err() {
            return Err(other());
        }
        let (words, _) = head.as_chunks::<8>();
        let words = std::array::from_fn(|at| u64::from_ne_bytes(words[at]));
        let [hearing, magic, low, high, pages, count, base, bits]: [u64; HEAD] = words;
        let needed = (count.checked_mul(AREA as u64))
            .zip(bits.checked_mul(2))
            .and_then(|(areas, bits)| areas.checked_add(bits)?.checked_add(HEAD as u64));
        if magic != MAGIC || needed != Some(len / 8) {
            return Err(other());
        }
        if (low, high) != id_words(of.id) || pages != of.pages {
            return Err("it was served from another image".to_owned());
        }
        if hearing != 0 {
            let text = "the command was ended just as it heard of memory that was given up, or may \
                        have been: which is not known";
            return Err(text.to_owned());
        }
        let lens = [
            HEAD - 1,
            AREA * count as usize,
            bits as usize,
            bits as usize,
        ];
        let ([_, areas, placed, removed], hearing) = parts(&file, lens).map_err(told)?;
        let areas = areas.chunks_exact(AREA).map(|words| Area {
            range: PageRange::of(PageNumber(words[0]), words[1]),
            first: words[2],
            unit: words[3],
        });
        Ok(Kept {
            areas: areas.collect(),
            base,
            placed,
            removed,
            hearing,
        })
    }
}

fn id_words(id: SnapshotId) -> (u64, u64) {
    let number = u128::from_le_bytes(id.0);
    (number as u64, (number >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    const OF: Of = Of {
        id: SnapshotId([7; 16]),
        pages: 500,
    };

    fn areas() -> Vec<Area> {
        let area = |start, first| Area {
            range: PageRange::of(PageNumber(start), 100),
            first,
            unit: 1,
        };
        vec![area(1000, 40), area(3000, 300)]
    }

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange::of(PageNumber(start), pages)
    }

    #[test]
    fn what_was_known_is_known_to_who_takes_over() {
        let (file, mut memory) = Memory::keeping(areas(), OF).unwrap();
        let copy = || file.try_clone().unwrap();
        memory.note_placed(40, 10);
        memory.remove(range(1005, 10));
        memory.unmap(range(3000, 50));
        memory.begin_hearing();
        memory.end_hearing();
        let mut later = Memory::kept(Kept::open(copy(), OF).unwrap());
        assert_eq!(later.areas(), areas());
        assert_eq!(later.alike(40, 9), (false, 5));
        assert_eq!(later.alike(45, 60), (true, 10));
        // What was unmapped is not brought again.
        assert_eq!(later.alike(300, 100), (true, 50));
        assert_eq!(later.absent_in(range(0, 9000), 1).unwrap().first, 55);
        // They are the same bits; a copy's are its own.
        let mut child = memory.clone();
        child.remove(range(1020, 1));
        assert!(!later.is_removed(60));
        later.remove(range(1030, 1));
        assert!(memory.is_removed(70));
    }

    #[test]
    fn what_ended_while_it_was_hearing_is_not_taken_over() {
        let (file, memory) = Memory::keeping(areas(), OF).unwrap();
        let open = |of| Kept::open(file.try_clone().unwrap(), of).map(|kept| kept.areas.len());
        assert_eq!(open(OF), Ok(2));
        memory.begin_hearing();
        assert!(open(OF).unwrap_err().contains("given up"));
        memory.end_hearing();
        let other = Of {
            id: SnapshotId([8; 16]),
            ..OF
        };
        assert!(open(other).unwrap_err().contains("another image"));
        assert!(
            open(Of { pages: 501, ..OF })
                .unwrap_err()
                .contains("another image")
        );
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        let refused = |file: OwnedFd| Kept::open(file, OF).unwrap_err();
        let plain = tempfile::tempfile().unwrap();
        assert!(refused(plain.into()).contains("cannot be read"));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        for (len, sealed) in [
            (0, true),
            (63, true),
            (64, true),
            (4096, true),
            (4096, false),
        ] {
            let file = memfd_create(c"other", flags).unwrap();
            ftruncate(&file, len).unwrap();
            if sealed {
                fcntl_add_seals(&file, SEALS).unwrap();
            }
            assert!(refused(file).contains("not of this version"), "{len}");
        }
        let (file, _memory) = Memory::keeping(areas(), OF).unwrap();
        for (at, word) in [(1, 1), (5, u64::MAX), (5, 3), (7, u64::MAX / 2 + 2), (7, 1)] {
            let file = File::from(file.try_clone().unwrap());
            let mut before = [0; 8];
            file.read_exact_at(&mut before, at * 8).unwrap();
            file.write_all_at(&word.to_le_bytes(), at * 8).unwrap();
            let why = refused(file.try_clone().unwrap().into());
            assert!(why.contains("not of this version"), "{at}: {why}");
            file.write_all_at(&before, at * 8).unwrap();
        }
    }
}
