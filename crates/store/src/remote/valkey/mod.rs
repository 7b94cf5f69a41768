//! `valkey://` and its kin: servers that speak Redis's protocol, one or a cluster of them.
//!
//! Reads are pipelined GETs, writes pipelined SETs, one request and one wait for each node that a
//! batch concerns.

mod check;
mod records;
mod resp;
mod route;

use super::engine::{Blob, Each, Engine, Key, lost};
use super::link::{Link, Manner, Node};
use super::owner::Record;
use super::settings::{COMMON, Settings};
use super::tls::Tls;
use crate::uri::{Parts, config};
use crate::{ErrorKind, Slot, StoreError};
use resp::{Head, begin, body, head, request, word};
use route::Route;
use std::sync::{Arc, PoisonError, RwLock};

/// Options besides the common ones.
const OPTIONS: [&str; 4] = ["replicas", "ca", "cert", "key"];
const PORT: u16 = 6379;
/// Keys removed by one request.
const REMOVE_KEYS: usize = 512;

/// One server, or a cluster.
pub(crate) struct Valkey {
    scheme: &'static str,
    settings: Settings,
    manner: Manner,
    route: RwLock<Arc<Route>>,
}

/// How the schemes differ.
pub(crate) fn kind_of(scheme: &str) -> Option<(&'static str, bool, bool, bool)> {
    // name, by socket file, under TLS, a cluster
    Some(match scheme {
        "valkey" | "redis" => ("valkey", false, false, false),
        "valkeys" | "rediss" => ("valkeys", false, true, false),
        "valkey+unix" | "redis+unix" => ("valkey+unix", true, false, false),
        "valkey-cluster" | "redis-cluster" => ("valkey-cluster", false, false, true),
        "valkeys-cluster" | "rediss-cluster" => ("valkeys-cluster", false, true, true),
        _ => return None,
    })
}

/// The settings in `parts`, the URI without its scheme.
pub(crate) fn settings(scheme: &str, rest: &str) -> Result<Settings, StoreError> {
    let known: Vec<&str> = COMMON.into_iter().chain(OPTIONS).collect();
    let unix = kind_of(scheme).is_some_and(|(_, unix, ..)| unix);
    let parts = Parts::parse(scheme, rest, &known)?;
    let settings = Settings::new(scheme, &parts, PORT, unix)?;
    let tls = kind_of(scheme).is_some_and(|(_, _, tls, _)| tls);
    if !tls && (settings.ca.is_some() || settings.cert.is_some() || settings.key.is_some()) {
        return Err(config(format!(
            "options `ca`, `cert` and `key` are for valkeys://, not for {scheme}:"
        )));
    }
    Ok(settings)
}

impl Valkey {
    /// Connects, and refuses servers that would lose pages or are of another kind.
    pub(crate) fn open(scheme: &str, settings: Settings) -> Result<Valkey, StoreError> {
        let (scheme, _, tls, cluster) = kind_of(scheme)
            .ok_or_else(|| config(format!("`{scheme}` is no scheme of Valkey's")))?;
        let tls = tls
            .then(|| {
                Tls::new(
                    settings.ca.as_deref(),
                    settings.cert.as_deref(),
                    settings.key.as_deref(),
                )
            })
            .transpose()?;
        let manner = Manner {
            tls,
            timeout: settings.timeout,
            spin: settings.spin,
            server_cpu: settings.server_cpu,
            greet: check::greeting(settings.user.clone(), settings.password.clone()),
        };
        let route = match cluster {
            true => Route::of_cluster(&settings.servers, &manner, None)?,
            false => Route::of_master(&settings.servers, &manner)?,
        };
        let valkey = Valkey {
            scheme,
            settings,
            manner,
            route: RwLock::new(Arc::new(route)),
        };
        for node in &valkey.route().nodes {
            node.with(&valkey.manner, |link| {
                check::server(link, &node.server, cluster, valkey.settings.replicas)
            })?;
        }
        Ok(valkey)
    }

    fn route(&self) -> Arc<Route> {
        Arc::clone(&self.route.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// After a failure that another choice of server may mend: chooses anew.
    #[cold]
    fn choose_anew(&self, failed: &Route) {
        let mut route = self.route.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have done it meanwhile.
        if !std::ptr::eq(&**route, failed) {
            return;
        }
        let found = match failed.is_cluster() {
            true => Route::of_cluster(&self.settings.servers, &self.manner, Some(failed)),
            false if self.settings.servers.len() > 1 => {
                Route::of_master(&self.settings.servers, &self.manner)
            }
            false => return,
        };
        if let Ok(found) = found {
            *route = Arc::new(found);
        }
    }

    /// Runs `talk` for each node that has a part of the work; `talk` says with `false` that there
    /// was nothing to do.
    fn each_node(
        &self,
        mut talk: impl FnMut(&Route, usize) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let route = self.route();
        for index in 0..route.nodes.len() {
            if let Err(error) = talk(&route, index) {
                if error.kind == ErrorKind::Temporary {
                    self.choose_anew(&route);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sends one request to the node of `key` and returns the whole answer.
    fn ask(&self, key: &[u8], words: &[&[u8]]) -> Result<resp::Answer, StoreError> {
        let route = self.route();
        let asked = route.nodes[route.node_of(key)].with(&self.manner, |link| {
            request(&mut link.output, words);
            link.send()?;
            resp::answer(link)?.good()
        });
        if asked
            .as_ref()
            .is_err_and(|error| error.kind == ErrorKind::Temporary)
        {
            self.choose_anew(&route);
        }
        asked
    }
}

/// Reads `count` answers that say no more than that it was done. All are read, so that the
/// connection stays usable; the first refusal is returned inside.
fn read_acknowledgements(
    link: &mut Link,
    count: usize,
) -> Result<Result<(), StoreError>, StoreError> {
    let mut done = Ok(());
    for _ in 0..count {
        match head(link)? {
            Head::Simple | Head::Number(_) => {}
            Head::Error(error) => done = done.and(Err(error)),
            _ => return Err(out_of_step()),
        }
    }
    Ok(done)
}

#[cold]
fn out_of_step() -> StoreError {
    StoreError::new(
        ErrorKind::Io,
        "an answer of another form than the request's",
    )
}

impl Engine for Valkey {
    fn scheme(&self) -> &'static str {
        self.scheme
    }

    fn allocates(&self) -> bool {
        self.manner.tls.is_some()
    }

    fn store(
        &self,
        base: &str,
        blobs: &[Blob],
        bytes: &[u8],
        sent: &mut bool,
    ) -> Result<(), StoreError> {
        let replicas = self.settings.replicas;
        self.each_node(|route, index| {
            let mine = |blob: &&Blob| route.is_at(index, base, blob.slot.0);
            let count = blobs.iter().filter(mine).count();
            if count == 0 {
                return Ok(());
            }
            let done = route.nodes[index].with(&self.manner, |link| {
                for blob in blobs.iter().filter(mine) {
                    let out = &mut link.output;
                    begin(out, 3);
                    word(out, b"SET");
                    word(out, Key::new(base, blob.slot.0).as_bytes());
                    word(out, &bytes[blob.start..blob.start + blob.len]);
                }
                if replicas > 0 {
                    // In time for the answer to be read before the connection's own limit.
                    let limit = (self.settings.timeout.as_millis() / 2).max(1);
                    request(
                        &mut link.output,
                        &[
                            b"WAIT",
                            replicas.to_string().as_bytes(),
                            limit.to_string().as_bytes(),
                        ],
                    );
                }
                *sent = true;
                link.send()?;
                let done = read_acknowledgements(link, count)?;
                if replicas > 0 {
                    match head(link)? {
                        Head::Number(reached) if reached >= i64::from(replicas) => {}
                        Head::Number(reached) => {
                            return Ok(done.and(Err(too_few_replicas(reached, replicas))));
                        }
                        Head::Error(error) => return Ok(done.and(Err(error))),
                        _ => return Err(out_of_step()),
                    }
                }
                Ok(done)
            });
            done?
        })
    }

    fn fetch(&self, base: &str, slots: &[Slot], each: &mut Each<'_>) -> Result<(), StoreError> {
        self.each_node(|route, index| {
            let mine = |slot: &Slot| route.is_at(index, base, slot.0);
            if !slots.iter().any(mine) {
                return Ok(());
            }
            let node = &route.nodes[index];
            let done = node.with(&self.manner, |link| {
                for slot in slots.iter().filter(|slot| mine(slot)) {
                    let out = &mut link.output;
                    begin(out, 2);
                    word(out, b"GET");
                    word(out, Key::new(base, slot.0).as_bytes());
                }
                link.send()?;
                let mut done = Ok(());
                for (place, slot) in slots.iter().enumerate().filter(|(_, slot)| mine(slot)) {
                    match head(link)? {
                        Head::Bytes(len) => {
                            let opened = each(place, body(link, len)?);
                            done = done.and(opened);
                        }
                        Head::Nothing => done = done.and(Err(lost(*slot, &node.server.name()))),
                        Head::Error(error) => done = done.and(Err(error)),
                        _ => return Err(out_of_step()),
                    }
                }
                Ok(done)
            });
            done?
        })
    }

    fn remove(&self, base: &str, slots: &mut dyn Iterator<Item = u32>) -> Result<(), StoreError> {
        let mut some = Vec::with_capacity(REMOVE_KEYS);
        loop {
            some.clear();
            some.extend((&mut *slots).take(REMOVE_KEYS));
            if some.is_empty() {
                return Ok(());
            }
            self.each_node(|route, index| {
                let mine = |slot: &&u32| route.is_at(index, base, **slot);
                let count = some.iter().filter(mine).count();
                if count == 0 {
                    return Ok(());
                }
                // A cluster takes several keys in one request only if they hash alike.
                let requests = if route.is_cluster() { count } else { 1 };
                let done = route.nodes[index].with(&self.manner, |link| {
                    let out = &mut link.output;
                    if requests == 1 {
                        begin(out, count + 1);
                        word(out, b"UNLINK");
                    }
                    for slot in some.iter().filter(mine) {
                        if requests > 1 {
                            begin(out, 2);
                            word(out, b"UNLINK");
                        }
                        word(out, Key::new(base, *slot).as_bytes());
                    }
                    link.send()?;
                    read_acknowledgements(link, requests)
                });
                done?
            })?;
        }
    }

    fn let_go(&self) {
        self.route().nodes.iter().for_each(Node::let_go);
    }

    fn write_record(&self, prefix: &str, record: &Record) -> Result<(), StoreError> {
        records::write(self, prefix, record)
    }

    fn records(&self, prefix: &str) -> Result<Vec<(Record, bool)>, StoreError> {
        records::all(self, prefix)
    }

    fn remove_record(&self, prefix: &str, owner: &str) -> Result<(), StoreError> {
        records::remove(self, prefix, owner)
    }

    fn describe(&self) -> Result<Vec<(&'static str, String)>, StoreError> {
        let mut lines = vec![];
        for node in &self.route().nodes {
            lines.extend(node.with(&self.manner, |link| check::describe(link, &node.server))?);
        }
        Ok(lines)
    }
}

#[cold]
fn too_few_replicas(reached: i64, wanted: u32) -> StoreError {
    StoreError::new(
        ErrorKind::Temporary,
        format!("put pages: {reached} replicas have them, option `replicas` asks for {wanted}"),
    )
}
