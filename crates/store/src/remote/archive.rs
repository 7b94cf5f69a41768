//! Streams of bytes that stay on a server when who wrote them has ended: what is to be read later,
//! or elsewhere.
//!
//! A [`Store`](crate::Store) knows where its pages are in its own memory, has a key there, and
//! takes its pages away in the end. An *entry* of an archive needs none of that: it has a name, is
//! written once from front to back, and is listed once it is whole. It uses the same engine: pieces
//! of the stream are blobs, numbered as slots are. Until an entry is whole it belongs to an owner,
//! as the pages of a store do, so that whoever clears up finds what a killed process left.

use super::engine::{Blob, Engine, FETCH_MAX, remove_all};
use super::owner::Owner;
use super::settings::Settings;
use super::signature::Signature;
use super::valkey::{self, Valkey};
use crate::chain::{redact, split};
use crate::layer::retry::Patience;
use crate::scheme::{Protocol, Scheme};
use crate::uri::config;
use crate::{ErrorKind, Slot, StoreError};
use std::sync::Arc;

/// Bytes of a piece: with what a server keeps beside them they fill 16 KiB, which is a size that
/// memory is given out in.
const PIECE: usize = (16 << 10) - 64;
/// Pieces of a request.
const PUT_PIECES: usize = 64;

/// An entry that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name: 32 hexadecimal digits.
    pub name: String,
    /// How many bytes it has.
    pub bytes: u64,
}

/// The entries at a server of the Valkey family, or in a cluster.
pub struct Archive {
    engine: Valkey,
    settings: Settings,
    patience: Patience,
}

impl Archive {
    /// Connects to the servers of `uri` and checks them as a run would.
    ///
    /// # Errors
    /// They cannot be reached, would lose what they have, or are of another kind; or the URI has
    /// options that an archive does not have.
    pub fn open(uri: &str) -> Result<Archive, StoreError> {
        let (name, rest) = split(uri);
        let scheme = Scheme::of(name).filter(|scheme| scheme.protocol == Protocol::Valkey);
        let Some(scheme) = scheme else {
            return Err(config(format!(
                "`{}` cannot keep what is read later or elsewhere; expected file:DIR, \
                 valkey://HOST, valkey+unix:///SOCKET, valkeys://HOST or \
                 valkey-cluster://HOST,HOST",
                redact(uri)
            )));
        };
        let options = rest.split_once('?').map_or("", |(_, options)| options);
        for option in options.split('&') {
            let name = option.split('=').next().unwrap_or_default();
            if name == "max" || (name == "encrypt" && option != "encrypt=0") {
                return Err(config(format!(
                    "option `{name}` is for the pages of a run: what is to be read elsewhere is \
                     under no key of this process's, and has no limit but the server's; leave it \
                     out"
                )));
            }
        }
        let settings = valkey::settings(scheme, name, rest)?;
        Ok(Archive {
            patience: Patience::remote(settings.patience),
            engine: Valkey::open(scheme, settings.clone())?,
            settings,
        })
    }

    /// All entries that are whole.
    ///
    /// # Errors
    /// The server.
    pub fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let found = || self.engine.entries(&self.settings.prefix);
        let found = self.patience.patiently(found)?;
        let entries = found.into_iter().map(|(name, bytes)| Entry { name, bytes });
        Ok(entries.filter(Entry::is_possible).collect())
    }

    /// Begins an entry.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn write(self: &Arc<Self>) -> Result<EntryWriter, StoreError> {
        let owner = Owner::new()?;
        Ok(EntryWriter {
            base: self.settings.base(&owner.name),
            signature: Signature::new(owner, &self.settings),
            archive: Arc::clone(self),
            waiting: Vec::with_capacity(PUT_PIECES * PIECE),
            sent: 0,
        })
    }

    /// Fills `into` with the bytes of `entry` from `offset` on.
    ///
    /// # Errors
    /// The server; [`ErrorKind::Corrupt`] if it has them no more, or the entry is shorter.
    pub fn read_at(&self, entry: &Entry, into: &mut [u8], offset: u64) -> Result<(), StoreError> {
        let end = offset.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > entry.bytes) {
            return Err(torn(entry, offset));
        }
        let base = self.settings.base(&entry.name);
        let (mut offset, mut rest) = (offset, into);
        while !rest.is_empty() {
            let within = (offset % PIECE as u64) as usize;
            let pieces = (within + rest.len()).div_ceil(PIECE).min(FETCH_MAX);
            let (now, later) = rest.split_at_mut(rest.len().min(pieces * PIECE - within));
            let first = (offset / PIECE as u64) as u32;
            self.patience
                .patiently(|| self.read_pieces(entry, &base, first, pieces, within, now))?;
            (offset, rest) = (offset + now.len() as u64, later);
        }
        Ok(())
    }

    /// Fills `into` with the bytes from place `within` of piece `first` on.
    fn read_pieces(
        &self,
        entry: &Entry,
        base: &str,
        first: u32,
        pieces: usize,
        within: usize,
        into: &mut [u8],
    ) -> Result<(), StoreError> {
        let slots: Vec<Slot> = (first..).map(Slot).take(pieces).collect();
        self.engine.fetch(base, &slots, &mut |index, blob| {
            let offset = u64::from(slots[index].0) * PIECE as u64;
            if blob.len() as u64 != (entry.bytes - offset).min(PIECE as u64) {
                return Err(torn(entry, offset));
            }
            let skipped = if index == 0 { within } else { 0 };
            let at = (index * PIECE + skipped) - within;
            let part = (blob.len() - skipped).min(into.len() - at);
            into[at..at + part].copy_from_slice(&blob[skipped..skipped + part]);
            Ok(())
        })
    }

    /// Takes `entry` away. Whoever reads it meanwhile loses it.
    ///
    /// # Errors
    /// The server; then it is listed no more, but may be there in part.
    pub fn remove(&self, entry: &Entry) -> Result<(), StoreError> {
        let base = self.settings.base(&entry.name);
        self.patience.patiently(|| {
            self.engine
                .forget_entry(&self.settings.prefix, &entry.name)?;
            let pieces = entry.bytes.div_ceil(PIECE as u64) as u32;
            remove_all(&self.engine, &base, 0..pieces)
        })
    }
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Archive")
            .field(&self.settings.prefix)
            .finish()
    }
}

impl Entry {
    /// Whether it may be one of ours: others may write to the server.
    fn is_possible(&self) -> bool {
        let pieces = self.bytes.div_ceil(PIECE as u64);
        let name = self.name.len() == 32 && self.name.bytes().all(|byte| byte.is_ascii_hexdigit());
        name && pieces < u64::from(u32::MAX)
    }
}

#[cold]
fn torn(entry: &Entry, offset: u64) -> StoreError {
    let text = format!(
        "read entry {} at byte {offset}: it is not as long as it was",
        entry.name
    );
    StoreError::new(ErrorKind::Corrupt, text)
}

/// An entry that is being written. Dropped before [`EntryWriter::finish`], it leaves nothing.
pub struct EntryWriter {
    archive: Arc<Archive>,
    signature: Signature,
    base: String,
    /// What fills no request yet.
    waiting: Vec<u8>,
    /// Pieces that the server has.
    sent: u32,
}

impl EntryWriter {
    /// The name that the entry will have.
    pub fn name(&self) -> &str {
        &self.signature.owner.name
    }

    /// Adds `bytes`.
    ///
    /// # Errors
    /// The server; [`ErrorKind::Full`] if it has no room.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = PUT_PIECES * PIECE - self.waiting.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.waiting.extend_from_slice(now);
            rest = later;
            if now.len() == room {
                self.send()?;
            }
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), StoreError> {
        let pieces = self.waiting.chunks(PIECE).enumerate();
        let blobs: Vec<Blob> = pieces
            .map(|(index, piece)| Blob {
                slot: Slot(self.sent + index as u32),
                start: index * PIECE,
                len: piece.len(),
            })
            .collect();
        let Some(last) = blobs.last() else {
            return Ok(());
        };
        let engine = &self.archive.engine;
        self.archive.patience.patiently(|| {
            self.signature.cover(engine, last.slot.0)?;
            // What is carried out late writes the same bytes.
            engine.store(&self.base, &blobs, &self.waiting, &mut false)
        })?;
        self.sent += blobs.len() as u32;
        self.waiting.clear();
        Ok(())
    }

    /// The entry is whole: from now on it is listed.
    ///
    /// # Errors
    /// The server; then there is no such entry.
    pub fn finish(mut self) -> Result<Entry, StoreError> {
        let bytes = u64::from(self.sent) * PIECE as u64 + self.waiting.len() as u64;
        self.send()?;
        let entry = Entry {
            name: self.name().to_owned(),
            bytes,
        };
        let archive = &self.archive;
        let noted = archive.patience.patiently(|| {
            // First, as whoever clears up after the dead takes away what has an owner's record. An
            // end between the two leaves pieces that nobody finds, and no entry that loses any.
            self.signature.withdraw(&archive.engine)?;
            archive
                .engine
                .note_entry(&archive.settings.prefix, &entry.name, bytes)
        });
        if noted.is_err() {
            let _ = remove_all(&archive.engine, &self.base, 0..self.sent);
        }
        noted.map(|()| entry)
    }
}

impl Drop for EntryWriter {
    fn drop(&mut self) {
        self.signature.remove(&self.archive.engine, &self.base);
    }
}
