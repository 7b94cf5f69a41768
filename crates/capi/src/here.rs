//! What a forked child does not have: threads, and memory that is not inherited.
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use pagetide_kernel::wiped::WipedWord;

use crate::status::{Code, Failure};

/// The number of this process. Asking for the process ID is a system call, which takes longer than
/// a pin.
static MARK: WipedWord = WipedWord::new();
/// The last number given, here or before a fork.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A number that this process has, and none of those that it was forked from; not 0.
pub fn process() -> u64 {
    let mark = MARK.get();
    if MARK.is_plain(mark) {
        return std::process::id().into();
    }
    match mark.load(Ordering::Acquire) {
        0 => {
            let next = LAST.fetch_add(1, Ordering::AcqRel) + 1;
            let set = mark.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
            set.map_or_else(|first| first, |_| next)
        }
        number => number,
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

    /// The process that made it, as [`process`] names it.
    pub fn made_by(&self) -> u64 {
        self.made_by
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
