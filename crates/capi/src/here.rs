//! What a forked child does not have: threads, and memory that is not inherited.
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::status::{Code, Failure};

/// The number of this process, in a page that the kernel empties in a forked child. Asking for the
/// process ID is a system call, which takes longer than a pin.
static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// Where no such page is to be had: process IDs it is.
static NO_MARK: AtomicU64 = AtomicU64::new(0);
/// The last number given, here or before a fork.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A number that this process has, and none of those that it was forked from.
fn process() -> u64 {
    let made = MARK.load(Ordering::Acquire);
    let mark = if made.is_null() { make_mark() } else { made };
    if mark.cast_const() == &raw const NO_MARK {
        return std::process::id().into();
    }
    // SAFETY: once published, the word stays for the life of the process.
    let mark = unsafe { &*mark };
    match mark.load(Ordering::Acquire) {
        0 => {
            let next = LAST.fetch_add(1, Ordering::AcqRel) + 1;
            let set = mark.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
            set.map_or_else(|first| first, |_| next)
        }
        number => number,
    }
}

fn make_mark() -> *mut AtomicU64 {
    const PAGE: usize = 4096;
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping at a place of the kernel's choice, whose page is zeros, as it is to be
    // in children; given back if that is not to be had.
    let page = unsafe {
        let page = libc::mmap(std::ptr::null_mut(), PAGE, access, kind, -1, 0);
        match page {
            libc::MAP_FAILED => std::ptr::null_mut(),
            page if libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) == 0 => page,
            page => {
                libc::munmap(page, PAGE);
                std::ptr::null_mut()
            }
        }
    };
    let word = match page.is_null() {
        true => (&raw const NO_MARK).cast_mut(),
        false => page.cast(),
    };
    let null = std::ptr::null_mut();
    match MARK.compare_exchange(null, word, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => word,
        Err(first) => {
            if !page.is_null() {
                // SAFETY: mapped above, and nobody else knows of it.
                unsafe { libc::munmap(page, PAGE) };
            }
            first
        }
    }
}

/// Something of the process that made it. In a child it is neither used nor dropped: its threads
/// would be waited for, and they are not there.
pub struct Here<T> {
    value: ManuallyDrop<T>,
    made_by: u64,
    pid: u32,
}

impl<T> Here<T> {
    /// Of this process.
    pub fn new(value: T) -> Here<T> {
        Here {
            value: ManuallyDrop::new(value),
            made_by: process(),
            pid: std::process::id(),
        }
    }

    /// It, in the process that made it.
    pub fn get(&self) -> Result<&T, Failure> {
        self.check().map(|()| &*self.value)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self) -> Result<&mut T, Failure> {
        self.check().map(|()| &mut *self.value)
    }

    /// The same, without a handle around it.
    pub fn take(self) -> Result<T, Failure> {
        self.check()?;
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once: `this` is not dropped, and used no more.
        Ok(unsafe { ManuallyDrop::take(&mut this.value) })
    }

    /// It, wherever this is: for what does not change.
    pub fn anywhere(&self) -> &T {
        &self.value
    }

    fn check(&self) -> Result<(), Failure> {
        match self.made_by == process() {
            true => Ok(()),
            false => Err(Failure::new(
                Code::Forked,
                format!(
                    "the handle belongs to process {}, and a forked child does not have what it \
                     stands for; make one of its own in the child",
                    self.pid
                ),
            )),
        }
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if self.check().is_ok() {
            // SAFETY: dropped here and never used again.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
