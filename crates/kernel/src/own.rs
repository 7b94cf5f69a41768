//! Memory that belongs to Pagetide itself, and the list of it, so that a pager over a whole process
//! never pages its own.
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::page::PageRange;

/// A range of address space in [`LIST`]; `len` 0 means free, `BUSY` being written.
struct Entry {
    address: AtomicUsize,
    len: AtomicUsize,
}

const BUSY: usize = usize::MAX;
const CAPACITY: usize = 16384;
/// Entries from here on were never used.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);
static LIST: [Entry; CAPACITY] = [const {
    Entry {
        address: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
    }
}; CAPACITY];

/// A range's place in the list. Several may be of the same range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exclusion(u32);

impl Exclusion {
    /// As a number below 2^16.
    pub fn index(self) -> u32 {
        self.0
    }

    /// The exclusion of that number.
    pub fn at(index: u32) -> Exclusion {
        Exclusion(index)
    }
}

/// Puts a range on the list of memory no pager may take. `None` when the list is full.
pub fn exclude(address: usize, len: usize) -> Option<Exclusion> {
    let (index, entry) = LIST.iter().enumerate().find(|(_, entry)| {
        let taken = entry
            .len
            .compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    })?;
    HIGH_WATER.fetch_max(index + 1, Ordering::Relaxed);
    entry.address.store(address, Ordering::Relaxed);
    entry.len.store(len, Ordering::Release);
    Some(Exclusion(index as u32))
}

fn used() -> &'static [Entry] {
    &LIST[..HIGH_WATER.load(Ordering::Relaxed)]
}

/// Takes a range put there by [`exclude`] off the list.
pub fn include(exclusion: Exclusion) {
    LIST[exclusion.0 as usize].len.store(0, Ordering::Release);
}

/// Calls `visit` with every excluded range that overlaps `range`.
pub fn overlapping(range: PageRange, mut visit: impl FnMut(PageRange)) {
    for entry in used() {
        let len = entry.len.load(Ordering::Acquire);
        if len == 0 || len == BUSY {
            continue;
        }
        let own = PageRange::covering(entry.address.load(Ordering::Relaxed), len);
        if !own.intersection(range).is_empty() {
            visit(own);
        }
    }
}

/// Anonymous memory of Pagetide's own: excluded from every pager, left out of core dumps, unmapped
/// on drop.
#[derive(Debug)]
pub struct Mapping {
    address: usize,
    len: usize,
    /// None in the arena, which is excluded as a whole.
    exclusion: Option<Exclusion>,
}

impl Mapping {
    /// Maps `len` bytes (rounded up to pages) of zeros, readable and writable, charged only as they
    /// are touched. Where address space was set aside ([`arena`]), they come from there, and
    /// `RLIMIT_DATA` does not count them.
    pub fn new(len: usize) -> Result<Mapping, Errno> {
        Mapping::with(len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Reserves address space without access.
    pub fn reserve(len: usize) -> Result<Mapping, Errno> {
        Mapping::with(len, ProtFlags::empty())
    }

    fn with(len: usize, protection: ProtFlags) -> Result<Mapping, Errno> {
        let len = PageRange::covering(0, len.max(1)).bytes();
        if let Some(address) = arena::take(len)? {
            let mapping = Mapping {
                address,
                len,
                exclusion: None,
            };
            if !protection.is_empty() {
                arena::open(address, len)?;
            }
            return Ok(mapping);
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice disturbs nothing.
        let address =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }? as usize;
        Mapping::exclude(address, len).map(Mapping::without_dump)
    }

    fn without_dump(self) -> Mapping {
        // SAFETY: advice on our own new mapping; leaving it out of core dumps changes no contents.
        let _ = unsafe { madvise(self.address as *mut _, self.len, Advice::LinuxDontDump) };
        self
    }

    /// Maps `len` bytes of zeros at `address`, the beginning of a page; `EEXIST` if something is
    /// mapped there.
    pub fn at(address: usize, len: usize) -> Result<Mapping, Errno> {
        let len = PageRange::covering(0, len.max(1)).bytes();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: nothing that is mapped there is replaced.
        let mapped = unsafe { mmap_anonymous(address as *mut _, len, protection, flags) }? as usize;
        let mapping = Mapping::exclude(mapped, len)?;
        // Linux before 4.17 takes the address as a hint.
        match mapped == address {
            true => Ok(mapping.without_dump()),
            false => Err(Errno::EXIST),
        }
    }

    /// Maps the first `len` bytes of `file`, shared: what is written there outlives the process.
    pub fn shared(file: impl rustix::fd::AsFd, len: usize) -> Result<Mapping, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice disturbs nothing.
        let address = unsafe {
            let at = std::ptr::null_mut();
            rustix::mm::mmap(at, len, protection, MapFlags::SHARED, file, 0)
        }? as usize;
        Mapping::exclude(address, len)
    }

    /// Of memory mapped just before, which nobody knows of yet.
    fn exclude(address: usize, len: usize) -> Result<Mapping, Errno> {
        let exclusion = exclude(address, len);
        if exclusion.is_none() {
            // SAFETY: by the caller's word.
            let _ = unsafe { munmap(address as *mut _, len) };
        }
        exclusion.ok_or(Errno::NFILE).map(|exclusion| Mapping {
            address,
            len,
            exclusion: Some(exclusion),
        })
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address as *mut u8
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: a mapping has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pages mapped.
    pub fn range(&self) -> PageRange {
        PageRange::covering(self.address, self.len)
    }

    /// Keeps the memory mapped (and excluded) for the rest of the process.
    pub fn leak(self) -> *mut u8 {
        let address = self.as_ptr();
        std::mem::forget(self);
        address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Some(exclusion) = self.exclusion else {
            return arena::give_back(self.address, self.len);
        };
        include(exclusion);
        // SAFETY: the mapping is ours and nobody else holds its address after this.
        let _ = unsafe { munmap(self.address as *mut _, self.len) };
    }
}

/// Address space set aside once, from which all later mappings come.
///
/// Inside an unmodified program this matters twice over: memory mapped and only then put on the
/// list could be taken by the pager in between, and a mapping at a place of the kernel's choice
/// could land where the program has just made room for its own.
///
/// Pieces in use are mapped as stacks are (`MAP_GROWSDOWN`): private, so that a forked child has
/// its own, and yet not what `RLIMIT_DATA` counts. A program may lower that limit to little more
/// than it uses itself, and the pager's tables must not be what exceeds it. They never grow: what
/// lies below each of them is mapped, too.
pub mod arena {
    use rustix::mm::{MprotectFlags, mprotect};

    use super::*;
    use crate::sync::Mutex;

    const FREE_LIST: usize = 256;
    /// Never given out: mapped and no stack, so that the lowest piece does not grow where the
    /// program touches what is not its own.
    const FOOT: usize = crate::page::PAGE_SIZE;

    struct Arena {
        base: usize,
        len: usize,
        used: usize,
        /// (address, len) of pieces given back; `len` 0 is no piece.
        free: [(usize, usize); FREE_LIST],
    }

    static ARENA: Mutex<Arena> = Mutex::new(Arena {
        base: 0,
        len: 0,
        used: 0,
        free: [(0, 0); FREE_LIST],
    });

    /// Sets aside up to `len` bytes of address space, or as much of it (halving) as there is; at
    /// least `least`.
    pub fn set_aside(len: usize, least: usize) -> Result<(), Errno> {
        let mut len = PageRange::covering(0, len).bytes();
        let mapping = loop {
            match Mapping::reserve(len) {
                Ok(mapping) => break mapping,
                Err(errno) if len / 2 < least => return Err(errno),
                Err(_) => len /= 2,
            }
        };
        *ARENA.lock() = Arena {
            base: mapping.leak() as usize,
            len,
            used: FOOT,
            free: [(0, 0); FREE_LIST],
        };
        Ok(())
    }

    /// A piece of `len` bytes, without access and zeroed when opened; `None` if nothing was set
    /// aside.
    pub(super) fn take(len: usize) -> Result<Option<usize>, Errno> {
        let mut arena = ARENA.lock();
        if arena.len == 0 {
            return Ok(None);
        }
        if let Some(piece) = arena.free.iter_mut().find(|piece| piece.1 == len) {
            let address = piece.0;
            *piece = (0, 0);
            return Ok(Some(address));
        }
        if arena.used + len > arena.len {
            return Err(Errno::NOMEM);
        }
        arena.used += len;
        Ok(Some(arena.base + arena.used - len))
    }

    /// Makes a piece readable and writable; it holds zeros.
    pub(super) fn open(address: usize, len: usize) -> Result<(), Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED | MapFlags::GROWSDOWN;
        // SAFETY: the piece was taken from the arena just now: it is ours, and nobody uses it yet.
        let mapped = unsafe { mmap_anonymous(address as *mut _, len, protection, flags) };
        if mapped.is_err() {
            // A process beyond its RLIMIT_AS may map nothing, not even in the place of something as
            // long. It may still change rights; the piece then counts as data.
            let rights = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: as above.
            unsafe { mprotect(address as *mut _, len, rights) }?;
        }
        // Tables are sparse: a huge page would be mostly empty. Nor does a core dump need them.
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontDump] {
            // SAFETY: advice on our own new mapping that changes no contents.
            let _ = unsafe { madvise(address as *mut _, len, advice) };
        }
        Ok(())
    }

    /// Takes a piece back; its memory returns to the kernel.
    pub(super) fn give_back(address: usize, len: usize) {
        // SAFETY: the piece is ours, and nobody holds its address after this.
        unsafe {
            let _ = madvise(address as *mut _, len, Advice::LinuxDontNeed);
            let _ = mprotect(address as *mut _, len, MprotectFlags::empty());
        }
        let mut arena = ARENA.lock();
        if let Some(room) = arena.free.iter_mut().find(|piece| piece.1 == 0) {
            *room = (address, len);
        }
    }
}

/// Gives the pages of `range` back to the kernel; they read as zeros when next touched.
///
/// # Safety
/// The contents of `range` must be dispensable.
pub unsafe fn discard(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the caller answers for the contents.
    unsafe {
        madvise(
            range.address() as *mut _,
            range.bytes(),
            Advice::LinuxDontNeed,
        )
    }
}
