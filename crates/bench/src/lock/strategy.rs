//! The ways to keep what is touched in memory.
use serde::{Deserialize, Serialize};

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Nothing is locked: what the accesses cost by themselves.
    None,
    /// `mlock` of the whole mapping.
    Whole,
    /// `mlock` of the page before each access.
    EachAccess,
    /// `PROT_NONE`, and a SIGSEGV handler that opens and locks a page.
    #[serde(rename = "handler-1")]
    Handler1,
    /// The same with 8 pages a fault.
    #[serde(rename = "handler-8")]
    Handler8,
    /// The same with 16 pages a fault.
    #[serde(rename = "handler-16")]
    Handler16,
    /// `mlock2(MLOCK_ONFAULT)`.
    OnFault,
    /// The same with read-around off (`MADV_RANDOM`).
    OnFaultRandom,
    /// Pagetide's `LockedFile` that locks exactly what is touched (`Access::Exact`).
    OnFaultExact,
    /// Pagetide's `LockedFile`.
    Adaptive,
    /// The same with read-around off, and `LockedFile::prefetch` of the accesses to come, so many
    /// at a time: only for who knows them.
    Prefetch,
}

/// Accesses that the figures published in 2015 are of (5 GB file).
pub const PUBLISHED_ACCESSES: u64 = 15_000_000;

/// A strategy with its name on the command line and in the results, and the figures published in
/// 2015, if there are any: setup and processing in ms.
type Entry = (Strategy, &'static str, Option<(f64, f64)>);

/// In the order of the text of 2015.
const ALL: [Entry; 11] = [
    (Strategy::None, "none", None),
    (Strategy::Whole, "whole", Some((8228.7, 8274.3))),
    (Strategy::EachAccess, "each-access", Some((0.113, 90993.6))),
    (Strategy::Handler1, "handler-1", Some((0.058, 69488.1))),
    (Strategy::Handler8, "handler-8", Some((0.068, 38204.1))),
    (Strategy::Handler16, "handler-16", Some((0.044, 29671.2))),
    (Strategy::OnFault, "on-fault", Some((0.189, 17904.9))),
    (Strategy::OnFaultRandom, "on-fault-random", None),
    (Strategy::OnFaultExact, "on-fault-exact", None),
    (Strategy::Adaptive, "adaptive", None),
    (Strategy::Prefetch, "prefetch", None),
];

impl Strategy {
    /// All, in the order of the text of 2015.
    pub fn all() -> impl Iterator<Item = Strategy> {
        ALL.iter().map(|entry| entry.0)
    }

    /// From the command line; `None` stands for all.
    pub fn parse(text: &str) -> Result<Option<Strategy>, String> {
        match ALL.iter().find(|entry| entry.1 == text) {
            Some(entry) => Ok(Some(entry.0)),
            None if text == "all" => Ok(None),
            None => {
                let known = ALL.map(|entry| entry.1).join(", ");
                Err(format!(
                    "'{text}' is not a strategy; expected all, or of {known}"
                ))
            }
        }
    }

    fn entry(self) -> &'static Entry {
        ALL.iter()
            .find(|entry| entry.0 == self)
            .expect("every strategy is listed")
    }

    /// Its name on the command line and in the results.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// The figures published in 2015.
    pub fn published(self) -> Option<(f64, f64)> {
        self.entry().2
    }

    /// Pages that the handler opens at once.
    pub fn batch(self) -> Option<usize> {
        match self {
            Strategy::Handler1 => Some(1),
            Strategy::Handler8 => Some(8),
            Strategy::Handler16 => Some(16),
            _ => None,
        }
    }

    /// Mappings that the kernel may make of a file of so many pages: the handler splits it at every
    /// batch.
    pub fn mappings(self, pages: u64) -> u64 {
        match self {
            Strategy::EachAccess => pages,
            _ => self.batch().map_or(0, |batch| pages / batch as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for strategy in Strategy::all() {
            assert_eq!(Strategy::parse(strategy.name()), Ok(Some(strategy)));
            let json = serde_json::to_string(&strategy).unwrap();
            assert_eq!(json, format!("\"{}\"", strategy.name()));
        }
        assert_eq!(Strategy::parse("all"), Ok(None));
        assert!(Strategy::parse("half").unwrap_err().contains("adaptive"));
    }
}
