//! What operators do with a remote store: look at it, and clear up what dead runs left.

use super::address::Server;
use super::engine::{Engine, remove_all};
use super::memcached::{self, Memcached};
use super::owner::Record;
use super::settings::Settings;
use super::store::RemoteStore;
use super::valkey::{self, Valkey};
use crate::StoreError;
use crate::chain::{self, redact};
use crate::scheme::{Protocol, Scheme};
use crate::uri::config;
use std::time::{Duration, Instant};

/// A remote store seen from outside: no pages are put in it.
pub struct Remote {
    engine: Box<dyn Engine>,
    settings: Settings,
}

/// One owner's keys on the server.
#[derive(Debug, Clone)]
pub struct Owned {
    /// Its record.
    pub record: Record,
    /// Whether it lives: known by looking, or else by whether its lease runs.
    pub lives: bool,
    /// Whether that is known by looking (same machine), not by the lease.
    pub known: bool,
}

/// What clearing up removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Owners removed.
    pub owners: u64,
    /// Slots that their keys may have had.
    pub slots: u64,
}

/// Whose keys [`Remote::clear`] removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    /// Those of owners of this machine that are known to be dead.
    Known,
    /// And those of other machines whose lease has run out.
    Expired,
}

/// The settings in the URI `name:rest`.
fn settings(scheme: Scheme, name: &str, rest: &str) -> Result<Settings, StoreError> {
    match scheme.protocol {
        Protocol::Memcached => memcached::settings(scheme, name, rest),
        Protocol::Valkey => valkey::settings(scheme, name, rest),
    }
}

impl Remote {
    /// The remote store `name:rest`.
    pub(crate) fn connect(scheme: Scheme, name: &str, rest: &str) -> Result<Remote, StoreError> {
        let settings = settings(scheme, name, rest)?;
        let engine: Box<dyn Engine> = match scheme.protocol {
            Protocol::Memcached => Box::new(Memcached::open(&settings)?),
            Protocol::Valkey => Box::new(Valkey::open(scheme, settings.clone())?),
        };
        Ok(Remote { engine, settings })
    }

    /// Connects to the servers of `uri` and checks them as a run would.
    pub fn open(uri: &str) -> Result<Remote, StoreError> {
        chain::check(uri)?;
        if let Some((_, behind)) = chain::behind(uri) {
            return Remote::open(behind);
        }
        let (name, rest) = chain::split(uri);
        if let Some(scheme) = Scheme::of(name) {
            return Remote::connect(scheme, name, rest);
        }
        let why = match name {
            "ram" | "file" => "is kept on this machine and has no server to ask",
            _ => "names no known store",
        };
        Err(config(format!(
            "`{}` {why}; expected a remote store: valkey://HOST, valkey+unix:///SOCKET, \
             valkeys://HOST, valkey-cluster://HOST,HOST or memcached://HOST,HOST",
            redact(uri)
        )))
    }

    pub(crate) fn into_store(self, max: Option<u64>) -> Result<RemoteStore, StoreError> {
        RemoteStore::new(self.engine, &self.settings, max)
    }

    /// How long calls to it are tried again.
    pub(crate) fn patience(&self) -> Duration {
        self.settings.patience
    }

    /// Whether a run is to clear up after dead ones, as option `gc` says.
    pub fn clears_at_start(&self) -> bool {
        self.settings.gc
    }

    /// How long one request and its answer take.
    pub fn ping(&self) -> Result<Duration, StoreError> {
        let begun = Instant::now();
        self.engine.remove(&self.settings.base("ping"), &[0])?;
        Ok(begun.elapsed())
    }

    /// Lines about the servers, as name and value.
    pub fn describe(&self) -> Result<Vec<(&'static str, String)>, StoreError> {
        self.engine.describe()
    }

    /// All owners under this prefix.
    pub fn owners(&self) -> Result<Vec<Owned>, StoreError> {
        let records = self.engine.records(&self.settings.prefix)?;
        let owners = records.into_iter().map(|(record, lease_runs)| {
            let found = record.lives();
            Owned {
                lives: found.unwrap_or(lease_runs),
                known: found.is_some(),
                record,
            }
        });
        Ok(owners.collect())
    }

    /// Removes the keys and records of dead owners.
    pub fn clear(&self, which: Clear) -> Result<Cleared, StoreError> {
        let mut cleared = Cleared::default();
        for owned in self.owners()? {
            if owned.lives || (which == Clear::Known && !owned.known) {
                continue;
            }
            let record = &owned.record;
            let base = self.settings.base(&record.owner);
            remove_all(&*self.engine, &base, 0..record.slots)?;
            self.engine
                .remove_record(&self.settings.prefix, &record.owner)?;
            record.unlock();
            cleared.owners += 1;
            cleared.slots += u64::from(record.slots);
        }
        Ok(cleared)
    }

    /// Writes the records of this machine's living owners again, so that their leases do not run
    /// out while they are idle.
    pub fn renew(&self) -> Result<(), StoreError> {
        for owned in self.owners()? {
            if owned.known && owned.lives {
                self.engine
                    .write_record(&self.settings.prefix, &owned.record)?;
            }
        }
        Ok(())
    }

    /// How often [`renew`](Remote::renew) is to be called.
    pub fn renewal(&self) -> Duration {
        self.settings.lease / 4
    }
}

/// `uri` with the addresses of its hosts, so that a process that is paged has no names to look up:
/// that would go through the C library's allocator. URIs without names are returned as they are.
pub fn resolve(uri: &str) -> Result<String, StoreError> {
    // Before anything is added that whoever wrote it did not write.
    chain::check(uri)?;
    // A store behind a tier or a fault is the last part of the URI.
    if let Some((front, behind)) = chain::behind(uri) {
        return Ok(format!("{front}{}", resolve(behind)?));
    }
    let (name, rest) = chain::split(uri);
    let Some(scheme) = Scheme::of(name) else {
        return Ok(uri.to_owned());
    };
    let addresses: Vec<String> = settings(scheme, name, rest)?
        .servers
        .iter()
        .filter_map(|server| match server {
            Server::Unix(_) => None,
            Server::Tcp { address, .. } => Some(address.ip().to_string()),
        })
        .collect();
    if addresses.is_empty() || rest.contains("addr=") {
        return Ok(uri.to_owned());
    }
    let joint = if rest.contains('?') { '&' } else { '?' };
    Ok(format!("{uri}{joint}addr={}", addresses.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_would_refuse_is_refused_before_a_server_is_asked() {
        for uri in [
            "valkey://127.0.0.1:1?max=1",
            "ram:?then=valkey://127.0.0.1:1",
            "ram:?max=4M&then=memcached://127.0.0.1:1?max=2K",
        ] {
            let refused = [Remote::open(uri).err(), resolve(uri).err()];
            for error in refused {
                let said = error.expect("refused").to_string();
                assert!(said.contains("max"), "{said}");
                assert!(!said.contains("addr="), "{said}");
            }
        }
    }

    #[test]
    fn addresses_are_added_once() {
        let once = resolve("valkey://localhost:7000/p?timeout=1s").unwrap();
        assert!(once.contains("&addr="), "{once}");
        assert_eq!(resolve(&once).unwrap(), once);
        for uri in ["ram:", "file:/tmp", "valkey+unix:///run/x.sock"] {
            assert_eq!(resolve(uri).unwrap(), uri);
        }
    }
}
