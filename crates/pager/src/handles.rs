//! Descriptors and kernel-side areas of a pager, bound to one process.
use pagetide_kernel::PageRange;
use pagetide_kernel::memory::{BatchDropper, OwnMemory};
use pagetide_kernel::own::Mapping;
use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::uffd::{self, Uffd, feature};
use pagetide_kernel::wait::either;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use crate::page::policy::Kind;

/// What kind of memory a pager serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Memory of a region: nobody unmaps or moves it behind the pager's back.
    Region,
    /// The same, with faults served by the faulting threads themselves, in a signal handler.
    SignalRegion,
    /// Memory of a program that knows nothing of the pager: events are followed, and forks leave it
    /// out unless caught.
    Program,
}

/// Why a pager could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No userfaultfd.
    #[error(
        "{0}; allow it with `sysctl -w vm.unprivileged_userfaultfd=1` or read-write access to \
         /dev/userfaultfd"
    )]
    Open(#[from] uffd::OpenError),
    /// The kernel lacks a feature that cannot be done without.
    #[error("this kernel's userfaultfd lacks {0} (see `pagetide doctor`)")]
    Feature(&'static str),
    /// The policy does not go with what is to be paged, or with this kernel.
    #[error("the policy accessed {0}")]
    Policy(&'static str),
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, Errno),
}

pub(crate) fn system(what: &'static str) -> impl Fn(Errno) -> StartError {
    move |errno| StartError::System(what, errno)
}

/// What tells that a page was used.
const WATCHING: u64 = feature::RWP | feature::RWP_ASYNC;

/// Tries before a new mapping is given up to whoever registers it first.
const TRIES: usize = 64;

/// Maps `len` bytes and registers them. In a program that is paged as a whole (`pagetide run`)
/// another pager looks for new memory all the time and may register this for itself first; then
/// that is given back, and another mapped.
fn map_registered(
    len: usize,
    register: impl Fn(PageRange) -> Result<(), Errno>,
) -> Result<Mapping, Errno> {
    let mut result = Err(Errno::BUSY);
    for _ in 0..TRIES {
        let mapping = Mapping::new(len)?;
        result = register(mapping.range()).map(|()| mapping);
        if result.as_ref().err() != Some(&Errno::BUSY) {
            break;
        }
    }
    result
}

/// Descriptors and areas bound to one process; made anew in a forked child.
pub struct Handles {
    /// Serves the program's memory and the staging area.
    pub uffd: Uffd,
    /// Serves the drain area: without events, so that dropping what is in it is silent.
    pub drain_uffd: Uffd,
    /// Tells which pages are present.
    pub pagemap: Pagemap,
    /// Reads pages that cannot be moved.
    pub memory: OwnMemory,
    /// Drops scattered clean pages together; only without events.
    pub dropper: Option<BatchDropper>,
    /// A page installed write-protected is protected also in memory that is read-only, and may be
    /// made writable. Before Linux 5.19 COPY protects pages of writable memory only.
    pub copy_protects: bool,
    /// Whether a page was written since it was fetched is told by its bytes, once it is moved out
    /// and before it is put: nothing is write-protected for that, and no first write is a fault.
    pub content_tells: bool,
    /// Wakes the fault thread from its poll.
    pub bell: OwnedFd,
    /// Waits for faults and the bell where poll(2) does not.
    pub either: OwnedFd,
}

impl Handles {
    /// Opens everything, for a pager with this policy. The calling thread's descriptor table is
    /// where the descriptors live.
    ///
    /// # Errors
    /// Where userfaultfd, or what the policy needs of it, is not to be had.
    pub fn open(
        ownership: Ownership,
        policy: Kind,
        device: Option<rustix::fd::BorrowedFd<'_>>,
    ) -> Result<Handles, StartError> {
        let open = || match ownership {
            Ownership::SignalRegion => uffd::open_for_user_mode(),
            Ownership::Region | Ownership::Program => uffd::open(device),
        };
        let has = Uffd::kernel_features(open()?).map_err(system("UFFDIO_API"))?;
        if has & feature::PAGEFAULT_FLAG_WP == 0 {
            return Err(StartError::Feature("write-protect faults (Linux 5.7)"));
        }
        let optional = has & (feature::MOVE | feature::POISON);
        let thread_id = has & feature::THREAD_ID;
        let events = match ownership {
            Ownership::Region => thread_id,
            Ownership::SignalRegion => feature::SIGBUS,
            Ownership::Program => {
                thread_id | feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::EVENT_UNMAP
            }
        };
        let content_tells = ownership == Ownership::Program && optional & feature::MOVE != 0;
        let watches = match policy.make().watched() {
            None => 0,
            Some(_) if ownership != Ownership::Program => {
                return Err(StartError::Policy(
                    "is for whole programs; take s3fifo or fifo",
                ));
            }
            // Memory is protected against reads, or against writes.
            Some(_) if !content_tells || has & WATCHING != WATCHING => {
                return Err(StartError::Policy(
                    "needs read-write protection (Linux 7.3, see `pagetide doctor`); take s3fifo \
                     or fifo",
                ));
            }
            Some(_) => WATCHING,
        };
        let wanted = feature::PAGEFAULT_FLAG_WP | events | optional | watches;
        let negotiate = |features| Uffd::negotiate(open()?, features).map_err(system("UFFDIO_API"));
        use rustix::event::{EventfdFlags, eventfd};
        let uffd = negotiate(wanted)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(system("eventfd"))?;
        Ok(Handles {
            either: either(&[uffd.as_fd(), bell.as_fd()]).map_err(system("epoll_create1"))?,
            uffd,
            drain_uffd: negotiate(feature::PAGEFAULT_FLAG_WP | optional)?,
            pagemap: Pagemap::open(),
            memory: OwnMemory::open(),
            dropper: match ownership {
                Ownership::Program => None,
                Ownership::Region | Ownership::SignalRegion => BatchDropper::new().ok(),
            },
            copy_protects: ownership != Ownership::Program
                || has & feature::WP_HUGETLBFS_SHMEM != 0,
            content_tells,
            bell,
        })
    }

    /// Memory for the staging area, registered to have pages moved into it.
    pub fn map_staging(&self, len: usize) -> Result<Mapping, StartError> {
        map_registered(len, |range| self.uffd.register_target(range))
            .map_err(system("register staging"))
    }

    /// Memory for the drain area, registered to have pages moved into it.
    pub fn map_drain(&self, len: usize) -> Result<Mapping, StartError> {
        map_registered(len, |range| self.drain_uffd.register_target(range))
            .map_err(system("register drain"))
    }

    /// Memory to be paged, registered for missing and write-protect faults. Whoever touches it
    /// waits until somebody serves it.
    pub fn map_managed(&self, len: usize) -> Result<Mapping, StartError> {
        // SAFETY: a new mapping, which nobody touches before its pager serves it.
        map_registered(len, |range| unsafe { self.uffd.register(range) })
            .map_err(system("register memory"))
    }

    /// Registers the areas of a pager that was forked.
    pub fn register_areas(&self, staging: PageRange, drain: PageRange) -> Result<(), StartError> {
        self.uffd
            .register_target(staging)
            .map_err(system("register staging"))?;
        self.drain_uffd
            .register_target(drain)
            .map_err(system("register drain"))
    }

    /// Whether pages can be moved (6.8).
    pub fn can_move(&self) -> bool {
        self.uffd.features() & feature::MOVE != 0
    }

    /// Whether pages can be poisoned (6.6).
    pub fn can_poison(&self) -> bool {
        self.uffd.features() & feature::POISON != 0
    }
}
