//! The memory of a secret: guard pages, canaries, wiping, and giving pages back.
//!
//! ```text
//! | guard page | front canary | bytes | back canary | free ... | guard page |
//!              ^ base
//! ```
// Maps memory and hands out slices of it.
#![allow(unsafe_code)]
use std::sync::OnceLock;

use pagetide_kernel::mlock::{self, Hint};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use zeroize::Zeroize;

use super::error::{LockError, SecretError};
use super::flags::Mode;
use super::fork::generation;
use super::hold::Hold;

/// What a forked child finds in place of the secret.
///
/// ```
/// assert_eq!(pagetide::lock::InChild::default(), pagetide::lock::InChild::Wiped);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InChild {
    /// An empty buffer of its own, wiped by the kernel (`MADV_WIPEONFORK`), locked again and
    /// usable.
    #[default]
    Wiped,
    /// No memory at all (`MADV_DONTFORK`): the buffer is empty and cannot grow. The only choice
    /// with `memfd_secret`.
    Absent,
}

/// Also the alignment of the first byte.
const CANARY_BYTES: usize = 32;

/// The kernel counts the pages of one lock in 31 bits: from 8 TiB on its count of locked memory
/// goes wrong.
const BODY_MAX: usize = 4 << 40;

type Canary = [u8; CANARY_BYTES];

#[derive(Debug)]
pub(super) struct Pages {
    /// Of the front canary.
    base: *mut u8,
    /// Bytes between the guards.
    body: usize,
    max: usize,
    len: usize,
    in_child: InChild,
    secret_file: bool,
    /// The fork generation this was made or last used in.
    generation: u64,
    /// None for a secret file: its mappings are locked from the start, and nothing can be said
    /// about that.
    hold: Option<Hold>,
    /// Canaries are written.
    ready: bool,
}

// SAFETY: the memory is reached through this value alone, read through `&`, written through `&mut`.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

/// One for the process; a forked child has its parent's.
fn canary() -> &'static Canary {
    static CANARY: OnceLock<Canary> = OnceLock::new();
    CANARY.get_or_init(|| {
        let mut bytes = [0u8; CANARY_BYTES];
        // The kernel gives up to 256 bytes whole; without it (before boot has gathered entropy) an
        // address is a canary still.
        if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
            bytes[..8].copy_from_slice(&(&raw const CANARY as u64).to_ne_bytes());
        }
        bytes
    })
}

fn system(call: &'static str, advice: &'static str) -> impl FnOnce(Errno) -> SecretError {
    move |errno| SecretError::System {
        call,
        errno,
        advice,
    }
}

impl Pages {
    pub fn new(max: usize, in_child: InChild, secret_file: bool) -> Result<Pages, SecretError> {
        let body = max
            .checked_add(2 * CANARY_BYTES)
            .and_then(|bytes| bytes.checked_next_multiple_of(PAGE_SIZE))
            .filter(|body| *body <= BODY_MAX)
            .ok_or(SecretError::TooLarge {
                asked: max,
                max: BODY_MAX - 2 * CANARY_BYTES,
            })?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                body + 2 * PAGE_SIZE,
                ProtFlags::empty(),
                flags,
            )
        }
        .map_err(system("mmap", ""))?
        .cast::<u8>();
        let mut pages = Pages {
            base: start.wrapping_add(PAGE_SIZE),
            body,
            max,
            len: 0,
            in_child,
            secret_file,
            generation: generation(),
            hold: None,
            ready: false,
        };
        // From here on, dropping `pages` unmaps it.
        if secret_file {
            pages.map_secret_file()?;
        } else {
            let access = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: within the mapping just made.
            unsafe { mprotect(pages.base.cast(), body, access) }.map_err(system("mprotect", ""))?;
        }
        let range = pages.range();
        // A kernel without huge pages refuses the hint; then there is nothing to prevent.
        let _ = mlock::hint(range, Hint::NoHugePage);
        mlock::hint(range, Hint::DontDump).map_err(system("madvise(DONTDUMP)", ""))?;
        let (hint, call) = match in_child {
            InChild::Wiped => (Hint::WipeOnFork, "madvise(WIPEONFORK)"),
            InChild::Absent => (Hint::DontFork, "madvise(DONTFORK)"),
        };
        mlock::hint(range, hint).map_err(system(call, " (Linux 4.14 is needed)"))?;
        if !secret_file {
            pages.hold = Some(Hold::new(range, Mode::OnFault).map_err(SecretError::Lock)?);
        }
        pages.ready = true;
        pages.write_canaries();
        Ok(pages)
    }

    fn map_secret_file(&self) -> Result<(), SecretError> {
        let advice = " (needs Linux 5.14 built with CONFIG_SECRETMEM; before 6.5 also \
            secretmem.enable=1 on the kernel's command line)";
        let file = mlock::memfd_secret().map_err(system("memfd_secret", advice))?;
        rustix::fs::ftruncate(&file, self.body as u64)
            .map_err(system("ftruncate(memfd_secret)", ""))?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: over a part of our own new mapping.
        let mapped = unsafe { mmap(self.base.cast(), self.body, protection, flags, &file, 0) };
        match mapped {
            Ok(_) => Ok(()),
            // Its mappings are locked from the start, so this is the lock limit.
            Err(errno @ Errno::AGAIN) => Err(SecretError::Lock(LockError::of_limit(
                "mmap(memfd_secret)",
                errno,
                self.body as u64,
            ))),
            Err(errno) => Err(system("mmap(memfd_secret)", "")(errno)),
        }
    }

    fn range(&self) -> PageRange {
        PageRange::covering(self.base as usize, self.body)
    }

    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether this is a forked child, and the memory is not what it was.
    fn is_inherited(&self) -> bool {
        self.generation != generation()
    }

    fn first(&self) -> *mut u8 {
        // SAFETY: the body has at least two canaries' room.
        unsafe { self.base.add(CANARY_BYTES) }
    }

    pub fn bytes(&self) -> &[u8] {
        if self.is_inherited() {
            return &[];
        }
        // SAFETY: `len` bytes from `first` are in the body, which is mapped as long as `self` in
        // this process.
        unsafe { std::slice::from_raw_parts(self.first(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.is_inherited() {
            return &mut [];
        }
        // SAFETY: as above, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.first(), self.len) }
    }

    fn write_canaries(&mut self) {
        // SAFETY: both are in the body: it has room for `max` bytes and two canaries, and `len` is
        // at most `max`.
        unsafe {
            self.base.cast::<Canary>().write(*canary());
            self.first()
                .add(self.len)
                .cast::<Canary>()
                .write_unaligned(*canary());
        }
    }

    pub fn is_intact(&self) -> bool {
        if self.is_inherited() {
            return true;
        }
        // SAFETY: as in `write_canaries`.
        unsafe {
            self.base.cast::<Canary>().read() == *canary()
                && self.first().add(self.len).cast::<Canary>().read_unaligned() == *canary()
        }
    }

    /// Ends the process if the memory about the secret was written to: nothing in it can be relied
    /// on.
    fn check(&self) {
        if !self.is_intact() {
            eprintln!("pagetide: the memory about a SecretBuf was overwritten; ending the process");
            std::process::abort();
        }
    }

    pub fn resize(&mut self, len: usize) -> Result<(), SecretError> {
        if self.is_inherited() {
            self.adopt()?;
        }
        if len > self.max {
            return Err(SecretError::TooLarge {
                asked: len,
                max: self.max,
            });
        }
        self.check();
        let before = self.len;
        // SAFETY: the old canary's place is in the body; the new bytes that it covers are to be
        // zero.
        unsafe {
            self.first()
                .add(before)
                .cast::<Canary>()
                .write_unaligned([0; CANARY_BYTES]);
        }
        if len < before {
            self.bytes_mut()[len..].zeroize();
            self.len = len;
            self.write_canaries();
            self.give_back(before);
        } else {
            self.len = len;
            self.write_canaries();
        }
        Ok(())
    }

    /// In a forked child: starts anew with memory that the kernel has wiped.
    fn adopt(&mut self) -> Result<(), SecretError> {
        if self.in_child == InChild::Absent {
            return Err(SecretError::NotInherited);
        }
        // Locked again by the fork handler, or not, or a part of it: then it is not to hold a
        // secret.
        if !self.hold.as_ref().is_some_and(Hold::is_whole) {
            let hold = Hold::new(self.range(), Mode::OnFault).map_err(SecretError::Lock)?;
            if let Some(old) = self.hold.replace(hold) {
                old.forget();
            }
        }
        self.generation = generation();
        self.len = 0;
        self.write_canaries();
        Ok(())
    }

    /// Gives whole pages between the end and what was used before back to the system. They stay
    /// locked on fault.
    fn give_back(&self, before: usize) {
        let page_after = |len: usize| {
            let end = self.base as usize + 2 * CANARY_BYTES + len;
            PageNumber(end.div_ceil(PAGE_SIZE) as u64)
        };
        let free = PageRange {
            start: page_after(self.len),
            end: page_after(before),
        };
        if free.is_empty() || self.secret_file {
            return;
        }
        // SAFETY: behind the back canary, so no byte of the secret and no reference is in it.
        if unsafe { mlock::give_back_locked(free) } == Err(Errno::INVAL) {
            // Before 5.18. The bytes are zero by now, so a moment without the lock tells nothing.
            let _ = mlock::munlock(free.address(), free.bytes());
            // SAFETY: as above.
            let _ = unsafe { pagetide_kernel::memory::drop_pages(free) };
            if mlock::mlock2(free.address(), free.bytes(), mlock::MLOCK_ONFAULT).is_err() {
                eprintln!("pagetide: a SecretBuf lost its lock; ending the process");
                std::process::abort();
            }
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let inherited = self.is_inherited();
        if !inherited && self.ready {
            let intact = self.is_intact();
            self.bytes_mut().zeroize();
            if !intact {
                self.check();
            }
        }
        let hold = self.hold.take();
        let start = self.base.wrapping_sub(PAGE_SIZE);
        if inherited && self.in_child == InChild::Absent {
            // The body is not here, and something else may be, with owners of its own. The guards
            // are.
            if let Some(hold) = hold {
                hold.forget();
            }
            let behind = self.base.wrapping_add(self.body);
            // SAFETY: the two guard pages, inherited and ours.
            unsafe {
                let _ = munmap(start.cast(), PAGE_SIZE);
                let _ = munmap(behind.cast(), PAGE_SIZE);
            }
            return;
        }
        let unmap = || {
            // SAFETY: mapped by `new`, and no reference outlives `self`.
            let _ = unsafe { munmap(start.cast(), self.body + 2 * PAGE_SIZE) };
        };
        match hold {
            Some(hold) => hold.unmap(unmap),
            None => unmap(),
        }
    }
}
