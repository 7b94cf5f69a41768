//! The complete snapshots of a snapshotter, which later ones can build on.
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::BASES_MAX;
use super::format::SnapshotId;

/// A complete snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    pub id: SnapshotId,
    pub name: String,
    /// The directory of its file, where it has one.
    pub directory: Option<PathBuf>,
    /// The epoch it builds on itself; 0: none.
    pub base: u32,
}

/// The last [`BASES_MAX`], by epoch.
#[derive(Debug, Default)]
pub(crate) struct Bases(BTreeMap<u32, Base>);

impl Bases {
    /// The snapshot called `id`, and its epoch.
    pub fn find(&self, id: SnapshotId) -> Option<(u32, Base)> {
        let found = self.0.iter().find(|(_, base)| base.id == id)?;
        Some((*found.0, found.1.clone()))
    }

    /// Whether `name` is that of the snapshot of epoch `from`, or of one that it builds on.
    pub fn chain_has(&self, from: u32, name: &str) -> bool {
        let chain = std::iter::successors(self.0.get(&from), |base| self.0.get(&base.base));
        chain.into_iter().any(|base| base.name == name)
    }

    /// Adds the snapshot of `epoch`, which is complete.
    pub fn add(&mut self, epoch: u32, complete: Base) {
        if complete.directory.is_some() {
            self.forget_replaced(&complete);
        }
        self.0.insert(epoch, complete);
        if self.0.len() > BASES_MAX {
            self.0.pop_first();
        }
    }

    /// A file has taken the place of a snapshot's: that one is no more, and those that build on it
    /// are of no use.
    fn forget_replaced(&mut self, new: &Base) {
        let mut gone = Vec::new();
        self.0.retain(|epoch, base| {
            // Whatever builds on another was taken after it.
            let replaced = base.name == new.name && base.directory == new.directory;
            let lost = replaced || gone.contains(&base.base);
            if lost {
                gone.push(*epoch);
            }
            !lost
        });
    }
}
