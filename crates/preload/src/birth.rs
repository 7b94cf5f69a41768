//! Whether the pager of a forked child gets the threads that it needs, which the child tells its
//! parent: where it does not (a limit on processes), the fork fails and the child is gone.
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::fork::syscall6;
use pagetide_kernel::sync::{futex_wait_shared, futex_wake_shared, now_ns};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Pid, WaitIdOptions, waitid};

/// What the child has said: nothing yet, that it has its threads, or else the errno.
const NOTHING: u32 = 0;
const HAS_THREADS: u32 = u32::MAX;

/// A word that parent and child share, made before the fork and unmapped in both after it.
#[derive(Debug)]
pub struct Birth(NonNull<AtomicU32>);

// SAFETY: the word is in shared memory and atomic.
unsafe impl Send for Birth {}

impl Birth {
    /// Says nothing yet.
    pub fn expected() -> Result<Birth, Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping.
        let address =
            unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_SIZE, protection, flags) }?;
        NonNull::new(address.cast()).map(Birth).ok_or(Errno::NOMEM)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped, zeroed and as large as a page for as long as this lives.
        unsafe { self.0.as_ref() }
    }

    fn say(&self, said: u32) {
        self.word().store(said, Ordering::Release);
        futex_wake_shared(self.word(), 1);
    }

    /// In the child: its threads are there.
    pub fn succeeds(&self) {
        self.say(HAS_THREADS);
    }

    /// In the child: there is no thread for it. It ends, and has touched nothing that others see.
    pub fn fails(&self, errno: Errno) -> ! {
        const SYS_EXIT_GROUP: usize = 231;
        self.say(errno.raw_os_error() as u32);
        loop {
            // SAFETY: ends the process.
            unsafe { syscall6(SYS_EXIT_GROUP, [1, 0, 0, 0, 0, 0]) };
        }
    }

    /// In the parent: waits until `child` has said how it is. One that is over or that says nothing
    /// for a second (a debugger has stopped it) is a child like any other.
    ///
    /// # Errors
    /// Why it could not have its threads; nothing is left of it.
    pub fn outcome(&self, child: u32) -> Result<(), Errno> {
        const LOOK_EVERY: Duration = Duration::from_millis(20);
        const PATIENCE_NS: u64 = 1_000_000_000;
        let until_ns = now_ns() + PATIENCE_NS;
        let child = Pid::from_raw(child as i32);
        loop {
            match self.word().load(Ordering::Acquire) {
                NOTHING => {}
                HAS_THREADS => return Ok(()),
                errno => {
                    // Nobody has heard of it yet.
                    let _ = child.map(|child| wait(child, WaitIdOptions::EXITED));
                    return Err(Errno::from_raw_os_error(errno as i32));
                }
            }
            futex_wait_shared(self.word(), NOTHING, LOOK_EVERY);
            let is_silent = self.word().load(Ordering::Acquire) == NOTHING;
            if is_silent && (child.is_none_or(is_over) || now_ns() > until_ns) {
                return Ok(());
            }
        }
    }
}

impl Drop for Birth {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, of which no reference is left.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE_SIZE) };
    }
}

/// Whether a child has ended, and possibly been waited for.
fn is_over(child: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    wait(child, look)
}

fn wait(child: Pid, options: WaitIdOptions) -> bool {
    // Also for a child that was to end without a signal.
    const ALL: WaitIdOptions = WaitIdOptions::from_bits_retain(0x4000_0000);
    loop {
        match waitid(rustix::process::WaitId::Pid(child), options | ALL) {
            Err(Errno::INTR) => {}
            Ok(status) => return status.is_some(),
            Err(_) => return true,
        }
    }
}
