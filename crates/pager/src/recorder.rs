//! A record of the faults served: for `pagetide run --trace` and whoever asks which policy would
//! have done better.
//!
//! The file, little-endian: a page (4096 bytes) whose first words are the magic `PTTRACE1`, the
//! number of records it has room for, and the number of faults offered (more than there is room for
//! are counted and not kept), then a word a record: the page number in bits 12 to 63 (the address,
//! its low bits taken by), the kind of fault in bits 0 and 1. A fault costs one addition and one
//! store to a shared mapping, whose file is made at its full length beforehand, sparse.
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagetide_kernel::own::Mapping;
use pagetide_kernel::{PAGE_SHIFT, PAGE_SIZE, PageNumber};

const MAGIC: u64 = u64::from_le_bytes(*b"PTTRACE1");
const HEADER_WORDS: usize = PAGE_SIZE / 8;

/// Why a page had a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// First use.
    Zero = 0,
    /// Fetched for a read.
    Read = 1,
    /// Fetched for a write.
    Write = 2,
    /// First write to a clean page.
    CleanWrite = 3,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Of this page.
    pub page: PageNumber,
    /// For this reason.
    pub kind: Kind,
}

/// Writes records to a mapped file.
pub struct Recorder {
    words: Mapping,
}

impl Recorder {
    /// Room for `records` in `file`, which is emptied.
    pub fn new(file: &File, records: usize) -> std::io::Result<Recorder> {
        let bytes = ((HEADER_WORDS + records) * 8).next_multiple_of(PAGE_SIZE);
        file.set_len(0)?;
        file.set_len(bytes as u64)?;
        let recorder = Recorder {
            words: Mapping::shared(file, bytes)?,
        };
        recorder
            .word(1)
            .store((bytes / 8 - HEADER_WORDS) as u64, Relaxed);
        recorder.word(0).store(MAGIC, Relaxed);
        Ok(recorder)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words.len() / 8);
        // SAFETY: inside the mapping by the assertion, aligned, and only accessed atomically.
        unsafe { &*self.words.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Records a fault, if there is room.
    pub fn record(&self, page: PageNumber, kind: Kind) {
        let place = self.word(2).fetch_add(1, Relaxed) as usize + HEADER_WORDS;
        if place < self.words.len() / 8 {
            self.word(place)
                .store(page.0 << PAGE_SHIFT | kind as u64, Relaxed);
        }
    }
}

/// Cuts the room that was not used off a trace; returns how many faults there was no room for. A
/// file that is no trace (its process never came to record anything) is left as it is.
pub fn cut(file: &File) -> std::io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let mut header = [0; 24];
    if file.metadata()?.len() < header.len() as u64 {
        return Ok(0);
    }
    file.read_exact_at(&mut header, 0)?;
    let word = |index: usize| {
        let bytes = header[index * 8..index * 8 + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight bytes"))
    };
    let (capacity, offered) = (word(1), word(2));
    if word(0) != MAGIC {
        return Ok(0);
    }
    file.set_len((HEADER_WORDS as u64 + offered.min(capacity)) * 8)?;
    Ok(offered.saturating_sub(capacity))
}

/// The records in the bytes of a trace; `None` if these are no trace, an error if it is a damaged
/// one.
pub fn parse(bytes: &[u8]) -> Result<Option<impl Iterator<Item = Record> + '_>, String> {
    let word = |index: usize| {
        let bytes = bytes.get(index * 8..index * 8 + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    if word(0) != Some(MAGIC) {
        return Ok(None);
    }
    let room = (bytes.len() / 8).saturating_sub(HEADER_WORDS) as u64;
    let (Some(capacity), Some(offered)) = (word(1), word(2)) else {
        return Err("cut off within its header".to_owned());
    };
    let count = offered.min(capacity);
    if count > room {
        return Err(format!(
            "says it has {count} records and has room for {room}: it was cut off"
        ));
    }
    Ok(Some((0..count as usize).filter_map(move |index| {
        let record = word(HEADER_WORDS + index)?;
        let kind = [Kind::Zero, Kind::Read, Kind::Write, Kind::CleanWrite][(record & 3) as usize];
        let page = PageNumber(record >> PAGE_SHIFT);
        // A fault that was being recorded when the process ended left a hole.
        (page.0 != 0).then_some(Record { page, kind })
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_back_and_what_has_no_room_is_counted() {
        let file = rustix::fs::memfd_create("trace", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(file);
        let recorder = Recorder::new(&file, 512).unwrap();
        for page in 1..=10u64 {
            recorder.record(PageNumber(page), Kind::Write);
        }
        recorder.record(PageNumber(11), Kind::Zero);
        assert_eq!(cut(&file).unwrap(), 0);
        let read = || {
            use std::os::unix::fs::FileExt;
            let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let bytes = read();
        let records: Vec<Record> = parse(&bytes).unwrap().unwrap().collect();
        assert_eq!(records.len(), 11);
        assert_eq!(
            (records[9].page, records[9].kind),
            (PageNumber(10), Kind::Write)
        );
        assert_eq!(
            (records[10].page, records[10].kind),
            (PageNumber(11), Kind::Zero)
        );
        assert!(parse(&bytes[..4096 + 80]).is_err_and(|error| error.contains("11 records")));
        assert!(parse(b"something else").unwrap().is_none());

        let recorder = Recorder::new(&file, 512).unwrap();
        (0..600).for_each(|_| recorder.record(PageNumber(1), Kind::Read));
        assert_eq!(cut(&file).unwrap(), 88);
        assert_eq!(parse(&read()).unwrap().unwrap().count(), 512);
    }
}
