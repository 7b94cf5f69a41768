//! A word that the kernel empties in a forked child: how a library tells its process from those
//! forked from it, by whatever way, for less than a system call.
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::PAGE_SIZE;
use crate::mlock::{Hint, hint};
use crate::own::Mapping;

/// See the module's text. The page is made when the word is asked for first.
pub struct WipedWord {
    made: AtomicPtr<AtomicU64>,
    /// The word where no such page is to be had.
    plain: AtomicU64,
}

impl Default for WipedWord {
    fn default() -> WipedWord {
        WipedWord::new()
    }
}

impl WipedWord {
    /// One that has not been asked for.
    pub const fn new() -> WipedWord {
        WipedWord {
            made: AtomicPtr::new(std::ptr::null_mut()),
            plain: AtomicU64::new(0),
        }
    }

    /// The word: 0 at first, and in each forked child until it is set there. Where no page of that
    /// kind is to be had it is one that children have as it was, for good
    /// ([`WipedWord::is_plain`]).
    #[inline]
    pub fn get(&'static self) -> &'static AtomicU64 {
        let mut word = self.made.load(Ordering::Acquire);
        if word.is_null() {
            word = self.make();
        }
        // SAFETY: once published, the word stays for the life of the process: it is `plain` of
        // something static, or the start of a zeroed page that is never unmapped.
        unsafe { &*word }
    }

    /// Whether `word`, which [`WipedWord::get`] gave, is one that children keep.
    pub fn is_plain(&'static self, word: &AtomicU64) -> bool {
        std::ptr::eq(word, &self.plain)
    }

    #[cold]
    fn make(&'static self) -> *mut AtomicU64 {
        let page = Mapping::new(PAGE_SIZE);
        let page = page.and_then(|page| hint(page.range(), Hint::WipeOnFork).map(|()| page));
        let word = match &page {
            Ok(page) => page.as_ptr().cast(),
            Err(_) => (&raw const self.plain).cast_mut(),
        };
        let null = std::ptr::null_mut();
        let published = self
            .made
            .compare_exchange(null, word, Ordering::AcqRel, Ordering::Acquire);
        match published {
            Ok(_) => {
                page.into_iter().for_each(|page| _ = page.leak());
                word
            }
            Err(first) => first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static WORD: WipedWord = WipedWord::new();

    /// A child of a bare fork, which runs no handlers of the C library's.
    #[test]
    fn a_child_finds_zero_and_its_parent_what_it_had() {
        let word = WORD.get();
        assert!(!WORD.is_plain(word), "there is no such page here");
        word.store(7, Ordering::Relaxed);
        // SAFETY: the child makes system calls alone, and ends.
        let child = unsafe { libc::syscall(libc::SYS_fork) } as i32;
        if child == 0 {
            let found = word.load(Ordering::Relaxed) as i32;
            word.store(9, Ordering::Relaxed);
            // SAFETY: ends the process.
            unsafe { libc::_exit(found) };
        }
        let mut status = -1;
        // SAFETY: of the child made above, to a local.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((status, word.load(Ordering::Relaxed)), (0, 7));
    }
}
