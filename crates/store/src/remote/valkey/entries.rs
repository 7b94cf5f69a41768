//! What an archive holds: fields of one hash.

use super::client::Valkey;
use super::resp::Answer;
use crate::StoreError;
use crate::remote::owner::unreadable;

fn hash(prefix: &str) -> String {
    format!("{prefix}:archive")
}

impl Valkey {
    /// Notes that entry `name` is whole, and has so many bytes.
    pub(crate) fn note_entry(
        &self,
        prefix: &str,
        name: &str,
        bytes: u64,
    ) -> Result<(), StoreError> {
        let (hash, bytes) = (hash(prefix), bytes.to_string());
        let hash = hash.as_bytes();
        self.ask(hash, &[b"HSET", hash, name.as_bytes(), bytes.as_bytes()])?;
        Ok(())
    }

    /// All entries that are whole: names and bytes.
    pub(crate) fn entries(&self, prefix: &str) -> Result<Vec<(String, u64)>, StoreError> {
        let hash = hash(prefix);
        let found = self.ask(hash.as_bytes(), &[b"HGETALL", hash.as_bytes()])?;
        let Answer::List(fields) = found else {
            return Err(unreadable("an answer of an unknown form"));
        };
        let entry = |field: &[Answer]| Some((field[0].text()?, field[1].text()?.parse().ok()?));
        Ok(fields.chunks_exact(2).filter_map(entry).collect())
    }

    /// Entry `name` is there no more.
    pub(crate) fn forget_entry(&self, prefix: &str, name: &str) -> Result<(), StoreError> {
        let hash = hash(prefix);
        let hash = hash.as_bytes();
        self.ask(hash, &[b"HDEL", hash, name.as_bytes()])?;
        Ok(())
    }
}
