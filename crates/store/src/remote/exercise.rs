//! Everything that reads bytes of a server, given any bytes: it must neither panic nor take more
//! memory than the bounds of the protocols allow. Fuzz targets and tests call this.

use super::address::{Place, Server};
use super::link::Link;
use super::memcached::protocol;
use super::owner::Record;
use super::socket::{Socket, Spin};
use super::valkey::{resp, route};
use crate::StoreError;
use crate::chain::{redact, split};
use crate::scheme::Scheme;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes that a socket takes without somebody reading them.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Reads `bytes` as answers of a Valkey or Redis server, in every way there is.
pub fn valkey(bytes: &[u8]) {
    answered(bytes, |link| resp::answer(link).map(drop));
    answered(bytes, |link| match resp::head(link)? {
        resp::Head::Bytes(len) => resp::body(link, len).map(drop),
        _ => Ok(()),
    });
    let asked = Server::Tcp {
        host: "localhost".to_owned(),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 6379)),
    };
    answered(bytes, |link| route::read_map(link, &asked).map(drop));
}

/// Reads `bytes` as answers of a memcached server, in every way there is.
pub fn memcached(bytes: &[u8]) {
    answered(bytes, |link| protocol::read_statistics(link).map(drop));
    answered(bytes, |link| protocol::read_value(link, |_| ()).map(drop));
    answered(bytes, |link| {
        protocol::read_versioned(link, |_| ()).map(drop)
    });
}

/// Reads `text` as an owner's record, and what a URI says of its servers.
pub fn text(text: &str) {
    if let Some(record) = Record::from_text(text) {
        assert_eq!(Record::from_text(&record.to_text()), Some(record));
    }
    let (scheme, rest) = split(text);
    if Scheme::of(scheme).is_some()
        && let Ok(place) = Place::parse(scheme, rest.split('?').next().unwrap_or_default())
        && place.password.is_some()
        && let Ok(shown) = Place::parse(
            scheme,
            split(&redact(text)).1.split('?').next().unwrap_or_default(),
        )
    {
        assert_eq!(shown.password.as_deref(), Some("***"), "{text}");
    }
}

/// Has `read` read from a connection on which `bytes` came, until it says that they make no sense.
fn answered(bytes: &[u8], mut read: impl FnMut(&mut Link) -> Result<(), StoreError>) {
    let Ok((near, far)) = connection() else {
        return;
    };
    let mut sender = Socket::of(far, WITHOUT_SPIN).expect("a socket");
    let sent = sender.send_all(&bytes[..bytes.len().min(ANSWER_BYTES_MAX)]);
    drop((sent, sender));
    let socket = Socket::of(near, WITHOUT_SPIN).expect("a socket");
    let mut link = Link::new(socket, None, Duration::from_secs(1));
    while read(&mut link).is_ok() {}
}

const WITHOUT_SPIN: Spin = Spin {
    time: Duration::ZERO,
    server_cpu: None,
};

/// Both ends; the near one only receives.
fn connection() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (near, far) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    shutdown(&near, Shutdown::Write)?;
    Ok((near, far))
}
