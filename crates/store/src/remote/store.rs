//! A remote store: slots here, blobs there.
//!
//! A put seals its pages into one buffer and sends them in one go; it returns when every one is
//! acknowledged, so the pager keeps the pages until then. The slot table, the words that open blobs
//! and the owner's record are kept in step as follows.
//!
//! - **Deleted slots** are not removed on the server at once: most are soon taken again and
//!   overwritten. They are *stale*. When many are, those still unused are removed, with no put
//!   under way: otherwise the removal could overtake the put of a slot taken again.
//! - **Quarantined slots** are those of a request that was given up: a server that was stopped, or
//!   a network that was cut, may carry it out at any later time, over whatever the slot then holds.
//!   They are never used again in this object's life.
//! - **The record** names a bound that is above every slot ever put. It is written before the first
//!   put and before the bound is passed, so whoever clears up finds every key.

use super::engine::{BLOB_MAX, Blob, Engine, FETCH_MAX, remove_all};
use super::envelope::{Envelope, sealed_len};
use super::owner::Owner;
use super::settings::Settings;
use super::signature::Signature;
use crate::device::Device;
use crate::lz4::Packer;
use crate::meter::{Meter, Tally};
use crate::slots::{Kind, SlotTable, unused};
use crate::sync::{Pool, lock};
use crate::{Capabilities, ErrorKind, Page, Slot, StoreError, Usage};
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Mutex, PoisonError, RwLock};

/// Pages in a put: a quarter of a megabyte on its way keeps a server and a network of today busy.
const PUT_PAGES: usize = 64;
/// Stale keys kept: at least this many, or an eighth of those in use.
const STALE_MIN: usize = 512;
/// Batches kept for reuse.
const BATCHES_MAX: usize = 4;

/// What a put needs.
struct Batch {
    packer: Box<Packer>,
    bytes: Vec<u8>,
    blobs: Vec<Blob>,
    forms: Vec<(Kind, u64)>,
}

impl Batch {
    fn new() -> Batch {
        Batch {
            packer: Packer::new(),
            bytes: Vec::with_capacity(PUT_PAGES * BLOB_MAX),
            blobs: Vec::with_capacity(PUT_PAGES),
            forms: Vec::with_capacity(PUT_PAGES),
        }
    }
}

/// Pages under the keys of one owner.
pub(crate) struct RemoteStore {
    engine: Box<dyn Engine>,
    signature: Signature,
    base: String,
    envelope: Envelope,
    slots: SlotTable,
    meter: Meter,
    /// Bytes of all blobs in use.
    held: AtomicU64,
    max_bytes: u64,
    server_cpu: Option<u32>,
    stale: Mutex<Vec<Slot>>,
    /// Quarantined slots that are still among the free ones, sorted.
    quarantined: Mutex<Vec<Slot>>,
    any_quarantined: AtomicBool,
    /// Held for reading by puts, and for writing while stale keys are removed.
    puts: RwLock<()>,
    batches: Pool<Batch>,
    inherited: AtomicBool,
}

impl RemoteStore {
    /// A store of `engine` as `settings` say.
    pub(crate) fn new(
        engine: Box<dyn Engine>,
        settings: &Settings,
        max_bytes: Option<u64>,
    ) -> Result<RemoteStore, StoreError> {
        let owner = Owner::new()?;
        Ok(RemoteStore {
            base: settings.base(&owner.name),
            envelope: Envelope::new(settings.compress, settings.encrypt, owner.id)?,
            engine,
            signature: Signature::new(owner, settings),
            slots: SlotTable::new()?,
            meter: Meter::default(),
            held: AtomicU64::new(0),
            max_bytes: max_bytes.unwrap_or(u64::MAX),
            server_cpu: settings.spin.server_cpu,
            stale: Mutex::new(Vec::new()),
            quarantined: Mutex::new(Vec::new()),
            any_quarantined: AtomicBool::new(false),
            puts: RwLock::new(()),
            batches: Pool::new(BATCHES_MAX),
            inherited: AtomicBool::new(false),
        })
    }

    fn bytes_with_layers(&self) -> u64 {
        self.slots.bytes_with_layers() + self.held.load(Relaxed)
    }

    /// Takes a slot for each place of `slots`, none of them quarantined.
    fn take(&self, slots: &mut [Slot]) -> Result<(), StoreError> {
        let room = self.max_bytes.saturating_sub(self.bytes_with_layers());
        self.slots.take(slots, room)?;
        if !self.any_quarantined.load(Acquire) {
            return Ok(());
        }
        let mut quarantined = lock(&self.quarantined);
        for index in 0..slots.len() {
            while let Ok(place) = quarantined.binary_search(&slots[index]) {
                quarantined.remove(place);
                if let Err(error) = self.slots.take(&mut slots[index..=index], room) {
                    self.slots.give_back(&slots[..index]);
                    self.slots.give_back(&slots[index + 1..]);
                    return Err(error);
                }
            }
        }
        self.any_quarantined.store(!quarantined.is_empty(), Release);
        Ok(())
    }

    fn put_taken(
        &self,
        pages: &[&Page],
        slots: &[Slot],
        batch: &mut Batch,
        sent: &mut bool,
    ) -> Result<(), StoreError> {
        let mut tally = Tally {
            pages: pages.len() as u64,
            ..Tally::default()
        };
        batch.forms.clear();
        for (pages, slots) in pages.chunks(PUT_PAGES).zip(slots.chunks(PUT_PAGES)) {
            batch.bytes.clear();
            batch.blobs.clear();
            for (page, slot) in pages.iter().zip(slots) {
                if let Some(word) = page.same_filled() {
                    tally.same_filled += 1;
                    tally.stored_bytes += 8;
                    batch.forms.push((Kind::Filled, word));
                    continue;
                }
                let start = batch.bytes.len();
                let form = self
                    .envelope
                    .seal(page, *slot, &mut batch.packer, &mut batch.bytes)?;
                let len = batch.bytes.len() - start;
                tally.stored_bytes += len as u64;
                batch.forms.push(form);
                batch.blobs.push(Blob {
                    slot: *slot,
                    start,
                    len,
                });
            }
            let more = batch.bytes.len() as u64;
            if self.bytes_with_layers() + more > self.max_bytes {
                return Err(StoreError::new(
                    ErrorKind::Full,
                    format!(
                        "put pages: {more} bytes more would exceed max, {} bytes",
                        self.max_bytes
                    ),
                ));
            }
            if let Some(highest) = batch.blobs.iter().map(|blob| blob.slot.0).max() {
                self.signature.cover(&*self.engine, highest)?;
                self.engine
                    .store(&self.base, &batch.blobs, &batch.bytes, sent)?;
            }
        }
        for (slot, (kind, word)) in slots.iter().zip(&batch.forms) {
            if *kind != Kind::Filled {
                self.held.fetch_add(sealed_len(*word) as u64, Relaxed);
            }
            self.slots.set(*slot, *kind, *word);
        }
        self.meter.add(tally);
        Ok(())
    }

    fn drop_slot(&self, slot: Slot) -> Option<Kind> {
        let (kind, word) = self.slots.clear(slot)?;
        if kind != Kind::Filled {
            self.held.fetch_sub(sealed_len(word) as u64, Relaxed);
        }
        Some(kind)
    }

    /// Notes that the server may have something for unused slots, and removes it there if that
    /// became much.
    fn note_stale(&self, slots: impl Iterator<Item = Slot>) {
        let mut stale = lock(&self.stale);
        for slot in slots {
            if stale.try_reserve(1).is_ok() {
                stale.push(slot);
            }
        }
        if stale.len() < STALE_MIN.max(self.slots.used() as usize / 8) {
            return;
        }
        drop(stale);
        self.remove_stale();
    }

    fn remove_stale(&self) {
        // Without the lock now means a put is waiting for the server: later, then.
        let Ok(_none) = self.puts.try_write() else {
            return;
        };
        let mut stale = lock(&self.stale);
        stale.sort_unstable();
        stale.dedup();
        stale.retain(|slot| self.slots.load(*slot).is_none());
        let removed = remove_all(&*self.engine, &self.base, stale.iter().map(|slot| slot.0));
        if removed.is_err() {
            let mut quarantined = lock(&self.quarantined);
            quarantined.append(&mut stale);
            quarantined.sort_unstable();
            quarantined.dedup();
            self.any_quarantined.store(true, Release);
        }
        stale.clear();
    }

    fn fetch(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        let mut wanted = [Slot(0); FETCH_MAX];
        let mut places = [0usize; FETCH_MAX];
        let mut forms = [(Kind::Filled, 0u64); FETCH_MAX];
        let mut count = 0;
        for (index, slot) in slots.iter().enumerate() {
            match self.slots.load(*slot) {
                None => return Err(unused(*slot)),
                Some((Kind::Filled, word)) => pages[index].fill(word),
                Some(form) => {
                    (wanted[count], places[count], forms[count]) = (*slot, index, form);
                    count += 1;
                }
            }
        }
        if count == 0 {
            return Ok(());
        }
        self.engine
            .fetch(&self.base, &wanted[..count], &mut |index, blob| {
                self.envelope
                    .open(blob, wanted[index], forms[index], &mut pages[places[index]])
            })
    }
}

impl Device for RemoteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scheme: self.engine.scheme(),
            put_batch_pages: PUT_PAGES,
            get_sleeps: true,
            get_allocates: self.engine.allocates(),
            spills: true,
        }
    }

    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError> {
        let putting = self.puts.read().unwrap_or_else(PoisonError::into_inner);
        self.take(slots)?;
        let mut batch = self.batches.take().unwrap_or_else(Batch::new);
        let mut sent = false;
        let done = self.put_taken(pages, slots, &mut batch, &mut sent);
        self.batches.give_back(batch);
        drop(putting);
        match &done {
            Err(error) if error.kind == ErrorKind::Full => {
                // Every answer was read. Stale keys take room that the next try may have.
                self.slots.give_back(slots);
                self.note_stale(slots.iter().copied());
                self.remove_stale();
            }
            // Given up after it was sent: these slots are quarantined: they are never given back.
            Err(_) if sent => {}
            Err(_) => self.slots.give_back(slots),
            Ok(()) => {}
        }
        done
    }

    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError> {
        self.fetch(&[slot], std::slice::from_mut(page))
    }

    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        slots
            .chunks(FETCH_MAX)
            .zip(pages.chunks_mut(FETCH_MAX))
            .try_for_each(|(slots, pages)| self.fetch(slots, pages))
    }

    fn delete(&self, slots: &[Slot]) {
        let stale = slots.iter().filter(|slot| {
            let kind = self.drop_slot(**slot);
            if kind.is_some() {
                self.slots.give_back(std::slice::from_ref(slot));
            }
            kind.is_some_and(|kind| kind != Kind::Filled)
        });
        self.note_stale(stale.copied());
    }

    fn usage(&self) -> Usage {
        let tables = self.slots.bytes();
        let bytes = tables + self.held.load(Relaxed);
        self.meter.usage(self.slots.used(), bytes, tables)
    }

    fn descriptors(&self) -> Vec<i32> {
        self.signature.owner.descriptors()
    }

    fn server_cpu(&self) -> Option<u32> {
        self.server_cpu
    }

    fn inherit(&self, fds: &[i32]) {
        self.inherited.store(true, Release);
        self.engine.disconnect();
        self.signature.owner.inherit(fds);
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        if self.inherited.load(Acquire) {
            return;
        }
        self.signature.remove(&*self.engine, &self.base);
    }
}
