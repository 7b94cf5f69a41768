//! What the kernel's swap did, from its own counters.
use crate::sysfs;

/// Counters of the whole machine, in pages.
#[derive(Debug, Clone, Copy, Default)]
pub struct SwapCounters {
    /// Written to swap.
    pub written: u64,
    /// Read ahead, and of these hit.
    pub read_ahead: u64,
    #[allow(missing_docs)]
    pub read_ahead_hits: u64,
}

impl SwapCounters {
    /// Now.
    pub fn now() -> SwapCounters {
        let text = sysfs::read("/proc/vmstat").unwrap_or_default();
        let field = |name: &str| {
            let line = text
                .lines()
                .find(|line| line.split(' ').next() == Some(name));
            line.and_then(|line| line.split(' ').nth(1)?.parse().ok())
                .unwrap_or(0)
        };
        SwapCounters {
            written: field("pswpout"),
            read_ahead: field("swap_ra"),
            read_ahead_hits: field("swap_ra_hit"),
        }
    }

    /// What happened since `before`.
    pub fn since(self, before: SwapCounters) -> SwapCounters {
        SwapCounters {
            written: self.written.saturating_sub(before.written),
            read_ahead: self.read_ahead.saturating_sub(before.read_ahead),
            read_ahead_hits: self.read_ahead_hits.saturating_sub(before.read_ahead_hits),
        }
    }
}

/// Bytes the swap device of `name` holds: of a zram device its memory, of a file what this process
/// has there.
pub fn swap_bytes(name: &str) -> u64 {
    let stat = sysfs::read(format!("/sys/block/{name}/mm_stat")).ok();
    let used = stat.and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
    used.or_else(|| sysfs::status_bytes(std::process::id(), "VmSwap"))
        .unwrap_or(0)
}

/// Major faults of this process so far.
pub fn major_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(9)?.parse().ok())
        .unwrap_or(0)
}
