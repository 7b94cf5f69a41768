//! Bytes that never leave memory: a growable buffer for keys and passwords.
use std::fmt;

use subtle::ConstantTimeEq;

use super::error::SecretError;
use super::secret_pages::{InChild, Pages};

/// How a [`SecretBuf`] is to be made.
///
/// ```
/// use pagetide::lock::{InChild, SecretBuf};
///
/// // Fails where the lock limit is too low, and says how to raise it.
/// if let Ok(key) = SecretBuf::builder(32).in_child(InChild::Absent).build() {
///     assert!(key.is_empty() && key.max() == 32);
/// }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct SecretBufBuilder {
    max: usize,
    in_child: InChild,
    memfd_secret: bool,
}

impl SecretBufBuilder {
    /// [`InChild::Wiped`] if not said.
    pub fn in_child(mut self, in_child: InChild) -> Self {
        self.in_child = in_child;
        self
    }

    /// Uses `memfd_secret(2)` (5.14): memory that the kernel itself does not map, so that no kernel
    /// bug or debugger reads it. Absent in forked children; pages of it are zeroed when the buffer
    /// shrinks but given back only when it is dropped. Fails where the kernel has none.
    pub fn memfd_secret(mut self, wanted: bool) -> Self {
        self.memfd_secret = wanted;
        self
    }

    /// Reserves and locks the memory; none of it is resident but a page (unless all future memory
    /// is fully locked, [`mlockall`](super::mlockall)).
    ///
    /// # Errors
    /// [`SecretError`]; nothing is left behind.
    pub fn build(self) -> Result<SecretBuf, SecretError> {
        let in_child = if self.memfd_secret {
            InChild::Absent
        } else {
            self.in_child
        };
        Ok(SecretBuf {
            pages: Pages::new(self.max, in_child, self.memfd_secret)?,
        })
    }
}

/// A growable buffer of secret bytes, of a stated maximum size.
///
/// Its memory is charged to the lock limit when it is made, and locked as it is used: it is never
/// in swap. It is left out of core dumps, lies between guard pages, and canaries before the first
/// and behind the last byte are checked when it changes size and when it is dropped: if one was
/// overwritten, the process is ended. Bytes are zeroed when it shrinks and when it is dropped, and
/// whole pages are given back to the system. Comparison takes the same time whatever the contents,
/// `Debug` shows none of them, and there is no `Clone`.
///
/// Not covered: copies that the program makes, registers and stacks, hibernation, and whoever may
/// read this process's memory.
///
/// ```
/// use pagetide::lock::SecretBuf;
///
/// if let Ok(mut key) = SecretBuf::new(4096) {
///     key.extend_from_slice(b"correct horse")?;
///     assert!(key == *b"correct horse"); // in constant time
///     assert!(!format!("{key:?}").contains("horse"));
/// }
/// # Ok::<(), pagetide::lock::SecretError>(())
/// ```
pub struct SecretBuf {
    pages: Pages,
}

impl SecretBuf {
    /// An empty buffer for at most `max` bytes. 64 bytes more are needed for its canaries, and
    /// whole pages are charged to the lock limit.
    ///
    /// # Errors
    /// As [`SecretBufBuilder::build`].
    pub fn new(max: usize) -> Result<SecretBuf, SecretError> {
        SecretBuf::builder(max).build()
    }

    /// How to make one.
    pub fn builder(max: usize) -> SecretBufBuilder {
        SecretBufBuilder {
            max,
            in_child: InChild::default(),
            memfd_secret: false,
        }
    }

    /// Bytes in it; 0 in a forked child that has not filled it.
    pub fn len(&self) -> usize {
        self.pages.bytes().len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most bytes it may have.
    pub fn max(&self) -> usize {
        self.pages.max()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.pages.bytes()
    }

    /// The bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.pages.bytes_mut()
    }

    /// Makes it `len` bytes long: new ones are zero, lost ones are wiped and whole pages of them
    /// given back.
    ///
    /// # Errors
    /// [`SecretError::TooLarge`], [`SecretError::NotInherited`]; nothing has changed then.
    pub fn resize(&mut self, len: usize) -> Result<(), SecretError> {
        self.pages.resize(len)
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// As [`SecretBuf::resize`].
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), SecretError> {
        let before = self.len();
        let after = before.saturating_add(bytes.len());
        self.resize(after)?;
        self.as_mut_slice()[before..].copy_from_slice(bytes);
        Ok(())
    }

    /// Wipes everything and gives the memory back, all but a page.
    ///
    /// # Errors
    /// [`SecretError::NotInherited`].
    pub fn clear(&mut self) -> Result<(), SecretError> {
        self.resize(0)
    }

    /// Whether the canaries are as they were written; a program that finds `false` has written out
    /// of bounds somewhere.
    pub fn is_intact(&self) -> bool {
        self.pages.is_intact()
    }
}

impl fmt::Debug for SecretBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretBuf")
            .field("len", &self.len())
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}

impl ConstantTimeEq for SecretBuf {
    /// In a time that depends on the lengths alone.
    fn ct_eq(&self, other: &SecretBuf) -> subtle::Choice {
        self.as_slice().ct_eq(other.as_slice())
    }
}

impl PartialEq for SecretBuf {
    /// In a time that depends on the lengths alone.
    fn eq(&self, other: &SecretBuf) -> bool {
        self.ct_eq(other).into()
    }
}

impl Eq for SecretBuf {}

impl PartialEq<[u8]> for SecretBuf {
    /// In a time that depends on the lengths alone.
    fn eq(&self, other: &[u8]) -> bool {
        self.as_slice().ct_eq(other).into()
    }
}
