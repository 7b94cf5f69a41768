//! The limit of the memory cgroup that a run is in: the kernel enforces it by ending processes, and
//! knows nothing of budgets.
use pagetide_kernel::procfs::memory::{limited_groups, oom_kills};
use pagetide_pager::report::Statistics;

use super::budget::Budget;
use crate::size::Bytes;

/// What the cgroup allowed, and how many processes it had lost, when the run began.
#[derive(Debug)]
pub struct GroupLimit {
    /// The least limit of the cgroup and those above it, in bytes.
    limit_bytes: Option<u64>,
    kills: u64,
}

impl GroupLimit {
    /// Of the cgroup this process is in, as what it starts will be.
    pub fn of_this_process() -> GroupLimit {
        let groups = limited_groups("self");
        GroupLimit {
            limit_bytes: groups.iter().map(|group| group.allowance.limit_bytes).min(),
            kills: oom_kills("self"),
        }
    }

    /// What to say before a run with a budget that is never used up.
    pub fn warning(&self, budget: Budget) -> Option<String> {
        let (option, bytes) = budget.limit();
        let limit_bytes = self.limit_bytes.filter(|limit| *limit <= bytes)?;
        Some(format!(
            "{option} {}: the memory cgroup allows {}, and the kernel ends a process before the \
             budget is used up; expected a smaller budget, with room for what the store keeps in \
             memory",
            Bytes(bytes),
            Bytes(limit_bytes)
        ))
    }

    /// What to say at the end, if the kernel has ended processes of the cgroup since then.
    pub fn kills_since<'a>(
        &self,
        budget: Budget,
        governed: impl Iterator<Item = &'a Statistics>,
    ) -> Option<String> {
        let kills = oom_kills("self").saturating_sub(self.kills);
        let store_bytes = governed.map(|process| process.store_bytes_max).max();
        (kills > 0).then(|| self.told(kills, budget, store_bytes.unwrap_or(0)))
    }

    fn told(&self, kills: u64, budget: Budget, store_bytes: u64) -> String {
        let what = match kills {
            1 => "a process".to_owned(),
            several => format!("{several} processes"),
        };
        let limit = match self.limit_bytes {
            Some(limit_bytes) => format!(", whose limit is {}", Bytes(limit_bytes)),
            None => String::new(),
        };
        let resident_bytes = budget.resident_bytes;
        let of = match budget.is_shared {
            true => "for all processes together, and the store of one",
            false => "a process, and the store",
        };
        if let Some(bytes) = budget.memory_bytes {
            return format!(
                "the kernel's OOM killer ended {what} of this memory cgroup{limit}: all memory of \
                 a process is bounded to {}, but for files and what it shares; take a smaller \
                 --memory, or raise the limit",
                Bytes(bytes)
            );
        }
        format!(
            "the kernel's OOM killer ended {what} of this memory cgroup{limit}: the budget is {} \
             {of} had up to {} beside it; bound both together (--memory SIZE), take a smaller \
             --resident, bound the store (--store \"ram:?max=SIZE\"), keep pages on a disk \
             (--store file:PATH), or raise the limit",
            Bytes(resident_bytes),
            Bytes(store_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(bytes: u64) -> Budget {
        Budget {
            resident_bytes: bytes,
            memory_bytes: None,
            automatic: None,
            is_shared: false,
        }
    }

    #[test]
    fn a_budget_beyond_the_limit_is_warned_of() {
        let limited = |limit_bytes| GroupLimit {
            limit_bytes,
            kills: 0,
        };
        assert_eq!(limited(None).warning(resident(1 << 40)), None);
        assert_eq!(
            limited(Some(1 << 30)).warning(resident((1 << 30) - 1)),
            None
        );
        let warning = limited(Some(1 << 30)).warning(resident(2 << 30)).unwrap();
        assert!(warning.contains("--resident 2 GiB") && warning.contains("allows 1 GiB"));
    }

    #[test]
    fn what_did_not_fit_is_named() {
        let group = GroupLimit {
            limit_bytes: Some(96 << 20),
            kills: 3,
        };
        let told = group.told(2, resident(64 << 20), 40 << 20);
        for part in [
            "2 processes",
            "limit is 96 MiB",
            "64 MiB",
            "40 MiB",
            "max=SIZE",
            "file:PATH",
        ] {
            assert!(told.contains(part), "{told}");
        }
        let bounded = Budget {
            memory_bytes: Some(80 << 20),
            ..resident(64 << 20)
        };
        let told = group.told(1, bounded, 40 << 20);
        assert!(
            told.contains("80 MiB") && told.contains("--memory"),
            "{told}"
        );
    }
}
