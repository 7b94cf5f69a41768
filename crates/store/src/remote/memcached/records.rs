//! Owners' records in memcached, which cannot list its keys: one item names the owners, changed by
//! compare-and-swap; each record is an item, and so is each lease, which expires by itself. They
//! lie on the first server.

use super::client::Memcached;
use super::protocol::{read_deleted, read_versioned, refusal};
use crate::remote::engine::Records;
use crate::remote::link::Link;
use crate::remote::owner::{Record, unreadable};
use crate::{ErrorKind, StoreError};

/// Tries to change the list of owners before others' changes are too many.
const ATTEMPTS: usize = 50;
/// Owners listed: the item is at most a megabyte, and an answer's part at most 32 KiB.
const OWNERS_MAX: usize = 900;
/// Longer times are taken for dates.
const EXPIRY_SECONDS_MAX: u64 = 30 * 24 * 3600;

fn list(prefix: &str) -> String {
    format!("{prefix}:owners")
}

fn item(prefix: &str, what: &str, owner: &str) -> String {
    format!("{prefix}:{what}:{owner}")
}

/// Sends `request` and returns the first line of the answer.
fn ask(link: &mut Link, request: &str) -> Result<String, StoreError> {
    link.output.extend_from_slice(request.as_bytes());
    link.send()?;
    Ok(String::from_utf8_lossy(link.line()?).into_owned())
}

fn set(link: &mut Link, key: &str, seconds: u64, value: &str) -> Result<(), StoreError> {
    let len = value.len();
    // No value lives shorter than asked: a time that would be taken for a date becomes none at all.
    let seconds = if seconds > EXPIRY_SECONDS_MAX {
        0
    } else {
        seconds
    };
    match ask(link, &format!("set {key} 0 {seconds} {len}\r\n{value}\r\n"))?.as_str() {
        "STORED" => Ok(()),
        line => Err(refusal(line.as_bytes())),
    }
}

/// The value of `key` and its version.
fn get(link: &mut Link, key: &str) -> Result<Option<(String, u64)>, StoreError> {
    link.output
        .extend_from_slice(format!("gets {key}\r\n").as_bytes());
    link.send()?;
    read_versioned(link, |value| String::from_utf8_lossy(value).into_owned())
}

/// Changes the list of owners; `change` returns false if it is right as it is.
fn change_list(
    link: &mut Link,
    prefix: &str,
    change: impl Fn(&mut Vec<String>) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let key = list(prefix);
    for _ in 0..ATTEMPTS {
        let before = get(link, &key)?;
        let (text, version) = before.as_ref().map_or(("", None), |(text, version)| {
            (text.as_str(), Some(*version))
        });
        let mut owners: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
        if !change(&mut owners)? {
            return Ok(());
        }
        let after = owners.join(" ");
        let len = after.len();
        let request = match version {
            None => format!("add {key} 0 0 {len}\r\n{after}\r\n"),
            Some(version) => format!("cas {key} 0 0 {len} {version}\r\n{after}\r\n"),
        };
        match ask(link, &request)?.as_str() {
            "STORED" => return Ok(()),
            "EXISTS" | "NOT_STORED" | "NOT_FOUND" => {}
            line => return Err(refusal(line.as_bytes())),
        }
    }
    Err(StoreError::new(
        ErrorKind::Temporary,
        "change the list of owners: others change it all the time",
    ))
}

/// Lists `owner` if it is not listed yet.
fn list_owner(link: &mut Link, prefix: &str, owner: &str) -> Result<(), StoreError> {
    change_list(link, prefix, |owners| {
        if owners.iter().any(|other| other == owner) {
            return Ok(false);
        }
        if owners.len() >= OWNERS_MAX {
            return Err(StoreError::new(
                ErrorKind::Full,
                format!(
                    "{OWNERS_MAX} owners use this prefix already: give this run another `prefix`"
                ),
            ));
        }
        owners.push(owner.to_owned());
        Ok(true)
    })
}

impl Records for Memcached {
    fn write_record(&self, prefix: &str, record: &Record) -> Result<(), StoreError> {
        let owner = record.owner.as_str();
        self.nodes[0].with(&self.options, |link| {
            let lease = record.lease_seconds.max(1);
            set(link, &item(prefix, "lease", owner), lease, "1")?;
            set(link, &item(prefix, "record", owner), 0, &record.to_text())?;
            list_owner(link, prefix, owner)
        })
    }

    fn records(&self, prefix: &str) -> Result<Vec<(Record, bool)>, StoreError> {
        self.nodes[0].with(&self.options, |link| {
            let listed = get(link, &list(prefix))?
                .map(|(text, _)| text)
                .unwrap_or_default();
            let mut records = vec![];
            for owner in listed.split_ascii_whitespace() {
                if let Some((text, _)) = get(link, &item(prefix, "record", owner))? {
                    let record = Record::from_text(&text).ok_or_else(|| unreadable(&text))?;
                    let lease = get(link, &item(prefix, "lease", owner))?;
                    records.push((record, lease.is_some()));
                }
            }
            Ok(records)
        })
    }

    fn remove_record(&self, prefix: &str, owner: &str) -> Result<(), StoreError> {
        self.nodes[0].with(&self.options, |link| {
            change_list(link, prefix, |owners| {
                let before = owners.len();
                owners.retain(|other| other != owner);
                Ok(owners.len() < before)
            })?;
            for what in ["record", "lease"] {
                let key = item(prefix, what, owner);
                link.output
                    .extend_from_slice(format!("delete {key}\r\n").as_bytes());
                link.send()?;
                read_deleted(link)?;
            }
            Ok(())
        })
    }
}
