//! The servers of one URI, connected to and checked.

use super::protocol::{greet, statistics};
use super::ring::Ring;
use crate::StoreError;
use crate::remote::engine::Key;
use crate::remote::link::{Node, Options};
use crate::remote::settings::{COMMON, Settings};
use crate::scheme::Scheme;
use crate::uri::{Parts, config};

const PORT: u16 = 11_211;

/// One or more servers.
pub(crate) struct Memcached {
    pub(super) nodes: Vec<Node>,
    ring: Ring,
    pub(super) options: Options,
}

/// The settings in the URI `name:rest`.
pub(crate) fn settings(scheme: Scheme, name: &str, rest: &str) -> Result<Settings, StoreError> {
    let settings = Settings::new(scheme, name, &Parts::parse(name, rest, &COMMON)?, PORT)?;
    if settings.user.is_some() || settings.password.is_some() {
        return Err(config(
            "memcached's text protocol has no users and passwords: leave them out, and keep its \
             port to a network of your own",
        ));
    }
    Ok(settings)
}

impl Memcached {
    /// Connects to every server, and refuses those that would drop pages.
    pub(crate) fn open(settings: &Settings) -> Result<Memcached, StoreError> {
        let nodes: Vec<Node> = settings.servers.iter().cloned().map(Node::new).collect();
        let memcached = Memcached {
            ring: Ring::new(nodes.iter().map(|node| node.server.name())),
            nodes,
            options: Options {
                tls: None,
                timeout: settings.timeout,
                spin: settings.spin,
                greet: Box::new(greet),
            },
        };
        for node in &memcached.nodes {
            let evicts = node.with(&memcached.options, |link| {
                let settings = statistics(link, b"stats settings\r\n")?;
                Ok(settings
                    .iter()
                    .any(|(name, value)| name == "evictions" && value == "on"))
            })?;
            if evicts {
                return Err(config(format!(
                    "{} evicts items when it is full, and would lose pages; to mend it start it \
                     with `memcached -M` (and `-m` with \
                     enough megabytes)",
                    node.server.name()
                )));
            }
        }
        Ok(memcached)
    }

    /// Whether the key of `slot` is at node `index`.
    pub(super) fn is_at(&self, index: usize, base: &str, slot: u32) -> bool {
        self.nodes.len() == 1 || self.ring.node_of(Key::new(base, slot).as_bytes()) == index
    }
}
