//! The ways to keep what is touched in memory.
use serde::{Deserialize, Serialize};

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Nothing is locked: what the accesses cost by themselves.
    None,
    /// `mlock` of the whole mapping.
    Whole,
    /// `mlock` of the page before each access.
    EachAccess,
    /// `PROT_NONE`, and a SIGSEGV handler that opens and locks a page.
    #[value(name = "handler-1")]
    #[serde(rename = "handler-1")]
    Handler1,
    /// The same with 8 pages a fault.
    #[value(name = "handler-8")]
    #[serde(rename = "handler-8")]
    Handler8,
    /// The same with 16 pages a fault.
    #[value(name = "handler-16")]
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

impl Strategy {
    /// All, in the order of the text of 2015.
    pub const ALL: [Strategy; 11] = [
        Strategy::None,
        Strategy::Whole,
        Strategy::EachAccess,
        Strategy::Handler1,
        Strategy::Handler8,
        Strategy::Handler16,
        Strategy::OnFault,
        Strategy::OnFaultRandom,
        Strategy::OnFaultExact,
        Strategy::Adaptive,
        Strategy::Prefetch,
    ];

    /// From the command line; `None` stands for all.
    pub fn parse(text: &str) -> Result<Option<Strategy>, String> {
        if text == "all" {
            return Ok(None);
        }
        let known = || Strategy::ALL.map(Strategy::name).join(", ");
        Strategy::ALL
            .into_iter()
            .find(|strategy| strategy.name() == text)
            .map(Some)
            .ok_or_else(|| {
                format!(
                    "'{text}' is not a strategy; expected all, or of {}",
                    known()
                )
            })
    }

    /// Its name on the command line and in the results.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::None => "none",
            Strategy::Whole => "whole",
            Strategy::EachAccess => "each-access",
            Strategy::Handler1 => "handler-1",
            Strategy::Handler8 => "handler-8",
            Strategy::Handler16 => "handler-16",
            Strategy::OnFault => "on-fault",
            Strategy::OnFaultRandom => "on-fault-random",
            Strategy::OnFaultExact => "on-fault-exact",
            Strategy::Adaptive => "adaptive",
            Strategy::Prefetch => "prefetch",
        }
    }

    /// Whether it needs to know the accesses to come, which those of 2015 do not.
    pub fn knows_the_future(self) -> bool {
        self == Strategy::Prefetch
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
        for strategy in Strategy::ALL {
            assert_eq!(Strategy::parse(strategy.name()), Ok(Some(strategy)));
            let json = serde_json::to_string(&strategy).unwrap();
            assert_eq!(json, format!("\"{}\"", strategy.name()));
        }
        assert_eq!(Strategy::parse("all"), Ok(None));
        assert!(Strategy::parse("half").unwrap_err().contains("adaptive"));
    }
}
