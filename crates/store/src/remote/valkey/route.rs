//! Which node has a key: the one server, or a cluster's map of hash slots.

use super::resp::{self, Answer, request};
use crate::remote::address::Server;
use crate::remote::engine::Key;
use crate::remote::link::{Link, Node, Options};
use crate::{ErrorKind, StoreError};
use crc::{CRC_16_XMODEM, Crc};
use std::net::{IpAddr, SocketAddr};

/// Hash slots of a cluster.
const HASH_SLOTS: usize = 16_384;
const NOWHERE: u16 = u16::MAX;
static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The nodes in use, and what is where.
pub(crate) struct Route {
    pub(crate) nodes: Vec<Node>,
    /// For a cluster, each hash slot's node.
    map: Option<Box<[u16]>>,
}

impl Route {
    /// The first of `servers` that can be reached and is no replica.
    pub(crate) fn of_master(servers: &[Server], options: &Options) -> Result<Route, StoreError> {
        let mut first_error = None;
        for server in servers {
            let node = Node::new(server.clone());
            let role = node.with(options, |link| {
                request(&mut link.output, &[b"INFO", b"replication"]);
                link.send()?;
                Ok(resp::answer(link)?.good()?.text().unwrap_or_default())
            });
            match role {
                Ok(role) if !role.contains("role:slave") => {
                    return Ok(Route {
                        nodes: vec![node],
                        map: None,
                    });
                }
                Ok(_) => first_error.get_or_insert_with(|| is_replica(server)),
                Err(error) => first_error.get_or_insert(error),
            };
        }
        Err(first_error.unwrap_or_else(|| StoreError::new(ErrorKind::Config, "no server is named")))
    }

    /// The masters of the cluster that `servers` belong to, as the first of them that answers says;
    /// those of `before` are asked as well.
    pub(crate) fn of_cluster(
        servers: &[Server],
        options: &Options,
        before: Option<&Route>,
    ) -> Result<Route, StoreError> {
        let known = before.map(|route| route.nodes.iter()).into_iter().flatten();
        let mut first_error = None;
        for server in known.map(|node| &node.server).chain(servers) {
            match Node::new(server.clone()).with(options, |link| ask_map(link, server)) {
                Ok(route) => return Ok(route),
                Err(error) => first_error.get_or_insert(error),
            };
        }
        Err(first_error.unwrap_or_else(|| StoreError::new(ErrorKind::Config, "no server is named")))
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.map.is_some()
    }

    /// The node of `key`.
    pub(crate) fn node_of(&self, key: &[u8]) -> usize {
        match &self.map {
            None => 0,
            // A slot that no node has: any node's answer (CLUSTERDOWN, MOVED) tells more than we
            // know.
            Some(map) => match map[hash_slot(key)] {
                NOWHERE => 0,
                node => usize::from(node),
            },
        }
    }

    /// Whether the key of `slot` is at node `index`.
    #[inline]
    pub(crate) fn is_at(&self, index: usize, base: &str, slot: u32) -> bool {
        self.map.is_none() || self.node_of(Key::new(base, slot).as_bytes()) == index
    }
}

fn is_replica(server: &Server) -> StoreError {
    StoreError::new(
        ErrorKind::Temporary,
        format!(
            "{} is a replica, which takes no pages: name its master",
            server.name()
        ),
    )
}

/// Our keys have no braces in them unless the prefix has, so the rule of hash tags is followed in
/// full.
fn hash_slot(key: &[u8]) -> usize {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    usize::from(CRC.checksum(tag.unwrap_or(key))) % HASH_SLOTS
}

/// Asks a node of a cluster for the map.
fn ask_map(link: &mut Link, asked: &Server) -> Result<Route, StoreError> {
    request(&mut link.output, &[b"CLUSTER", b"SLOTS"]);
    link.send()?;
    read_map(link, asked)
}

/// Reads the answer: ranges of hash slots, each with its master and replicas.
pub(crate) fn read_map(link: &mut Link, asked: &Server) -> Result<Route, StoreError> {
    let answer = match resp::answer(link)? {
        Answer::Error(words) if words.contains("cluster support disabled") => {
            return Err(StoreError::new(
                ErrorKind::Config,
                format!(
                    "{} is a single server: write valkey:// for it",
                    asked.name()
                ),
            ));
        }
        answer => answer.good()?,
    };
    let Answer::List(ranges) = answer else {
        return Err(not_a_map());
    };
    let mut nodes: Vec<Node> = vec![];
    let mut map = vec![NOWHERE; HASH_SLOTS].into_boxed_slice();
    for range in ranges {
        let Answer::List(range) = range else {
            return Err(not_a_map());
        };
        let [
            Answer::Number(first),
            Answer::Number(last),
            Answer::List(master),
            ..,
        ] = &range[..]
        else {
            return Err(not_a_map());
        };
        let [host, Answer::Number(port), ..] = &master[..] else {
            return Err(not_a_map());
        };
        let server = member(host.text().unwrap_or_default(), *port, asked)?;
        let index = match nodes.iter().position(|node| node.server == server) {
            Some(index) => index,
            None => {
                nodes.push(Node::new(server));
                nodes.len() - 1
            }
        };
        let slots = usize::try_from(*first)
            .ok()
            .zip(usize::try_from(*last).ok());
        let (first, last) = slots
            .filter(|(first, last)| first <= last && *last < HASH_SLOTS)
            .ok_or_else(not_a_map)?;
        map[first..=last].fill(index as u16);
    }
    if map.contains(&NOWHERE) {
        return Err(StoreError::new(
            ErrorKind::Temporary,
            format!(
                "{}: the cluster has hash slots that no node serves",
                asked.name()
            ),
        ));
    }
    Ok(Route {
        nodes,
        map: Some(map),
    })
}

/// A cluster names its members by address; by nothing if it does not know its own; by name only
/// where it is told to.
fn member(host: String, port: i64, asked: &Server) -> Result<Server, StoreError> {
    let Server::Tcp {
        host: asked_host,
        address,
    } = asked
    else {
        return Err(not_a_map());
    };
    let port = u16::try_from(port).map_err(|_| not_a_map())?;
    let named = if host.is_empty() {
        asked_host.clone()
    } else {
        host
    };
    let ip = match named.parse::<IpAddr>() {
        Ok(ip) => ip,
        Err(_) if named == *asked_host => address.ip(),
        Err(_) => {
            return Err(StoreError::new(
                ErrorKind::Config,
                format!(
                    "the cluster names a member `{named}`: have it announce addresses \
                     (cluster-preferred-endpoint-type ip)"
                ),
            ));
        }
    };
    Ok(Server::Tcp {
        host: named,
        address: SocketAddr::new(ip, port),
    })
}

#[cold]
fn not_a_map() -> StoreError {
    StoreError::new(ErrorKind::Io, "CLUSTER SLOTS: an answer of an unknown form")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that the cluster specification gives, and one with a tag.
    #[test]
    fn hash_slots() {
        assert_eq!(hash_slot(b"123456789"), 0x31c3);
        assert_eq!(hash_slot(b"{user1000}.following"), hash_slot(b"user1000"));
        assert_eq!(
            hash_slot(b"foo{}{bar}"),
            usize::from(CRC.checksum(b"foo{}{bar}")) % HASH_SLOTS
        );
        assert_eq!(hash_slot(b"foo{{bar}}zap"), hash_slot(b"{bar"));
    }
}
