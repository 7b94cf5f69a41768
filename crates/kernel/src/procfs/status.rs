//! `/proc/PID/status`: lines of a name and a value. Nothing here allocates but reading it.
use std::io;

/// The text of such a file.
#[derive(Debug, Clone, Copy)]
pub struct Status<'t>(pub &'t str);

impl<'t> Status<'t> {
    /// The text of process `pid`, or of this one.
    pub fn read(pid: Option<u32>) -> io::Result<String> {
        match pid {
            Some(pid) => std::fs::read_to_string(format!("/proc/{pid}/status")),
            None => std::fs::read_to_string("/proc/self/status"),
        }
    }

    /// The value of a line.
    pub fn field(self, name: &str) -> Option<&'t str> {
        let of = |line: &'t str| line.strip_prefix(name)?.strip_prefix(':').map(str::trim);
        self.0.lines().find_map(of)
    }

    /// A value in kB, as bytes.
    pub fn bytes(self, name: &str) -> Option<u64> {
        let number = self.field(name)?.strip_suffix(" kB")?;
        number.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }

    /// A set of signals or capabilities.
    pub fn set(self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.field(name)?, 16).ok()
    }

    /// Whether capability `bit` is in effect.
    pub fn is_capable(self, bit: u32) -> bool {
        self.set("CapEff").is_some_and(|set| set & 1 << bit != 0)
    }
}

/// Whether this process is in the first user namespace; `None` where that cannot be read.
pub fn in_first_user_namespace() -> Option<bool> {
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    let mut words = map.split_whitespace().peekable();
    words.peek()?;
    Some(words.eq(["0", "0", "4294967295"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = Status(
            "Name:\tUid: 5\nState:\tZ (zombie)\nThreads:\t5\nUid:\t1\t2\t3\t4\nVmLck:\t   12 kB\n\
             SigIgn:\t0000000000001001\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000004000\n",
        );
        assert_eq!(status.field("State"), Some("Z (zombie)"));
        assert_eq!(status.field("Threads"), Some("5"));
        assert_eq!(status.field("Uid"), Some("1\t2\t3\t4"));
        assert_eq!(status.field("Ui"), None);
        assert_eq!(status.bytes("VmLck"), Some(12 * 1024));
        assert_eq!(status.bytes("Threads"), None);
        assert_eq!(status.set("SigIgn"), Some(0x1001));
        assert!(status.is_capable(14) && !status.is_capable(19));
        assert!(!Status("").is_capable(14));
    }

    #[test]
    fn the_own_status_is_read() {
        let text = Status::read(None).unwrap();
        assert!(Status(&text).bytes("VmRSS").is_some_and(|bytes| bytes > 0));
    }
}
