//! Pages as keys: what a store asks of its servers.

use super::check;
use super::client::Valkey;
use super::resp::{Head, begin, body, head, out_of_step, request, word};
use crate::remote::engine::{Blob, Each, Engine, Key, lost};
use crate::remote::link::{Link, Node};
use crate::{ErrorKind, Slot, StoreError};
use std::time::Duration;

impl Engine for Valkey {
    fn scheme(&self) -> &'static str {
        self.scheme.name
    }

    fn allocates(&self) -> bool {
        self.options.tls.is_some()
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
            let done = route.nodes[index].with(&self.options, |link| {
                for blob in blobs.iter().filter(mine) {
                    let out = &mut link.output;
                    begin(out, 3);
                    word(out, b"SET");
                    word(out, Key::new(base, blob.slot.0).as_bytes());
                    word(out, &bytes[blob.start..blob.start + blob.len]);
                }
                if replicas > 0 {
                    ask_for_replicas(&mut link.output, replicas, self.settings.timeout);
                }
                *sent = true;
                link.send()?;
                let done = read_acknowledgements(link, count)?;
                match replicas {
                    0 => Ok(done),
                    wanted => Ok(done.and(read_replicas(link, wanted)?)),
                }
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
            let done = node.with(&self.options, |link| {
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

    fn remove(&self, base: &str, slots: &[u32]) -> Result<(), StoreError> {
        self.each_node(|route, index| {
            let mine = |slot: &&u32| route.is_at(index, base, **slot);
            let count = slots.iter().filter(mine).count();
            if count == 0 {
                return Ok(());
            }
            // A cluster takes several keys in one request only if they hash alike.
            let requests = if route.is_cluster() { count } else { 1 };
            route.nodes[index].with(&self.options, |link| {
                let out = &mut link.output;
                if requests == 1 {
                    begin(out, count + 1);
                    word(out, b"UNLINK");
                }
                for slot in slots.iter().filter(mine) {
                    if requests > 1 {
                        begin(out, 2);
                        word(out, b"UNLINK");
                    }
                    word(out, Key::new(base, *slot).as_bytes());
                }
                link.send()?;
                read_acknowledgements(link, requests)
            })?
        })
    }

    fn disconnect(&self) {
        self.route().nodes.iter().for_each(Node::disconnect);
    }

    fn describe(&self) -> Result<Vec<(&'static str, String)>, StoreError> {
        let mut lines = vec![];
        for node in &self.route().nodes {
            lines.extend(node.with(&self.options, |link| check::describe(link, &node.server))?);
        }
        Ok(lines)
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

/// Asks how many replicas have what was written before.
fn ask_for_replicas(out: &mut Vec<u8>, wanted: u32, timeout: Duration) {
    // In time for the answer to be read before the connection's own limit.
    let limit = (timeout.as_millis() / 2).max(1);
    let (wanted, limit) = (wanted.to_string(), limit.to_string());
    request(out, &[b"WAIT", wanted.as_bytes(), limit.as_bytes()]);
}

fn read_replicas(link: &mut Link, wanted: u32) -> Result<Result<(), StoreError>, StoreError> {
    Ok(match head(link)? {
        Head::Number(reached) if reached >= i64::from(wanted) => Ok(()),
        Head::Number(reached) => Err(StoreError::new(
            ErrorKind::Temporary,
            format!("put pages: {reached} replicas have them, option `replicas` asks for {wanted}"),
        )),
        Head::Error(error) => Err(error),
        _ => return Err(out_of_step()),
    })
}
