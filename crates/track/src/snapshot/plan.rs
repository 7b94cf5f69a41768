//! [`Plan`]: how one snapshot is to be taken.
use super::format::SnapshotId;

/// How one snapshot is to be taken.
///
/// ```
/// use pagetide::track::Plan;
///
/// let plan = Plan::full().pre_armed(); // everything, with the shortest pause
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Plan {
    pub(crate) base: Option<SnapshotId>,
    pub(crate) pre_arm: bool,
}

impl Plan {
    /// A full snapshot.
    pub fn full() -> Plan {
        Plan::default()
    }

    /// Only what changed since snapshot `base` of this snapshotter, which was completed.
    pub fn since(base: SnapshotId) -> Plan {
        Plan {
            base: Some(base),
            ..Plan::default()
        }
    }

    /// Protects most of the memory before the writers are held: the pause shrinks, the writes in
    /// between cost a fault more.
    pub fn pre_armed(mut self) -> Plan {
        self.pre_arm = true;
        self
    }
}
