//! A growing array indexed by slot, readable without a lock.
//!
//! A `Vec` would have to move when it grows: readers would need a lock, and for a moment old and
//! new are both held. Here entries live in leaves of 4 Ki that never move, under two levels of
//! pointers that cover every `u32`. A reader follows three pointers; memory grows with the highest
//! index used, one leaf at a time.

use crate::{ErrorKind, StoreError};
use std::mem::size_of;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Entries in a leaf: the unit by which tables grow.
pub(crate) const LEAF: usize = 1 << 12;
const MIDDLE: usize = 1 << 10;
const ROOT: usize = 1 << 10;

type Leaf<T> = OnceLock<Box<[T]>>;
type Middle<T> = OnceLock<Box<[Leaf<T>]>>;

/// Entries of `T`, each default until changed through its own interior mutability.
pub(crate) struct Table<T> {
    root: Box<[Middle<T>]>,
    bytes: AtomicU64,
}

impl<T: Default> Table<T> {
    pub(crate) fn new() -> Result<Table<T>, StoreError> {
        let root = filled::<Middle<T>>(ROOT)?;
        let bytes = AtomicU64::new((ROOT * size_of::<Middle<T>>()) as u64);
        Ok(Table { root, bytes })
    }

    /// The entry at `index`, if it has been [`ensure`](Table::ensure)d.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let index = index as usize;
        let middle = self.root[index / (LEAF * MIDDLE)].get()?;
        let leaf = middle[index / LEAF % MIDDLE].get()?;
        Some(&leaf[index % LEAF])
    }

    /// Makes the entry at `index` and its neighbours exist.
    pub(crate) fn ensure(&self, index: u32) -> Result<&T, StoreError> {
        if let Some(entry) = self.get(index) {
            return Ok(entry);
        }
        let position = index as usize;
        let middle = self.make(&self.root[position / (LEAF * MIDDLE)], MIDDLE)?;
        let leaf = self.make(&middle[position / LEAF % MIDDLE], LEAF)?;
        Ok(&leaf[position % LEAF])
    }

    /// Bytes of heap this table holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    fn make<'a, U: Default>(
        &self,
        cell: &'a OnceLock<Box<[U]>>,
        len: usize,
    ) -> Result<&'a [U], StoreError> {
        if cell.get().is_none() && cell.set(filled(len)?).is_ok() {
            self.bytes.fetch_add((len * size_of::<U>()) as u64, Relaxed);
        }
        cell.get()
            .map(|made| &**made)
            .ok_or_else(|| StoreError::new(ErrorKind::Full, "grow a table of slots"))
    }
}

/// `len` default values on the heap. A refusal of memory is an error here, not an abort.
fn filled<U: Default>(len: usize) -> Result<Box<[U]>, StoreError> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|error| {
        StoreError::new(ErrorKind::Full, "grow a table of slots").with_cause(error)
    })?;
    values.extend((0..len).map(|_| U::default()));
    Ok(values.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn entries_exist_once_ensured_and_never_move() {
        let table = Table::<AtomicU32>::new().unwrap();
        assert!(table.get(0).is_none());
        for index in [0, 4095, 4096, 1 << 22, u32::MAX] {
            table.ensure(index).unwrap().store(index, Relaxed);
        }
        let first: *const AtomicU32 = table.get(0).unwrap();
        for index in [0, 4095, 4096, 1 << 22, u32::MAX] {
            assert_eq!(table.get(index).unwrap().load(Relaxed), index);
        }
        assert!(table.get(8192).is_none());
        assert!(std::ptr::eq(first, table.get(0).unwrap()));
    }

    #[test]
    fn bytes_grow_by_leaves() {
        let table = Table::<AtomicU32>::new().unwrap();
        let empty = table.bytes();
        table.ensure(5).unwrap();
        let one = table.bytes();
        table.ensure(6).unwrap();
        assert_eq!(table.bytes(), one);
        table.ensure(LEAF as u32).unwrap();
        assert_eq!(table.bytes(), one + 4 * LEAF as u64);
        assert!(empty < one);
    }
}
