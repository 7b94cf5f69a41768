//! What a key-value server must do for a store.

use super::owner::Record;
use crate::{ErrorKind, Slot, StoreError};

/// A blob to store: the bytes `start..start + len` of the batch they come in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blob {
    pub(crate) slot: Slot,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// The longest blob: a page that does not shrink, and the tag of its encryption.
pub(crate) const BLOB_MAX: usize = crate::PAGE_SIZE + 16;

/// Blobs asked for in one go: what a caller may give [`Engine::fetch`].
pub(crate) const FETCH_MAX: usize = 64;
/// Blobs removed by one call of [`Engine::remove`].
const REMOVE_MAX: usize = 512;

/// What happens to a blob that was asked for: called with its place in the request, and its bytes,
/// which may be changed in place.
pub(crate) type Each<'a> = dyn FnMut(usize, &mut [u8]) -> Result<(), StoreError> + 'a;

/// Keeps blobs under the key made of `base` and a slot.
///
/// Errors: [`ErrorKind::Temporary`] for everything that a server that comes back would mend,
/// [`ErrorKind::Full`] when it has no room, [`ErrorKind::Corrupt`] when it no longer has what it
/// acknowledged, [`ErrorKind::Io`] when it says something else.
pub(crate) trait Engine: Records + Send + Sync {
    /// The URI scheme, for messages and statistics.
    fn scheme(&self) -> &'static str;
    /// Whether reading allocates (encrypted connections do).
    fn allocates(&self) -> bool;
    /// Stores all of `blobs`, each overwriting what its key had; returns once the server has
    /// acknowledged every one. On an error some may be stored, and if `sent` was set, some may be
    /// stored at any time from now on: a request that was given up waits in the buffers of a server
    /// that does not run, or of the network.
    fn store(
        &self,
        base: &str,
        blobs: &[Blob],
        bytes: &[u8],
        sent: &mut bool,
    ) -> Result<(), StoreError>;
    /// Reads at most [`FETCH_MAX`] blobs, in any order. Allocates nothing unless
    /// [`allocates`](Engine::allocates).
    fn fetch(&self, base: &str, slots: &[Slot], each: &mut Each<'_>) -> Result<(), StoreError>;
    /// Removes blobs, those that are not there included. After an error some may be removed at any
    /// time from now on.
    fn remove(&self, base: &str, slots: &[u32]) -> Result<(), StoreError>;
    /// Forgets all connections without closing them: a forked child must not speak on its parent's.
    fn disconnect(&self);
    /// Lines for people: what is there, its version, its memory.
    fn describe(&self) -> Result<Vec<(&'static str, String)>, StoreError>;
}

/// The owners' records that a server keeps, see [`owner`](super::owner).
pub(crate) trait Records {
    /// Writes an owner's record, and with it that its lease runs for as long as the record says
    /// from now on.
    fn write_record(&self, prefix: &str, record: &Record) -> Result<(), StoreError>;
    /// All records, each with whether its lease still runs.
    fn records(&self, prefix: &str) -> Result<Vec<(Record, bool)>, StoreError>;
    /// Removes a record.
    fn remove_record(&self, prefix: &str, owner: &str) -> Result<(), StoreError>;
}

/// Removes any number of blobs.
pub(crate) fn remove_all(
    engine: &dyn Engine,
    base: &str,
    mut slots: impl Iterator<Item = u32>,
) -> Result<(), StoreError> {
    let mut some = Vec::with_capacity(REMOVE_MAX);
    loop {
        some.clear();
        some.extend((&mut slots).take(REMOVE_MAX));
        if some.is_empty() {
            return Ok(());
        }
        engine.remove(base, &some)?;
    }
}

/// The key of a slot, on the stack.
pub(crate) struct Key {
    bytes: [u8; KEY_MAX],
    len: usize,
}

/// The longest key: memcached's limit is 250 bytes.
const KEY_MAX: usize = 160;

impl Key {
    /// `base` is at most 128 bytes, by the check of the settings.
    pub(crate) fn new(base: &str, slot: u32) -> Key {
        let mut bytes = [0; KEY_MAX];
        let mut len = base.len().min(KEY_MAX - 8);
        bytes[..len].copy_from_slice(&base.as_bytes()[..len]);
        let digits = (32 - slot.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            bytes[len] = b"0123456789abcdef"[(slot >> (4 * digit)) as usize & 15];
            len += 1;
        }
        Key { bytes, len }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Adds a number to a request, without formatting machinery: this is on the path of every read.
pub(crate) fn push_number(out: &mut Vec<u8>, value: usize) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The error for a blob that was acknowledged and is not there.
#[cold]
pub(crate) fn lost(slot: Slot, server: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Corrupt,
        format!(
            "read slot {}: {server} no longer has it (restarted without its data, flushed, or \
             failed over)",
            slot.0
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for (slot, key) in [
            (0, "a:b:0"),
            (15, "a:b:f"),
            (16, "a:b:10"),
            (u32::MAX, "a:b:ffffffff"),
        ] {
            assert_eq!(Key::new("a:b:", slot).as_bytes(), key.as_bytes());
        }
    }
}
