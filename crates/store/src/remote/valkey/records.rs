//! Owners' records: fields of one hash, and a key for each lease that expires by itself.

use super::Valkey;
use super::resp::Answer;
use crate::StoreError;
use crate::remote::owner::{Record, unreadable};

fn hash(prefix: &str) -> String {
    format!("{prefix}:owners")
}

fn lease(prefix: &str, owner: &str) -> String {
    format!("{prefix}:lease:{owner}")
}

pub(super) fn write(valkey: &Valkey, prefix: &str, record: &Record) -> Result<(), StoreError> {
    let hash = hash(prefix);
    let lease = lease(prefix, &record.owner);
    let text = record.to_text();
    // The lease first: a record without one counts as dead to those who see nothing else.
    valkey.ask(
        lease.as_bytes(),
        &[
            b"SET",
            lease.as_bytes(),
            b"1",
            b"EX",
            record.lease_seconds.max(1).to_string().as_bytes(),
        ],
    )?;
    valkey.ask(
        hash.as_bytes(),
        &[
            b"HSET",
            hash.as_bytes(),
            record.owner.as_bytes(),
            text.as_bytes(),
        ],
    )?;
    Ok(())
}

pub(super) fn all(valkey: &Valkey, prefix: &str) -> Result<Vec<(Record, bool)>, StoreError> {
    let hash = hash(prefix);
    let Answer::List(fields) = valkey.ask(hash.as_bytes(), &[b"HGETALL", hash.as_bytes()])? else {
        return Err(unreadable("an answer of an unknown form"));
    };
    let records = fields
        .chunks_exact(2)
        .filter_map(|field| Record::from_text(&field[1].text()?));
    records
        .map(|record| {
            let lease = lease(prefix, &record.owner);
            let runs = valkey.ask(lease.as_bytes(), &[b"EXISTS", lease.as_bytes()])?;
            Ok((record, runs == Answer::Number(1)))
        })
        .collect()
}

pub(super) fn remove(valkey: &Valkey, prefix: &str, owner: &str) -> Result<(), StoreError> {
    let hash = hash(prefix);
    let lease = lease(prefix, owner);
    valkey.ask(
        hash.as_bytes(),
        &[b"HDEL", hash.as_bytes(), owner.as_bytes()],
    )?;
    valkey.ask(lease.as_bytes(), &[b"UNLINK", lease.as_bytes()])?;
    Ok(())
}
