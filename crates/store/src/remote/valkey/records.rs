//! Owners' records: fields of one hash, and a key for each lease that expires by itself.

use super::client::Valkey;
use super::resp::Answer;
use crate::StoreError;
use crate::remote::engine::Records;
use crate::remote::owner::{Record, unreadable};

fn hash(prefix: &str) -> String {
    format!("{prefix}:owners")
}

fn lease(prefix: &str, owner: &str) -> String {
    format!("{prefix}:lease:{owner}")
}

impl Records for Valkey {
    fn write_record(&self, prefix: &str, record: &Record) -> Result<(), StoreError> {
        let (hash, lease) = (hash(prefix), lease(prefix, &record.owner));
        let seconds = record.lease_seconds.max(1).to_string();
        let text = record.to_text();
        // The lease first: a record without one counts as dead to those who see nothing else.
        let lease = lease.as_bytes();
        self.ask(lease, &[b"SET", lease, b"1", b"EX", seconds.as_bytes()])?;
        let (hash, owner) = (hash.as_bytes(), record.owner.as_bytes());
        self.ask(hash, &[b"HSET", hash, owner, text.as_bytes()])?;
        Ok(())
    }

    fn records(&self, prefix: &str) -> Result<Vec<(Record, bool)>, StoreError> {
        let hash = hash(prefix);
        let found = self.ask(hash.as_bytes(), &[b"HGETALL", hash.as_bytes()])?;
        let Answer::List(fields) = found else {
            return Err(unreadable("an answer of an unknown form"));
        };
        let records = fields
            .chunks_exact(2)
            .filter_map(|field| Record::from_text(&field[1].text()?));
        records
            .map(|record| {
                let lease = lease(prefix, &record.owner);
                let runs = self.ask(lease.as_bytes(), &[b"EXISTS", lease.as_bytes()])?;
                Ok((record, runs == Answer::Number(1)))
            })
            .collect()
    }

    fn remove_record(&self, prefix: &str, owner: &str) -> Result<(), StoreError> {
        let (hash, lease) = (hash(prefix), lease(prefix, owner));
        let (hash, lease) = (hash.as_bytes(), lease.as_bytes());
        self.ask(hash, &[b"HDEL", hash, owner.as_bytes()])?;
        self.ask(lease, &[b"UNLINK", lease])?;
        Ok(())
    }
}
