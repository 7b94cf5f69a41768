//! Pages as items: what a store asks of its servers.

use super::client::Memcached;
use super::protocol::{push, read_deleted, read_value, refusal, statistics};
use crate::remote::engine::{Blob, Each, Engine, Key, lost, push_number};
use crate::remote::link::Node;
use crate::{Slot, StoreError};

impl Engine for Memcached {
    fn scheme(&self) -> &'static str {
        "memcached"
    }

    fn allocates(&self) -> bool {
        false
    }

    fn store(
        &self,
        base: &str,
        blobs: &[Blob],
        bytes: &[u8],
        sent: &mut bool,
    ) -> Result<(), StoreError> {
        for (index, node) in self.nodes.iter().enumerate() {
            let mine = |blob: &&Blob| self.is_at(index, base, blob.slot.0);
            let count = blobs.iter().filter(mine).count();
            if count == 0 {
                continue;
            }
            let done = node.with(&self.options, |link| {
                for blob in blobs.iter().filter(mine) {
                    let out = &mut link.output;
                    let key = Key::new(base, blob.slot.0);
                    push(out, &[b"set ", key.as_bytes(), b" 0 0 "]);
                    push_number(out, blob.len);
                    let bytes = &bytes[blob.start..blob.start + blob.len];
                    push(out, &[b"\r\n", bytes, b"\r\n"]);
                }
                *sent = true;
                link.send()?;
                let mut done = Ok(());
                for _ in 0..count {
                    let line = link.line()?;
                    if line != b"STORED" {
                        done = done.and(Err(refusal(line)));
                    }
                }
                Ok(done)
            });
            done??;
        }
        Ok(())
    }

    fn fetch(&self, base: &str, slots: &[Slot], each: &mut Each<'_>) -> Result<(), StoreError> {
        for (index, node) in self.nodes.iter().enumerate() {
            let mine = |slot: &Slot| self.is_at(index, base, slot.0);
            if !slots.iter().any(mine) {
                continue;
            }
            let done = node.with(&self.options, |link| {
                // One request for each, so that the answer to each has its place whether the item
                // is there or not.
                for slot in slots.iter().filter(|slot| mine(slot)) {
                    let key = Key::new(base, slot.0);
                    push(&mut link.output, &[b"get ", key.as_bytes(), b"\r\n"]);
                }
                link.send()?;
                let mut done = Ok(());
                for (place, slot) in slots.iter().enumerate().filter(|(_, slot)| mine(slot)) {
                    let found = read_value(link, |blob| each(place, blob))?;
                    done = done.and(match found {
                        Some(opened) => opened,
                        None => Err(lost(*slot, &node.server.name())),
                    });
                }
                Ok(done)
            });
            done??;
        }
        Ok(())
    }

    fn remove(&self, base: &str, slots: &[u32]) -> Result<(), StoreError> {
        for (index, node) in self.nodes.iter().enumerate() {
            let mine = |slot: &&u32| self.is_at(index, base, **slot);
            let count = slots.iter().filter(mine).count();
            if count == 0 {
                continue;
            }
            node.with(&self.options, |link| {
                for slot in slots.iter().filter(mine) {
                    let key = Key::new(base, *slot);
                    push(&mut link.output, &[b"delete ", key.as_bytes(), b"\r\n"]);
                }
                link.send()?;
                (0..count).try_for_each(|_| read_deleted(link))
            })?;
        }
        Ok(())
    }

    fn disconnect(&self) {
        self.nodes.iter().for_each(Node::disconnect);
    }

    fn describe(&self) -> Result<Vec<(&'static str, String)>, StoreError> {
        let mut lines = vec![];
        for node in &self.nodes {
            let found = node.with(&self.options, |link| statistics(link, b"stats\r\n"))?;
            let value = |wanted: &str| {
                let found = found.iter().find(|(name, _)| name == wanted);
                found.map_or("?", |(_, value)| value.as_str())
            };
            lines.push(("server", node.server.name()));
            lines.push(("version", format!("memcached {}", value("version"))));
            lines.push((
                "memory",
                format!(
                    "{} B used of {} B, evictions off",
                    value("bytes"),
                    value("limit_maxbytes")
                ),
            ));
            lines.push(("persistence", "none: a restart loses the pages".to_owned()));
        }
        Ok(lines)
    }
}
