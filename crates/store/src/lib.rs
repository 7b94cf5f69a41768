//! Where evicted pages live: the [`Store`] trait, one module per store, and the layers that wrap
//! them.
//!
//! A store knows nothing of page faults. It takes whole pages, gives a [`Slot`] for each, and gives
//! the same bytes back for that slot until it is deleted. Stores are named by URI and opened with
//! [`open`].
//!
//! # Rules every store keeps
//!
//! The pager calls stores from threads that serve page faults, inside arbitrary programs. So, after
//! construction: no panics, no thread-local state, no `println!`, no reliance on libc state
//! (`malloc` through the Rust global allocator is allowed in `put` and `delete`; `get` and
//! `get_many` allocate nothing, but for [`Capabilities::get_allocates`]). Locks are held for
//! bounded, short times and never across a fork (the pager is quiet when the program forks).
//!
//! And the callers keep these: a slot is not deleted while another thread reads it (the read may
//! then be
//! [`ErrorKind::Corrupt`], or the page that took the slot next); and a store that has
//! [`descriptors`](Store::descriptors) is called from threads that share the descriptor table it
//! was opened in.
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod chain;
mod descriptor;
mod device;
mod error;
#[doc(hidden)]
pub mod exercise;
mod file;
mod layer;
mod lz4;
mod mapping;
mod meter;
mod open;
mod page;
mod ram;
#[cfg(feature = "remote")]
mod remote;
mod scheme;
mod slots;
mod source;
mod sync;
mod table;
mod tier;
mod uri;

pub use chain::{is_remote, redact};
pub use error::{ErrorKind, StoreError};
pub use open::open;
pub use page::{PAGE_SIZE, Page, Slot};
#[cfg(feature = "remote")]
pub use remote::{
    archive::{Archive, Entry, EntryWriter},
    operate::{Clear, Cleared, Owned, Remote, resolve},
    owner::Record,
};
pub use source::source;
pub use uri::{file_directory, parse_size};

/// What a store can do and how it likes to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The URI scheme, for messages and statistics: `ram`, `file`.
    pub scheme: &'static str,
    /// Pages per `put` at which throughput levels off; the pager forms batches of about this size.
    /// At least 1.
    pub put_batch_pages: usize,
    /// A `get` may sleep (disk, network), so it is worth overlapping several.
    pub get_sleeps: bool,
    /// A `get` may allocate (encrypted connections), so it must not be made in a signal handler.
    pub get_allocates: bool,
    /// Pages that have no room in this machine's memory go elsewhere: a disk, a server.
    pub spills: bool,
}

/// What a store holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Pages held (slots in use).
    pub pages: u64,
    /// Bytes of memory or disk held for them, bookkeeping included.
    pub bytes: u64,
    /// The most `bytes` has been.
    pub bytes_max: u64,
    /// Of `bytes`, those in this process's own memory.
    pub memory_bytes: u64,
    /// Of `memory_bytes`, those in shared memory, as it is mapped: what [`Store::hold_at_most`]
    /// bounds.
    pub shared_bytes: u64,
    /// Bytes of page content put since opening (pages put times [`PAGE_SIZE`]).
    pub put_bytes: u64,
    /// Bytes these took after same-filled detection and compression.
    pub put_bytes_stored: u64,
    /// Pages put that held one repeated 8-byte word.
    pub same_filled: u64,
}

/// A place for pages that are not resident. Contracts are per line; the behaviour suite in
/// `tests/behaviour.rs` checks them for every store.
pub trait Store: Send + Sync {
    /// What this store can do. Constant over its life.
    fn capabilities(&self) -> Capabilities;

    /// Stores every page of `pages` and writes its handle to the same index of `slots`. All or
    /// nothing: on an error no slot is in use that was not before. Once this returns `Ok`, the
    /// bytes are the store's responsibility. Slots are dense small integers (a side table indexed
    /// by slot is cheap) and are reused after `delete`.
    ///
    /// Panics if the lengths differ.
    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError>;

    /// Reads the bytes of `slot` into `page`. The slot stays in use. On an error `page` holds
    /// nothing meaningful. A slot that is not in use is [`ErrorKind::Corrupt`], never zeros.
    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError>;

    /// Reads several slots; stores that can overlap or batch reads override it. Panics if the
    /// lengths differ.
    fn get_many(&self, slots: &[Slot], pages: &mut [Page]) -> Result<(), StoreError> {
        assert_eq!(slots.len(), pages.len());
        slots
            .iter()
            .zip(pages)
            .try_for_each(|(slot, page)| self.get(*slot, page))
    }

    /// `slot` will be read alone before long. What a store does with that, if anything, changes no
    /// bytes, and its end is not waited for.
    fn will_need(&self, slot: Slot) {
        let _ = slot;
    }

    /// Whether `page` has the bytes that were put in `slot`, which is in use, by a checksum of 64
    /// bits under a key that only this process has: two pages that differ are taken for equal once
    /// in 2^64 times. Reads nothing from where the bytes are.
    fn holds(&self, slot: Slot, page: &Page) -> bool;

    /// Gives slots back. Cannot fail: a store that cannot free now does so later. Slots not in use
    /// are ignored.
    fn delete(&self, slots: &[Slot]);

    /// What is held now.
    fn usage(&self) -> Usage;

    /// From now on no more than `shared_bytes` of [`Usage::shared_bytes`] are taken, beside the
    /// limit that the URI may have. Where more are held nothing is taken; a tier moves pages to the
    /// store behind as others are put. Of no effect on stores that have none. May be called at any
    /// time, by one thread at a time.
    fn hold_at_most(&self, shared_bytes: u64);

    /// From now until [`thaw`](Store::thaw), slots in use at this moment keep their bytes even when
    /// deleted, so that a forked child, whose copy of this object stands still at this moment, can
    /// read them. Freezes nest and overlap.
    fn freeze(&self) -> Freeze;

    /// Ends one freeze; bytes kept only for it are given back. Unknown freezes are ignored.
    fn thaw(&self, freeze: Freeze);

    /// The processor of this machine on which a server answers, if the user has said that it keeps
    /// to one: a thread there gets its answers by two context switches, without an interrupt.
    /// Constant over the store's life.
    fn server_cpu(&self) -> Option<u32> {
        None
    }

    /// File descriptors a forked child must reopen to go on reading (the child's agent does not
    /// share the parent's descriptors). Empty for stores that read through shared memory.
    fn descriptors(&self) -> Vec<i32>;

    /// In a forked child, before any other call: replaces the descriptors with `fds`, given in the
    /// order
    /// [`descriptors`](Store::descriptors) listed them. From then on this copy only reads: `delete`
    /// does nothing, `put` is an error, and dropping it leaves the parent's data alone.
    fn inherit(&self, fds: &[i32]);
}

/// Names one [`Store::freeze`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Freeze(pub u32);
