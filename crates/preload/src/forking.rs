//! Forks: the child goes on with every byte the parent had, evicted ones too, and with a pager of
//! its own.
//!
//! The parent's threads hold still over the system call, so that page words, queue and heap are
//! copied in a consistent state. The parent's store is frozen for the child: what is in it now
//! stays readable until the child's lease ends (exit or exec). The child reads it through its own
//! copy of the store object and descriptors handed over; what it evicts goes to a store of its own.
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

use pagetide_kernel::fork::{AroundFork, forking_call, syscall6, with_forks_caught};
use pagetide_kernel::memory::set_inherited;
use pagetide_kernel::sync::{LockGuard, Mutex};
use pagetide_kernel::uffd;
use pagetide_pager::address_space::mapping_lock::MappingGuard;
use pagetide_pager::page::word::GENERATIONS;
use pagetide_store::Freeze;
use rustix::io::Errno;
use rustix::process::Resource;

use crate::advice::{self, Wish};
use crate::agent::{Agent, Kept, agent};
use crate::birth::Birth;
use crate::child::{Inheritance, restart_in_child};
use crate::leases::{self, Ticket};
use crate::next::{Next, set_errno};
use crate::requests::{self, AUXILIARY};
use crate::{alloc, exec, grown, handover, scratch_stack};

/// A child's agent needs about 16 descriptors; with a lower limit the fork is refused rather than
/// the child ended.
const DESCRIPTORS_NEEDED: u64 = 20;
/// Likewise the bytes of address space that a child's store and tables take at least.
const ADDRESS_SPACE_NEEDED: u64 = 8 << 20;

/// What is said of a fork that was refused for want of the right to page.
const NO_RIGHT: &[u8] = b"fork failed with EPERM: this process gave up the right to page, which \
    its child needs; where /dev/userfaultfd is (Linux 6.1; given to a container) it is kept";

/// What is said of a fork that was taken back because the child's pager could have no threads.
const NO_THREADS: &[u8] = b"fork failed with EAGAIN: a child needs room for itself and for four \
    threads of its pager among what this user or control group may have; raise `ulimit -u`, or \
    pids.max of the group";

/// Held from just before the system call until just after, in parent and child.
struct Held {
    inheritance: Box<Inheritance>,
    ticket: Ticket,
    freeze: Freeze,
    _heap: alloc::Still,
    _auxiliary: LockGuard<'static>,
    /// No other thread is moving memory: its words would not come along.
    _alone: MappingGuard<'static>,
}

struct Caught {
    agent: &'static Agent,
    held: Mutex<Option<Held>>,
    /// The child uses the parent's descriptor table (CLONE_FILES without CLONE_VM): what it is
    /// handed over is there once.
    shares_files: bool,
}

impl Caught {
    fn new(agent: &'static Agent, shares_files: bool) -> Caught {
        agent.pager.begin_call();
        Caught {
            agent,
            held: Mutex::new(None),
            shares_files,
        }
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        self.agent.pager.end_call();
    }
}

/// Looks up what will be needed later, when looking up would not be safe.
pub fn prepare() {
    Next::prepare(&[&FORK, &UNDERSCORE_FORK, &DAEMON, &FORKPTY]);
    exec::prepare();
    scratch_stack::prepare();
}

impl Caught {
    /// Copies of everything the child needs, and the lease that is to be ended once the fork is
    /// over.
    fn hand_over(&self) -> Result<(Kept, Ticket), Errno> {
        let pager = &self.agent.pager;
        let limit = |resource| rustix::process::getrlimit(resource).current;
        let address_space = requests::address_space_bytes() + ADDRESS_SPACE_NEEDED;
        if pager.stores.generation() as usize + 1 >= GENERATIONS
            || limit(Resource::Nofile).is_some_and(|most| most < DESCRIPTORS_NEEDED)
            || limit(Resource::As).is_some_and(|most| most < address_space)
        {
            return Err(Errno::AGAIN);
        }
        self.check_right()?;
        let (ticket, lease_fd) = leases::begin(self.agent)?;
        let handed_over = self
            .copy_all(lease_fd)
            .inspect_err(|_| leases::end(ticket, None))?;
        Ok((handed_over, ticket))
    }

    /// A child needs a userfaultfd, which it opens by the device that was kept, or, without one,
    /// with the rights that the program has by now.
    fn check_right(&self) -> Result<(), Errno> {
        if self.agent.kept.lock().device.is_some() {
            return Ok(());
        }
        let opened = uffd::open(None);
        opened.map(drop).map_err(|error| {
            if error.syscall == Errno::PERM {
                self.agent.pager.ledger.set_message(NO_RIGHT);
            }
            error.syscall
        })
    }

    fn copy_all(&self, lease_fd: RawFd) -> Result<Kept, Errno> {
        let mut kept = self.agent.kept.lock().clone();
        kept.leases.push(lease_fd);
        let copies = handover::copies(self.agent, &kept.numbers().collect::<Vec<_>>())?;
        kept.renumber(copies.into_iter().map(OwnedFd::into_raw_fd));
        Ok(kept)
    }

    /// The pager's threads hold still, and memory stays where it is; none if some has grown that
    /// they do not know of.
    fn hold_still(&self) -> Option<(MappingGuard<'static>, LockGuard<'static>)> {
        let pager = &self.agent.pager;
        let alone = pager.space.mapping_lock.enter_call();
        // The scanner, while it works, waits for the fault thread: it must be done before that one
        // holds still.
        let auxiliary = AUXILIARY.lock();
        pager.pause();
        if grown::is_there(pager) {
            pager.resume();
            return None;
        }
        Some((alone, auxiliary))
    }

    fn take_held(&self) -> Held {
        self.held.lock().take().expect("set before")
    }

    fn set_all_inherited(&self, inherited: bool) {
        self.agent.pager.each_managed(|range| {
            let _ = set_inherited(range, inherited);
        });
        if inherited {
            advice::each(Wish::Absent, |range| {
                let _ = set_inherited(range, false);
            });
        }
    }
}

fn close_all(kept: &Kept) {
    for fd in kept.numbers() {
        // SAFETY: copies made for this fork in this thread's table, and nobody else's.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

impl AroundFork for Caught {
    fn before(&self) -> Result<(), Errno> {
        let birth = Birth::expected()?;
        let (kept, ticket) = self.hand_over()?;
        let inheritance = Box::new(Inheritance { kept, birth });
        let held = grown::until_known(|| self.hold_still());
        let (alone, auxiliary) = held.inspect_err(|_| {
            close_all(&inheritance.kept);
            leases::end(ticket, None);
        })?;
        // Not before: what the evictor stores up to here must be frozen as well.
        let freeze = self.agent.pager.stores.active().freeze();
        self.set_all_inherited(true);
        let heap = alloc::hold();
        *self.held.lock() = Some(Held {
            inheritance,
            ticket,
            freeze,
            _heap: heap,
            _auxiliary: auxiliary,
            _alone: alone,
        });
        Ok(())
    }

    fn parent(&self, forked: Result<u32, Errno>) -> Result<(), Errno> {
        let Held {
            inheritance,
            ticket,
            freeze,
            _heap,
            _auxiliary,
            _alone,
        } = self.take_held();
        drop(_heap);
        self.set_all_inherited(false);
        drop(_auxiliary);
        self.agent.pager.note_fork();
        self.agent.pager.resume();
        leases::end(ticket, Some(freeze));
        // Nobody else waits with this thread.
        drop(_alone);
        let Inheritance { kept, birth } = *inheritance;
        if !self.shares_files {
            close_all(&kept);
        }
        let born = forked.and_then(|child| birth.outcome(child));
        // In a table that both use, the child closes them: its agent needs them first.
        if self.shares_files && born.is_err() {
            close_all(&kept);
        }
        if born.is_err() && forked.is_ok() {
            self.agent.pager.ledger.set_message(NO_THREADS);
        }
        born
    }

    fn child(&self) {
        let Held {
            inheritance,
            _heap,
            _auxiliary,
            _alone,
            ..
        } = self.take_held();
        drop(_heap);
        drop(_auxiliary);
        // The numbers stay valid in the child's scanner, whose table starts as a copy of this one.
        let copy = inheritance.kept.clone();
        restart_in_child(inheritance);
        close_all(&copy);
    }
}

/// Runs `action`, which forks through the C library, with its fork caught; `failed` is returned,
/// with `errno`, if it cannot be.
fn caught(action: impl FnOnce() -> i32, failed: i32) -> i32 {
    let Some(agent) = agent() else {
        return action();
    };
    let outcome = scratch_stack::with(|| {
        let caught = Caught::new(agent, false);
        // SAFETY: one at a time, by `scratch_stack`, in the child too.
        unsafe { with_forks_caught(&caught, action) }
    });
    outcome.unwrap_or_else(|errno| {
        set_errno(errno.raw_os_error());
        failed
    })
}

static FORK: Next = Next::new(c"fork");
static UNDERSCORE_FORK: Next = Next::new(c"_Fork");
static DAEMON: Next = Next::new(c"daemon");
static FORKPTY: Next = Next::new(c"forkpty");

/// Stands before `fork`.
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> i32 {
    // SAFETY: the C library's `fork`.
    let next: extern "C" fn() -> i32 = unsafe { std::mem::transmute(FORK.address()) };
    caught(|| next(), -1)
}

/// Stands before `_Fork`.
#[unsafe(no_mangle)]
pub extern "C" fn _Fork() -> i32 {
    // SAFETY: the C library's `_Fork`.
    let next: extern "C" fn() -> i32 = unsafe { std::mem::transmute(UNDERSCORE_FORK.address()) };
    caught(|| next(), -1)
}

/// Stands before `daemon`, which forks inside the C library.
#[unsafe(no_mangle)]
pub extern "C" fn daemon(nochdir: i32, noclose: i32) -> i32 {
    // SAFETY: the C library's `daemon`.
    let next: extern "C" fn(i32, i32) -> i32 = unsafe { std::mem::transmute(DAEMON.address()) };
    caught(|| next(nochdir, noclose), -1)
}

/// Stands before `forkpty`, which forks inside the C library.
#[unsafe(no_mangle)]
pub extern "C" fn forkpty(
    primary: *mut i32,
    name: *mut libc::c_char,
    terminal: *const libc::termios,
    size: *const libc::winsize,
) -> i32 {
    type Forkpty = extern "C" fn(
        *mut i32,
        *mut libc::c_char,
        *const libc::termios,
        *const libc::winsize,
    ) -> i32;
    // SAFETY: the C library's `forkpty`.
    let next: Forkpty = unsafe { std::mem::transmute(FORKPTY.address()) };
    caught(|| next(primary, name, terminal, size), -1)
}

/// Stands before `syscall`: forks and execs made that way are caught as well.
///
/// # Safety
/// As the system call asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: libc::c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> libc::c_long {
    const CLONE_VM: u64 = 0x100;
    const CLONE_FILES: u64 = 0x400;
    let args = [a, b, c, d, e, f];
    let flags = match number {
        libc::SYS_clone => a as u64,
        // SAFETY: `struct clone_args` begins with its flags; the program answers for its call.
        libc::SYS_clone3 => unsafe { *(a as *const u64) },
        _ => 0,
    };
    let shares_memory = |number| match number {
        libc::SYS_fork => false,
        libc::SYS_clone => flags & CLONE_VM != 0 || b != 0,
        libc::SYS_clone3 => {
            // SAFETY: `stack` is the sixth word of `struct clone_args`, if it is that long.
            let has_stack = || unsafe { *(a as *const u64).add(5) } != 0;
            flags & CLONE_VM != 0 || b >= 48 && has_stack()
        }
        _ => true,
    };
    let result = match agent() {
        Some(agent) if !shares_memory(number) => {
            // SAFETY: a plain fork, by the check above.
            scratch_stack::with(|| unsafe {
                let caught = Caught::new(agent, flags & CLONE_FILES != 0);
                forking_call(&caught, number as usize, args)
            })
        }
        // SAFETY: the program's own pointers.
        Some(_) if number == libc::SYS_execve => unsafe {
            exec::execve(a as _, b as _, c as _) as isize
        },
        // SAFETY: the program's own pointers.
        Some(_) if number == libc::SYS_execveat => unsafe {
            exec::execveat(a as _, b as _, c as _, d as _, e as _) as isize
        },
        // SAFETY: the program answers for its call.
        _ => unsafe { syscall6(number as usize, args) },
    };
    // The exec functions have set it.
    let has_errno = matches!(number, libc::SYS_execve | libc::SYS_execveat) && result == -1;
    if (-4095..0).contains(&result) && !has_errno {
        set_errno(-result as i32);
        return -1;
    }
    result as libc::c_long
}
