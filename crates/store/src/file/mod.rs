//! The `file:` store: pages in a file, one file page each, by direct I/O where that can be had.
//!
//! Same-filled pages take no room on disk. The file has no name while it is used (unless `keep=1`),
//! so nothing is left behind even by SIGKILL. Calls that may sleep are made without a lock.

mod extent;
mod place;
mod transfer;

use crate::descriptor::Descriptor;
use crate::device::Device;
use crate::meter::{Meter, Tally};
use crate::slots::{Kind, SlotTable, unused};
use crate::sync::lock;
use crate::uri::config;
use crate::{Capabilities, ErrorKind, PAGE_SIZE, Page, Slot, StoreError, Usage};
use extent::{Extents, SEGMENT};
use place::HEADER;
use rustix::process::{Resource, getrlimit};
use std::slice::{from_mut, from_ref};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use transfer::{CALL_PAGES, Transfer};

const SEGMENT_BYTES: u64 = SEGMENT * PAGE_SIZE as u64;
/// The file grows by an eighth of itself, within these bounds: 1 MiB and 64 MiB. Not more than may
/// be kept empty, or what was just asked of the disk would be given back at once.
const GROW_MAX: u64 = 64;
/// Empty segments kept are an eighth of those in use, within these bounds.
const SPARE_MIN: u64 = 1;
const SPARE_MAX: u64 = 64;

/// Pages in a file.
pub(crate) struct FileStore {
    slots: SlotTable,
    transfer: Transfer,
    extents: Mutex<Extents>,
    /// Held while the file grows, so that threads that run out of room together grow it once.
    growing: Mutex<()>,
    held: AtomicU64,
    extent_bytes: AtomicU64,
    /// The filesystem does not take room back: stop asking.
    keep_all: AtomicBool,
    meter: Meter,
    max_bytes: u64,
    /// The process's limit on file sizes when the store was opened: growing beyond it would send it
    /// a signal.
    file_bytes_max: u64,
}

impl FileStore {
    /// A store at `place` (see the URI) that holds at most `max_bytes`, bookkeeping included.
    pub(crate) fn new(
        place: &str,
        keep: bool,
        max_bytes: Option<u64>,
    ) -> Result<FileStore, StoreError> {
        let file_bytes_max = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let least = HEADER + SEGMENT_BYTES;
        if file_bytes_max < least {
            return Err(config(format!(
                "the limit on file sizes (RLIMIT_FSIZE, `ulimit -f`) is {file_bytes_max} bytes; \
                 expected {least} or more, for the file \
                 of the store; lift it: ulimit -f unlimited"
            )));
        }
        Ok(FileStore {
            transfer: Transfer::new(Descriptor::new(place::claim(place, keep)?)?),
            slots: SlotTable::new()?,
            extents: Mutex::new(Extents::default()),
            growing: Mutex::new(()),
            held: AtomicU64::new(0),
            extent_bytes: AtomicU64::new(0),
            keep_all: AtomicBool::new(false),
            meter: Meter::default(),
            max_bytes: max_bytes.unwrap_or(u64::MAX),
            file_bytes_max,
        })
    }

    fn disk_bytes(&self) -> u64 {
        HEADER + self.held.load(Relaxed) * SEGMENT_BYTES
    }

    fn bytes_with_layers(&self) -> u64 {
        self.disk_bytes() + self.slots.bytes_with_layers() + self.extent_bytes.load(Relaxed)
    }

    /// Writes pages that are not same-filled; each slot is in use once its page is written.
    fn put_plain(&self, pages: &[&Page], slots: &[Slot]) -> Result<(), StoreError> {
        let mut done = 0;
        while done < pages.len() {
            let (first, len) = self.take((pages.len() - done) as u64)?;
            let next = done + len as usize;
            if let Err(error) = self.transfer.write(first, &pages[done..next]) {
                let mut extents = lock(&self.extents);
                (first..first + len).for_each(|page| extents.give_back(page));
                return Err(error);
            }
            for (page, slot) in (first..).zip(&slots[done..next]) {
                self.slots.set(*slot, Kind::Plain, page);
            }
            done = next;
        }
        Ok(())
    }

    /// Takes a run of up to `want` file pages, growing the file if need be.
    fn take(&self, want: u64) -> Result<(u64, u64), StoreError> {
        loop {
            if let Some(run) = lock(&self.extents).take(want) {
                return Ok(run);
            }
            let grown = {
                let _growing = lock(&self.growing);
                if lock(&self.extents).empty_count() > 0 {
                    Ok(())
                } else {
                    self.grow()
                }
            };
            if let Err(error) = grown {
                let mut extents = lock(&self.extents);
                if error.kind != ErrorKind::Full || !extents.use_any_gap() {
                    return Err(error);
                }
                if let Some(run) = extents.take(want) {
                    return Ok(run);
                }
            }
        }
    }

    /// Gets room on disk for at least one more segment.
    fn grow(&self) -> Result<(), StoreError> {
        let room = self.max_bytes.saturating_sub(self.bytes_with_layers()) / SEGMENT_BYTES;
        if room == 0 {
            return Err(StoreError::new(
                ErrorKind::Full,
                format!(
                    "grow the file store beyond {} bytes: max is reached",
                    self.disk_bytes()
                ),
            ));
        }
        // A statement of its own: as a condition, the guard would live through the body and meet
        // itself.
        let bare = lock(&self.extents).take_bare();
        if let Some(bare) = bare {
            let reserved = self.transfer.reserve(bare * SEGMENT, SEGMENT);
            let mut extents = lock(&self.extents);
            if let Err(error) = reserved {
                extents.add_bare(bare);
                return Err(error);
            }
            extents.add_empty(bare);
            self.held.fetch_add(1, Relaxed);
            return Ok(());
        }
        let first = lock(&self.extents).count();
        let below_limit = self
            .file_bytes_max
            .saturating_sub(HEADER + first * SEGMENT_BYTES)
            / SEGMENT_BYTES;
        if below_limit == 0 {
            return Err(StoreError::new(
                ErrorKind::Full,
                format!(
                    "grow the store's file: the limit on file sizes (ulimit -f) is {} bytes",
                    self.file_bytes_max
                ),
            ));
        }
        let mut more = (self.held.load(Relaxed) / 8)
            .clamp(1, GROW_MAX)
            .min(room)
            .min(below_limit);
        loop {
            match self.transfer.reserve(first * SEGMENT, more * SEGMENT) {
                Ok(()) => break,
                Err(error) if error.kind == ErrorKind::Full && more > 1 => more /= 2,
                Err(error) => return Err(error),
            }
        }
        let mut extents = lock(&self.extents);
        extents.extend(more)?;
        // Last first: they are used from the end of the list, and neighbours should follow each
        // other.
        (first..first + more)
            .rev()
            .for_each(|segment| extents.add_empty(segment));
        self.held.fetch_add(more, Relaxed);
        self.extent_bytes.store(extents.bytes(), Relaxed);
        Ok(())
    }

    /// Gives room back when more than the allowed number of segments is empty.
    fn trim(&self) {
        loop {
            if self.keep_all.load(Relaxed) {
                return;
            }
            let segment = {
                let mut extents = lock(&self.extents);
                let empty = extents.empty_count();
                let in_use = self.held.load(Relaxed).saturating_sub(empty);
                if empty <= (in_use / 8).clamp(SPARE_MIN, SPARE_MAX) {
                    return;
                }
                extents.take_empty()
            };
            let Some(segment) = segment else { return };
            let punched = self.transfer.punch(segment * SEGMENT, SEGMENT);
            let mut extents = lock(&self.extents);
            if punched {
                extents.add_bare(segment);
                self.held.fetch_sub(1, Relaxed);
            } else {
                extents.add_empty(segment);
                self.keep_all.store(true, Relaxed);
            }
        }
    }

    fn drop_slot(&self, slot: Slot) -> bool {
        match self.slots.clear(slot) {
            Some((Kind::Filled, _)) => true,
            Some((_, page)) => {
                lock(&self.extents).give_back(page);
                true
            }
            None => false,
        }
    }
}

impl Device for FileStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scheme: "file",
            put_batch_pages: CALL_PAGES,
            get_sleeps: true,
            get_allocates: false,
            spills: true,
        }
    }

    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError> {
        self.slots.take(
            slots,
            self.max_bytes.saturating_sub(self.bytes_with_layers()),
        )?;
        let mut tally = Tally {
            pages: pages.len() as u64,
            ..Tally::default()
        };
        let mut plain = Vec::with_capacity(pages.len());
        let mut plain_slots = Vec::with_capacity(pages.len());
        for (page, slot) in pages.iter().zip(slots.iter()) {
            if let Some(word) = page.same_filled() {
                tally.same_filled += 1;
                tally.stored_bytes += 8;
                self.slots.set(*slot, Kind::Filled, word);
            } else {
                tally.stored_bytes += PAGE_SIZE as u64;
                plain.push(*page);
                plain_slots.push(*slot);
            }
        }
        let done = self.put_plain(&plain, &plain_slots);
        match done {
            Ok(()) => self.meter.add(tally),
            Err(_) => {
                slots.iter().for_each(|slot| {
                    self.drop_slot(*slot);
                });
                self.slots.give_back(slots);
            }
        }
        done
    }

    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError> {
        match self.slots.load(slot) {
            Some((Kind::Filled, word)) => page.fill(word),
            Some((_, first)) => self.transfer.read(first, from_mut(page))?,
            None => return Err(unused(slot)),
        }
        Ok(())
    }

    /// Slots whose pages are neighbours in the file are read together.
    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        let mut done = 0;
        while done < slots.len() {
            let mut len = 1;
            match self.slots.load(slots[done]) {
                Some((Kind::Filled, word)) => pages[done].fill(word),
                Some((kind, first)) => {
                    let follows = |len: usize| {
                        slots.get(done + len).is_some_and(|slot| {
                            self.slots.load(*slot) == Some((kind, first + len as u64))
                        })
                    };
                    while follows(len) {
                        len += 1;
                    }
                    self.transfer.read(first, &mut pages[done..done + len])?;
                }
                None => return Err(unused(slots[done])),
            }
            done += len;
        }
        Ok(())
    }

    fn delete(&self, slots: &[Slot]) {
        for slot in slots {
            if self.drop_slot(*slot) {
                self.slots.give_back(from_ref(slot));
            }
        }
        self.trim();
    }

    fn usage(&self) -> Usage {
        let tables = self.slots.bytes() + self.extent_bytes.load(Relaxed);
        let bytes = self.disk_bytes() + tables;
        self.meter.usage(self.slots.used(), bytes, tables)
    }

    fn descriptors(&self) -> Vec<i32> {
        vec![self.transfer.descriptor()]
    }

    fn inherit(&self, fds: &[i32]) {
        if let Some(fd) = fds.first() {
            self.transfer.replace(*fd);
        }
    }
}
