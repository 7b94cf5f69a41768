//! What this kernel and this process may do: each answer comes from doing it, on a throw-away
//! descriptor or a scratch page.
//!
//! For a process that asks about itself (the command, tests), not for one that is governed:
//! descriptors are opened and closed.
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::mm::{MlockFlags, MprotectFlags, mlock_with, mprotect, munlock};

use crate::memory::{BatchDropper, OwnMemory, make_exclusive};
use crate::own::Mapping;
use crate::page::{PAGE_SIZE, PageRange};
use crate::pagemap::Pagemap;
use crate::uffd::{self, Progress, Stop, Uffd, feature, open_by_syscall};

/// How a userfaultfd can be opened by this process, each way tried on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Openings {
    /// Through `/dev/userfaultfd`, whose file permission decides.
    pub device: Result<(), Errno>,
    /// Through the system call; root, or `vm.unprivileged_userfaultfd=1`.
    pub syscall: Result<(), Errno>,
    /// Through the system call for faults taken in user mode only; no privilege, but `read(2)` into
    /// a missing page fails.
    pub user_mode_only: Result<(), Errno>,
}

impl Openings {
    /// Tries each way in.
    pub fn probe() -> Openings {
        Openings {
            device: open_by_device().map(drop),
            syscall: open_by_syscall(false).map(drop),
            user_mode_only: open_by_syscall(true).map(drop),
        }
    }

    /// Faults taken in kernel mode can be served, which `pagetide run` needs.
    pub fn serve_kernel_mode(&self) -> bool {
        self.device.is_ok() || self.syscall.is_ok()
    }
}

/// Opens a userfaultfd through the device file only.
fn open_by_device() -> Result<OwnedFd, Errno> {
    let device = uffd::open_device()?;
    uffd::open(Some(device.as_fd())).map_err(|both| both.device)
}

/// Any userfaultfd this process may have; to ask about features, user mode is enough.
fn open_any() -> Result<OwnedFd, Errno> {
    uffd::open(None).or_else(|_| open_by_syscall(true))
}

/// The `UFFDIO_API` features of this kernel, [`feature`] bits. Those that need a privilege (fork
/// events) are named regardless of it.
pub fn userfaultfd_features() -> Result<u64, Errno> {
    Uffd::kernel_features(open_any()?)
}

/// What happened when scratch pages were installed, protected, moved and poisoned. `None`: the
/// kernel does not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagingTrial {
    /// `UFFDIO_COPY`, write-protected.
    pub copy: Result<(), Stop>,
    /// `UFFDIO_WRITEPROTECT`, off again.
    pub write_protect: Option<Result<(), Stop>>,
    /// `UFFDIO_MOVE`; the bytes arrived.
    pub move_pages: Option<Result<(), Stop>>,
    /// `UFFDIO_POISON`.
    pub poison: Option<Result<(), Stop>>,
}

impl PagingTrial {
    /// Installs, protects, moves and poisons scratch pages, as far as `features` say the kernel
    /// can.
    pub fn run(features: u64) -> Result<PagingTrial, Errno> {
        const BYTE: u8 = 0xA5;
        let scratch = Mapping::new(3 * PAGE_SIZE)?;
        let source = [BYTE; PAGE_SIZE];
        let pages: Vec<PageRange> = scratch.range().iter().map(PageRange::one).collect();
        let has = |bit: u64| features & bit != 0;
        let wanted = features & (feature::PAGEFAULT_FLAG_WP | feature::MOVE | feature::POISON);
        let uffd = Uffd::negotiate(open_any()?, wanted)?;
        let protects = has(feature::PAGEFAULT_FLAG_WP);
        // SAFETY: nobody else knows the scratch pages, and this thread touches only the one that
        // has been installed.
        unsafe { uffd.register(scratch.range()) }?;
        // SAFETY: `source` is a whole page of our stack; the scratch page's bytes matter to nobody.
        let copy = outcome(unsafe { uffd.copy(pages[0], source.as_ptr(), protects) });
        let write_protect = protects.then(|| uffd.write_protect(pages[0], false));
        let move_pages = has(feature::MOVE).then(|| {
            // SAFETY: nobody else uses either scratch page.
            outcome(unsafe { uffd.move_pages(pages[1], pages[0].start, false) })?;
            // SAFETY: the move just made this page present, so reading it faults on nothing.
            let arrived = unsafe { (pages[1].address() as *const u8).read_volatile() };
            if arrived == BYTE {
                Ok(())
            } else {
                Err(Stop::Other(Errno::IO))
            }
        });
        let poison = has(feature::POISON).then(|| outcome(uffd.poison(pages[2])));
        Ok(PagingTrial {
            copy,
            write_protect,
            move_pages,
            poison,
        })
    }
}

/// Read-write protection (7.3) on scratch pages: of two that were protected, the one that was
/// touched counts as accessed.
pub fn read_write_protection() -> Result<(), Errno> {
    let has = userfaultfd_features()?;
    let wanted = feature::RWP | feature::RWP_ASYNC;
    if has & wanted != wanted {
        return Err(Errno::INVAL);
    }
    let scratch = Mapping::new(2 * PAGE_SIZE)?;
    make_exclusive(scratch.range())?;
    let uffd = Uffd::negotiate(open_any()?, wanted)?;
    uffd.register_read_write_protect(scratch.range())?;
    uffd.read_write_protect(scratch.range(), true)
        .map_err(|_| Errno::IO)?;
    // SAFETY: the scratch page is mapped, and the kernel ends its protection by itself.
    unsafe { scratch.as_ptr().read_volatile() };
    let mut idle = Vec::new();
    Pagemap::open().not_accessed(scratch.range(), |run| idle.extend(run.iter()))?;
    match idle == [scratch.range().start.add(1)] {
        true => Ok(()),
        false => Err(Errno::IO),
    }
}

/// One page done, or why not.
fn outcome(progress: Progress) -> Result<(), Stop> {
    match progress {
        Progress {
            stop: Some(stop), ..
        } => Err(stop),
        Progress { pages: 1, .. } => Ok(()),
        Progress { .. } => Err(Stop::Other(Errno::IO)),
    }
}

/// A scratch page holding `byte` throughout.
fn written_page(byte: u8) -> Result<Mapping, Errno> {
    let page = Mapping::new(PAGE_SIZE)?;
    // SAFETY: the page is mapped writable and known to nobody else.
    unsafe { page.as_ptr().write_bytes(byte, PAGE_SIZE) };
    Ok(page)
}

/// `PAGEMAP_SCAN` on own memory: finds a scratch page that was only read, and says that it is the
/// zero page, which the older interface cannot.
pub fn pagemap_scan() -> Result<(), Errno> {
    let page = Mapping::new(PAGE_SIZE)?;
    // SAFETY: the page is mapped readable.
    unsafe { page.as_ptr().read_volatile() };
    let mut zero_page = false;
    Pagemap::open().populated(page.range(), |_, zero| zero_page = zero)?;
    if zero_page { Ok(()) } else { Err(Errno::NOTTY) }
}

/// The older `/proc/self/pagemap`: finds a scratch page that was written.
pub fn pagemap_entries() -> Result<(), Errno> {
    let page = written_page(1)?;
    let mut found = 0;
    Pagemap::open().populated(page.range(), |run, _| found += run.pages())?;
    if found == 1 {
        Ok(())
    } else {
        Err(Errno::NODATA)
    }
}

/// `process_madvise(MADV_DONTNEED)` on own memory: empties a scratch page.
pub fn batch_drop() -> Result<(), Errno> {
    let page = written_page(1)?;
    // SAFETY: the scratch page's bytes matter to nobody.
    unsafe { BatchDropper::new()?.drop_ranges(&[page.range()]) }?;
    // SAFETY: the page is mapped readable.
    let emptied = unsafe { page.as_ptr().read_volatile() } == 0;
    if emptied { Ok(()) } else { Err(Errno::IO) }
}

/// `MADV_POPULATE_WRITE`: makes a scratch page present.
pub fn populate_write() -> Result<(), Errno> {
    make_exclusive(Mapping::new(PAGE_SIZE)?.range())
}

/// `/proc/self/mem`: reads a scratch page that may not be accessed.
pub fn own_memory() -> Result<(), Errno> {
    let page = written_page(7)?;
    // SAFETY: nobody accesses the scratch page from now on.
    unsafe { mprotect(page.as_ptr().cast(), page.len(), MprotectFlags::empty()) }?;
    crate::procfs::open_self(c"/proc/self/mem")?;
    let mut bytes = [0; PAGE_SIZE];
    let rooms = &mut [IoSliceMut::new(&mut bytes)];
    let read = OwnMemory::open().read(page.range().start, rooms);
    if read == 1 && bytes == [7; PAGE_SIZE] {
        Ok(())
    } else {
        Err(Errno::IO)
    }
}

/// `mlock2(MLOCK_ONFAULT)` on a scratch page.
pub fn lock_on_fault() -> Result<(), Errno> {
    let page = Mapping::new(PAGE_SIZE)?;
    // SAFETY: the page is mapped and ours; locking changes no bytes.
    unsafe {
        mlock_with(page.as_ptr().cast(), PAGE_SIZE, MlockFlags::ONFAULT)?;
        munlock(page.as_ptr().cast(), PAGE_SIZE)
    }
}

/// Syscall User Dispatch: on for this thread, with every address exempt so that nothing is
/// dispatched, and off again.
#[cfg(target_arch = "x86_64")]
pub fn syscall_user_dispatch() -> Result<(), Errno> {
    const SYS_PRCTL: usize = 157;
    const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
    let prctl = |on: usize, exempt_bytes: usize| {
        let args = [PR_SET_SYSCALL_USER_DISPATCH, on, 0, exempt_bytes, 0, 0];
        // SAFETY: with the whole address space exempt no system call is dispatched, and no selector
        // is given to be read.
        unsafe { crate::syscall::syscall(SYS_PRCTL, args) }.map(drop)
    };
    prctl(1, usize::MAX)?;
    prctl(0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_in_gives_the_same_features() {
        let openings = Openings::probe();
        if openings.user_mode_only.is_err() && !openings.serve_kernel_mode() {
            eprintln!("SKIPPED: no userfaultfd here: {openings:?}");
            return;
        }
        let features = userfaultfd_features().unwrap();
        assert_ne!(features & feature::PAGEFAULT_FLAG_WP, 0);
        let trial = PagingTrial::run(features).unwrap();
        assert_eq!(trial.copy, Ok(()));
        assert_eq!(trial.write_protect, Some(Ok(())));
        for tried in [trial.move_pages, trial.poison].into_iter().flatten() {
            assert_eq!(tried, Ok(()), "{trial:?}");
        }
    }

    #[test]
    fn a_kernel_without_a_feature_is_not_asked_for_it() {
        if let Ok(trial) = PagingTrial::run(0) {
            assert_eq!(
                (trial.write_protect, trial.move_pages, trial.poison),
                (None, None, None)
            );
        }
    }

    #[test]
    fn probes_leave_nothing_behind() {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let run = || {
            let _ = (
                Openings::probe(),
                pagemap_scan(),
                pagemap_entries(),
                batch_drop(),
                populate_write(),
            );
            let _ = (own_memory(), lock_on_fault(), syscall_user_dispatch());
            let _ = read_write_protection();
        };
        (0..20).for_each(|_| run());
        // Other tests of this process open a few of their own meanwhile.
        assert!(open() < before + 15, "descriptors leak");
    }
}
