//! Clients that outlive this process: their descriptors, and what is known of their pages, are kept
//! by the service manager, and who is started next takes them over.
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pagetide_kernel::uffd::Uffd;

use crate::manager::Manager;

/// How the name of the socket begins that clients connect to. Which file it is follows: another may
/// have taken its place.
const LISTENER: &str = "listener";
/// How the name of a client begins; a number follows.
const CLIENT: &str = "client-";
/// Descriptors of a client.
const OF_A_CLIENT: u64 = 3;

/// See the module's text.
#[derive(Debug)]
pub struct Keeper {
    manager: Manager,
    /// The number of the next client.
    next: AtomicU64,
    /// Descriptors that are kept.
    kept: AtomicU64,
    handing_over: AtomicBool,
}

/// That a client is kept.
#[derive(Debug)]
pub(crate) struct Holding {
    keeper: Arc<Keeper>,
    name: String,
}

impl Holding {
    /// Whether clients are to be left to who is started next.
    pub fn is_handing_over(&self) -> bool {
        self.keeper.handing_over.load(Relaxed)
    }

    /// The client is nobody's any more.
    pub fn end(self) {
        self.keeper.forget(&self.name);
    }
}

/// What was kept of a client, as it came back.
pub(crate) struct Returned {
    name: String,
    pub descriptors: Vec<OwnedFd>,
}

impl Keeper {
    /// With `manager`.
    pub fn new(manager: Manager) -> Keeper {
        Keeper {
            manager,
            next: AtomicU64::new(1),
            kept: AtomicU64::new(0),
            handing_over: AtomicBool::new(false),
        }
    }

    /// From now on clients that are left are not ended: who is started next is to take them over.
    pub fn hand_over(&self) {
        self.handing_over.store(true, Relaxed);
    }

    /// Whether that was said.
    pub fn is_handing_over(&self) -> bool {
        self.handing_over.load(Relaxed)
    }

    /// Tells the manager that the service is ready.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn ready(&self) -> io::Result<()> {
        self.manager.ready()
    }

    /// Of `inherited` descriptors, the socket at `path`, if it was kept and is there still; and the
    /// clients. Others are closed.
    pub(crate) fn sort(
        &self,
        inherited: Vec<(String, OwnedFd)>,
        path: &Path,
    ) -> (Option<UnixListener>, Vec<Returned>) {
        let (mut listener, mut clients) = (None, BTreeMap::<u64, Vec<OwnedFd>>::new());
        for (name, descriptor) in inherited {
            let number = name
                .strip_prefix(CLIENT)
                .and_then(|number| number.parse().ok());
            if let Some(number) = number {
                clients.entry(number).or_default().push(descriptor);
            } else if name.starts_with(LISTENER) {
                let kept = UnixListener::from(descriptor);
                let is_there = listener_name(path).is_some_and(|now| now == name);
                listener = (is_there && is_at(&kept, path)).then_some(kept);
                if listener.is_none() {
                    self.manager.forget(&name);
                }
            }
        }
        let last = clients.keys().next_back();
        self.next.store(last.map_or(1, |last| last + 1), Relaxed);
        let count: usize = clients.values().map(Vec::len).sum();
        self.kept
            .store(count as u64 + u64::from(listener.is_some()), Relaxed);
        let returned = clients.into_iter().map(|(number, descriptors)| Returned {
            name: format!("{CLIENT}{number}"),
            descriptors,
        });
        (listener, returned.collect())
    }

    /// Has the socket at `path` kept that clients connect to.
    ///
    /// # Errors
    /// The manager cannot be told, or the socket is not there.
    pub(crate) fn keep_listener(&self, listener: &UnixListener, path: &Path) -> io::Result<()> {
        let name = listener_name(path).ok_or(io::ErrorKind::NotFound)?;
        self.keep(&name, &[listener.as_fd()])
    }

    /// Has a client kept, with the file that its memory is known by.
    ///
    /// # Errors
    /// The manager cannot be told, or has no room.
    pub(crate) fn keep_client(
        self: &Arc<Self>,
        uffd: &Uffd,
        connection: &UnixStream,
        memory: &OwnedFd,
    ) -> io::Result<Holding> {
        let name = format!("{CLIENT}{}", self.next.fetch_add(1, Relaxed));
        self.keep(&name, &[uffd.as_fd(), connection.as_fd(), memory.as_fd()])?;
        Ok(Holding {
            keeper: Arc::clone(self),
            name,
        })
    }

    fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let count = descriptors.len() as u64;
        let kept = self.kept.fetch_add(count, Relaxed) + count;
        let room = self.manager.room();
        let result = match room.filter(|room| kept > *room) {
            Some(room) => Err(io::Error::other(format!(
                "the service manager keeps {room} descriptors and no more \
                 (FileDescriptorStoreMax=), {OF_A_CLIENT} for each client"
            ))),
            None => self.manager.keep(name, descriptors),
        };
        if result.is_err() {
            self.kept.fetch_sub(count, Relaxed);
        }
        result
    }

    /// That a client which came back is kept still.
    pub(crate) fn held(self: &Arc<Self>, returned: &Returned) -> Holding {
        let missing = OF_A_CLIENT.saturating_sub(returned.descriptors.len() as u64);
        self.kept.fetch_add(missing, Relaxed);
        Holding {
            keeper: Arc::clone(self),
            name: returned.name.clone(),
        }
    }

    fn forget(&self, name: &str) {
        self.kept.fetch_sub(OF_A_CLIENT, Relaxed);
        self.manager.forget(name);
    }
}

/// What the socket at `path` is kept by.
fn listener_name(path: &Path) -> Option<String> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some(format!("{LISTENER}-{:x}-{:x}", found.dev(), found.ino()))
}

/// Whether `listener` listens, and was made for `path`.
fn is_at(listener: &UnixListener, path: &Path) -> bool {
    let listens = rustix::net::sockopt::socket_acceptconn(listener) == Ok(true);
    let address = listener.local_addr().ok();
    let bound = address.as_ref().and_then(|address| address.as_pathname());
    listens && bound == Some(path)
}
