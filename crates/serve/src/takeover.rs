//! Clients that the process before has served, as they come back from who kept them.
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pagetide_kernel::peer::Peer;
use pagetide_kernel::uffd::Uffd;
use rustix::fs::{FileType, fstat};

use crate::client::{Handed, Owner};
use crate::keeper::{Keeper, Returned};
use crate::kept::{Kept, Of};
use crate::memory::Memory;

/// Why a client is not taken over.
pub(crate) struct Left {
    /// Who it is, where that is known for sure.
    pub peer: Option<Peer>,
    pub why: String,
}

/// A client that was kept, to be served from the image `of`. Threads that waited are woken: of some
/// faults only the process knew that is gone.
///
/// # Errors
/// [`Left`]: it cannot be taken over. It is kept no more.
pub(crate) fn take_over(keeper: &Arc<Keeper>, returned: Returned, of: Of) -> Result<Handed, Left> {
    let holding = keeper.held(&returned);
    match client_of(returned.descriptors, of) {
        Ok(mut handed) => {
            for area in handed.memory.areas() {
                handed.uffd.wake(area.range);
            }
            handed.holding = Some(holding);
            Ok(handed)
        }
        Err(left) => {
            holding.end();
            Err(left)
        }
    }
}

/// The client that these descriptors are of, known by what they are: they come in any order.
fn client_of(descriptors: Vec<OwnedFd>, of: Of) -> Result<Handed, Left> {
    let (mut connection, mut file, mut other) = (None, None, None);
    for descriptor in descriptors {
        let kind = fstat(&descriptor).map(|stat| FileType::from_raw_mode(stat.st_mode));
        match kind {
            Ok(FileType::Socket) => connection = Some(UnixStream::from(descriptor)),
            Ok(FileType::RegularFile) => file = Some(descriptor),
            _ => other = Some(descriptor),
        }
    }
    let peer = connection
        .as_ref()
        .map(|connection| Peer::of(connection.as_fd()));
    let peer = peer.and_then(Result::ok).filter(Peer::is_certain);
    let (Some(connection), Some(peer)) = (connection, peer) else {
        let why = "its process has ended, or cannot be told from another by now".to_owned();
        return Err(Left { peer: None, why });
    };
    let (Some(file), Some(uffd)) = (file, other) else {
        let why = "some of its descriptors were not kept".to_owned();
        let peer = Some(peer);
        return Err(Left { peer, why });
    };
    let known = Kept::open(file, of).and_then(|kept| {
        let uffd = Uffd::adopt(uffd).map_err(|error| error.to_string())?;
        Ok((kept, uffd))
    });
    match known {
        Ok((kept, uffd)) => Ok(Handed {
            uffd,
            memory: Memory::kept(kept),
            pid: peer.pid(),
            owner: Some(Owner {
                connection,
                peer: Arc::new(peer),
            }),
            holding: None,
        }),
        Err(why) => Err(Left {
            peer: Some(peer),
            why,
        }),
    }
}
