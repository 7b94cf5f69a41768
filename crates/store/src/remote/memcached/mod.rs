//! `memcached://`: keys spread over servers by consistent hashing, the text protocol, pipelined.
//!
//! A server of this kind keeps everything in memory and may be told to drop what it likes: it is
//! used only if told not to (`-M`), and what it held is lost when it restarts.

mod records;
mod ring;

use super::engine::{BLOB_MAX, Blob, Each, Engine, Key, lost};
use super::link::{Link, Manner, Node};
use super::owner::Record;
use super::settings::{COMMON, Settings};
use crate::uri::{Parts, config};
use crate::{ErrorKind, Slot, StoreError};
use ring::Ring;

const PORT: u16 = 11_211;

/// One or more servers.
pub(crate) struct Memcached {
    nodes: Vec<Node>,
    ring: Ring,
    manner: Manner,
}

/// The settings in `rest`, the URI without its scheme.
pub(crate) fn settings(scheme: &str, rest: &str) -> Result<Settings, StoreError> {
    let settings = Settings::new(scheme, &Parts::parse(scheme, rest, &COMMON)?, PORT, false)?;
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
            manner: Manner {
                tls: None,
                timeout: settings.timeout,
                spin: settings.spin,
                server_cpu: settings.server_cpu,
                greet: Box::new(greet),
            },
        };
        for node in &memcached.nodes {
            let evicts = node.with(&memcached.manner, |link| {
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

    fn is_at(&self, index: usize, base: &str, slot: u32) -> bool {
        self.nodes.len() == 1 || self.ring.node_of(Key::new(base, slot).as_bytes()) == index
    }
}

fn greet(link: &mut Link) -> Result<(), StoreError> {
    link.output.extend_from_slice(b"version\r\n");
    link.send()?;
    let line = link.line()?;
    if line.starts_with(b"VERSION ") {
        return Ok(());
    }
    let shown: String = String::from_utf8_lossy(line).chars().take(60).collect();
    Err(StoreError::new(
        ErrorKind::Config,
        format!(
            "it answers like no memcached: `{}` (a Valkey or Redis server is named valkey://HOST)",
            shown.trim_end()
        ),
    ))
}

/// The lines `STAT name value` that a request for statistics is answered with.
fn statistics(link: &mut Link, asked: &[u8]) -> Result<Vec<(String, String)>, StoreError> {
    link.output.extend_from_slice(asked);
    link.send()?;
    let mut found = vec![];
    loop {
        let line = String::from_utf8_lossy(link.line()?).into_owned();
        if line == "END" {
            return Ok(found);
        }
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("STAT"), Some(name), value) => {
                found.push((name.to_owned(), value.unwrap_or_default().to_owned()));
            }
            _ => return Err(said(line.as_bytes())),
        }
    }
}

/// A refusal as an error of ours.
#[cold]
fn said(line: &[u8]) -> StoreError {
    let words = String::from_utf8_lossy(line);
    let kind = match words.contains("out of memory") {
        true => ErrorKind::Full,
        false => ErrorKind::Io,
    };
    StoreError::new(kind, format!("the server says `{}`", words.trim()))
}

/// Adds a number to a request.
fn number(out: &mut Vec<u8>, value: usize) {
    use std::io::Write as _;
    // Writing to a Vec cannot fail.
    let _ = write!(out, "{value}");
}

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
            let done = node.with(&self.manner, |link| {
                for blob in blobs.iter().filter(mine) {
                    let out = &mut link.output;
                    out.extend_from_slice(b"set ");
                    out.extend_from_slice(Key::new(base, blob.slot.0).as_bytes());
                    out.extend_from_slice(b" 0 0 ");
                    number(out, blob.len);
                    out.extend_from_slice(b"\r\n");
                    out.extend_from_slice(&bytes[blob.start..blob.start + blob.len]);
                    out.extend_from_slice(b"\r\n");
                }
                *sent = true;
                link.send()?;
                let mut done = Ok(());
                for _ in 0..count {
                    let line = link.line()?;
                    if line != b"STORED" {
                        done = done.and(Err(said(line)));
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
            let done = node.with(&self.manner, |link| {
                // One request for each, so that the answer to each has its place whether the item
                // is there or not.
                for slot in slots.iter().filter(|slot| mine(slot)) {
                    link.output.extend_from_slice(b"get ");
                    link.output
                        .extend_from_slice(Key::new(base, slot.0).as_bytes());
                    link.output.extend_from_slice(b"\r\n");
                }
                link.send()?;
                let mut done = Ok(());
                for (place, slot) in slots.iter().enumerate().filter(|(_, slot)| mine(slot)) {
                    let line = link.line()?;
                    if line == b"END" {
                        done = done.and(Err(lost(*slot, &node.server.name())));
                        continue;
                    }
                    let len = value_len(line).ok_or_else(|| said(line))?;
                    let body = link.take(len + 2)?;
                    let opened = each(place, &mut body[..len]);
                    done = done.and(opened);
                    let line = link.line()?;
                    if line != b"END" {
                        return Err(said(line));
                    }
                }
                Ok(done)
            });
            done??;
        }
        Ok(())
    }

    fn remove(&self, base: &str, slots: &mut dyn Iterator<Item = u32>) -> Result<(), StoreError> {
        let mut some = Vec::with_capacity(512);
        loop {
            some.clear();
            some.extend((&mut *slots).take(512));
            if some.is_empty() {
                return Ok(());
            }
            for (index, node) in self.nodes.iter().enumerate() {
                let mine = |slot: &&u32| self.is_at(index, base, **slot);
                let count = some.iter().filter(mine).count();
                if count == 0 {
                    continue;
                }
                node.with(&self.manner, |link| {
                    for slot in some.iter().filter(mine) {
                        link.output.extend_from_slice(b"delete ");
                        link.output
                            .extend_from_slice(Key::new(base, *slot).as_bytes());
                        link.output.extend_from_slice(b"\r\n");
                    }
                    link.send()?;
                    for _ in 0..count {
                        let line = link.line()?;
                        if line != b"DELETED" && line != b"NOT_FOUND" {
                            return Err(said(line));
                        }
                    }
                    Ok(())
                })?;
            }
        }
    }

    fn let_go(&self) {
        self.nodes.iter().for_each(Node::let_go);
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
        for node in &self.nodes {
            let found = node.with(&self.manner, |link| statistics(link, b"stats\r\n"))?;
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

/// The length in `VALUE key flags length`, if it is one that a blob can have.
fn value_len(line: &[u8]) -> Option<usize> {
    let rest = line.strip_prefix(b"VALUE ")?;
    let len = rest.rsplit(|byte| *byte == b' ').next()?;
    let len = std::str::from_utf8(len).ok()?.parse().ok()?;
    (len <= BLOB_MAX).then_some(len)
}
