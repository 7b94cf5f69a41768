//! What the tests of locking share: processes of their own, oracles that need no trust in the
//! registry, and mappings.
#![allow(dead_code)] // each test file uses its own part of this

#[path = "../../../cli/tests/support/patience.rs"]
pub mod patience;
#[path = "../../../cli/tests/support/skip.rs"]
pub mod skip;

use std::ffi::c_void;

use pagetide::lock;
use pagetide_kernel::smaps::{self, Area};
use pagetide_kernel::{PageRange, limits};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

pub const PAGE: usize = 4096;
pub const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Runs `test` in a forked child, so that what it locks is alone in its process. A panic there
/// fails the test.
#[track_caller]
pub fn in_child(test: impl FnOnce()) {
    let status = child_status(test);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child ended with status {status:#x}"
    );
}

/// The same, returning how the child ended, as `waitpid` says it.
pub fn child_status(test: impl FnOnce()) -> i32 {
    // SAFETY: the child runs the test alone and ends with `_exit`; glibc's `fork` keeps its
    // allocator usable there.
    match unsafe { libc::fork() } {
        0 => {
            // A panic that went on into the harness would end this thread, the child's only one,
            // and with it the child with status 0.
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
            if let Err(reason) = &ended {
                // What the harness has caught of the panic's message ends with the child.
                let text = reason.downcast_ref::<String>().map(String::as_str);
                let text = text.or(reason.downcast_ref::<&str>().copied());
                let text = format!("in a child: {}\n", text.unwrap_or("a panic"));
                let _ = rustix::io::write(std::io::stderr(), text.as_bytes());
            }
            // SAFETY: ends the child without running the harness's exit handlers.
            unsafe { libc::_exit(if ended.is_ok() { 0 } else { 101 }) }
        }
        child => {
            assert!(child > 0, "fork failed");
            let mut status = 0;
            // SAFETY: waits for our own child.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(waited, child);
            status
        }
    }
}

/// Becomes an ordinary user with this lock limit. As an ordinary user already, only lowers the
/// limit.
pub fn become_user(limit_bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: limit_bytes,
        rlim_max: limit_bytes,
    };
    // SAFETY: plain system calls on numbers, in a child of our own.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
        if libc::geteuid() == 0 {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!(libc::setgid(65534), 0);
            assert_eq!(libc::setuid(65534), 0);
            // Its own /proc files would be root's else.
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        }
    }
    assert!(!limits::LockLimits::read().capable);
}

pub fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// The kernel's charge for this process.
pub fn vmlck() -> u64 {
    limits::locked_bytes(None).unwrap()
}

/// Has the library make the page it keeps for itself, so that it makes none between what a test
/// compares.
pub fn settle() {
    let _ = lock::fork_policy();
}

/// Fresh private memory of so many pages, with a page without access before and behind, so that
/// neighbours do not merge with it.
pub fn map(pages: usize) -> *mut u8 {
    settle();
    // SAFETY: new mappings at a place of the kernel's choice, and a part of it opened.
    unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let start = mmap_anonymous(
            std::ptr::null_mut(),
            (pages + 2) * PAGE,
            ProtFlags::empty(),
            flags,
        )
        .unwrap()
        .cast::<u8>()
        .add(PAGE);
        rustix::mm::mprotect(
            start.cast(),
            pages * PAGE,
            rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
        )
        .unwrap();
        start
    }
}

pub fn touch(start: *mut u8, page: usize) {
    // SAFETY: the tests pass pages that they have mapped writable.
    unsafe { start.add(page * PAGE).write_volatile(1) }
}

/// Per page: locked by the kernel, and if so, on fault (`None` for the mode where the kernel does
/// not tell).
pub fn kernel_view(start: *mut u8, pages: usize) -> Vec<Option<Option<bool>>> {
    let areas = smaps::locked(None).unwrap();
    let tells = smaps::tells_mode();
    (0..pages)
        .map(|page| {
            let address = start as usize + page * PAGE;
            let area = areas
                .iter()
                .find(|area| (area.start..area.end).contains(&address))?;
            Some(tells.then_some(area.on_fault))
        })
        .collect()
}

/// Whether each page is locked.
pub fn locked_pages(start: *mut u8, pages: usize) -> Vec<bool> {
    kernel_view(start, pages)
        .into_iter()
        .map(|page| page.is_some())
        .collect()
}

/// The mapping that holds `address`.
pub fn area_of(address: *const u8) -> Area {
    let mut found = None;
    smaps::for_each(None, |area| {
        if (area.start..area.end).contains(&(address as usize)) {
            found = Some(area);
        }
    })
    .unwrap();
    found.expect("the address is mapped")
}

/// Pages present, by `mincore`.
pub fn present(start: *const u8, pages: usize) -> Vec<bool> {
    let mut bytes = vec![0u8; pages];
    let range = PageRange::covering(start as usize, pages * PAGE);
    pagetide_kernel::residency::mincore(range, &mut bytes).unwrap();
    bytes.into_iter().map(|byte| byte & 1 != 0).collect()
}

/// What the registry says of the pages of `start`: mode per page.
pub fn registry_view(start: *mut u8, pages: usize) -> Vec<Option<lock::Mode>> {
    let ranges = lock::ranges().unwrap();
    (0..pages)
        .map(|page| {
            let address = start as usize + page * PAGE;
            let range = ranges
                .iter()
                .find(|range| (range.address..range.address + range.len).contains(&address));
            range.map(|range| range.mode)
        })
        .collect()
}

/// The registry and the kernel agree about the pages of `start`.
#[track_caller]
pub fn agree(start: *mut u8, pages: usize) {
    let kernel = kernel_view(start, pages);
    let registry = registry_view(start, pages);
    for (page, (kernel, registry)) in kernel.iter().zip(&registry).enumerate() {
        let same = match (kernel, registry) {
            (None, None) => true,
            (Some(Some(on_fault)), Some(mode)) => *on_fault == (*mode == lock::Mode::OnFault),
            (Some(None), Some(_)) => true,
            _ => false,
        };
        assert!(
            same,
            "page {page}: kernel {kernel:?}, registry {registry:?}"
        );
    }
}

/// The same random numbers each time.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

pub fn void(start: *mut u8) -> *mut c_void {
    start.cast()
}
