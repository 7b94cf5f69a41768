//! The text protocol: what servers answer.

use crate::remote::engine::BLOB_MAX;
use crate::remote::link::Link;
use crate::{ErrorKind, StoreError};

/// The longest value of an owner's item: what a connection's buffer takes.
const VALUE_MAX: usize = 32 << 10;

/// Looks whether it is a server of this kind.
pub(super) fn greet(link: &mut Link) -> Result<(), StoreError> {
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

/// The lines `STAT name value` that the request `asked` for statistics is answered with.
pub(crate) fn statistics(
    link: &mut Link,
    asked: &[u8],
) -> Result<Vec<(String, String)>, StoreError> {
    link.output.extend_from_slice(asked);
    link.send()?;
    read_statistics(link)
}

pub(crate) fn read_statistics(link: &mut Link) -> Result<Vec<(String, String)>, StoreError> {
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
            _ => return Err(refusal(line.as_bytes())),
        }
    }
}

/// A refusal as an error of ours.
#[cold]
pub(super) fn refusal(line: &[u8]) -> StoreError {
    let words = String::from_utf8_lossy(line);
    let kind = match words.contains("out of memory") {
        true => ErrorKind::Full,
        false => ErrorKind::Io,
    };
    StoreError::new(kind, format!("the server says `{}`", words.trim()))
}

/// The length in `VALUE key flags length`, at most `max`.
fn value_len(line: &[u8], max: usize) -> Option<usize> {
    let rest = line.strip_prefix(b"VALUE ")?;
    let len = rest.rsplit(|byte| *byte == b' ').next()?;
    let len = std::str::from_utf8(len).ok()?.parse().ok()?;
    (len <= max).then_some(len)
}

/// Reads the answer to a `get` of one item and gives its bytes to `take`; `None`: it is not there.
pub(crate) fn read_value<T>(
    link: &mut Link,
    take: impl FnOnce(&mut [u8]) -> T,
) -> Result<Option<T>, StoreError> {
    let line = link.line()?;
    if line == b"END" {
        return Ok(None);
    }
    let len = value_len(line, BLOB_MAX).ok_or_else(|| refusal(line))?;
    let taken = take(&mut link.take(len + 2)?[..len]);
    read_end(link)?;
    Ok(Some(taken))
}

/// Reads the answer to a `gets` of one item, and its version.
pub(crate) fn read_versioned<T>(
    link: &mut Link,
    take: impl FnOnce(&[u8]) -> T,
) -> Result<Option<(T, u64)>, StoreError> {
    let line = link.line()?;
    if line == b"END" {
        return Ok(None);
    }
    let space = line.iter().rposition(|byte| *byte == b' ');
    let (head, version) = line.split_at(space.ok_or_else(|| refusal(line))?);
    let len = value_len(head, VALUE_MAX).ok_or_else(|| refusal(line))?;
    let version = std::str::from_utf8(&version[1..]).ok();
    let version = version.and_then(|version| version.parse().ok());
    let version = version.ok_or_else(|| refusal(line))?;
    let taken = take(&link.take(len + 2)?[..len]);
    read_end(link)?;
    Ok(Some((taken, version)))
}

/// Reads the line after the last item of an answer.
fn read_end(link: &mut Link) -> Result<(), StoreError> {
    match link.line()? {
        b"END" => Ok(()),
        line => Err(refusal(line)),
    }
}

/// Reads the answer to a `delete`, of an item that is there or not.
pub(super) fn read_deleted(link: &mut Link) -> Result<(), StoreError> {
    match link.line()? {
        b"DELETED" | b"NOT_FOUND" => Ok(()),
        line => Err(refusal(line)),
    }
}

/// Adds `parts` to a request.
pub(super) fn push(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}
