//! The memory available to a process: what the machine has free, and what each memory cgroup above
//! the process still allows.
//!
//! The parsing is pure text in, numbers out; [`available_to`] and [`limited_groups`] read the
//! files. All of it allocates.
use std::fs;
use std::path::{Path, PathBuf};

/// One limit on memory and what is used under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// The most bytes that may be used.
    pub limit_bytes: u64,
    /// Bytes in use, without inactive file cache, which the kernel gives up for the asking.
    pub used_bytes: u64,
}

impl Allowance {
    /// Bytes left under the limit.
    pub fn left_bytes(self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// Where a process stands in a memory cgroup hierarchy, as directories from its own up to the
/// hierarchy's mount point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ancestry {
    /// Version 2 (unified) or version 1.
    pub unified: bool,
    /// The process's own cgroup first.
    pub directories: Vec<PathBuf>,
}

/// A memory cgroup with a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitedGroup {
    /// The cgroup's directory.
    pub directory: PathBuf,
    /// Its limit and use.
    pub allowance: Allowance,
}

/// The bytes of `MemAvailable` in the text of `/proc/meminfo`.
pub fn mem_available(meminfo: &str) -> Option<u64> {
    field(meminfo, "MemAvailable:").map(|kib| kib * 1024)
}

/// The number after `key` at the start of a line.
pub fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    })
}

/// The memory cgroup directories of a process, from the texts of its `/proc/PID/cgroup` and of
/// `/proc/self/mountinfo`.
pub fn ancestries(cgroup: &str, mountinfo: &str) -> Vec<Ancestry> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let unified = hierarchy == "0" && controllers.is_empty();
        if !unified && !controllers.split(',').any(|c| c == "memory") {
            continue;
        }
        if let Some((root, mount_point)) = mountinfo
            .lines()
            .find_map(|line| cgroup_mount(line, unified))
        {
            found.push(Ancestry {
                unified,
                directories: directories(path, &root, &mount_point),
            });
        }
    }
    found
}

/// Root and mount point of a mount of the wanted cgroup hierarchy, if this line of mountinfo is
/// one.
fn cgroup_mount(line: &str, unified: bool) -> Option<(String, PathBuf)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let wanted = match (kind.next()?, unified) {
        ("cgroup2", true) => true,
        ("cgroup", false) => kind.nth(1)?.split(',').any(|option| option == "memory"),
        _ => false,
    };
    let mut place = place.split(' ').skip(3);
    wanted.then_some(())?;
    Some((
        unescape(place.next()?),
        PathBuf::from(unescape(place.next()?)),
    ))
}

/// mountinfo writes space, tab, newline and backslash as octal.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// From the cgroup at `path` up to the mount point. In a container the mount shows the subtree
/// under `root` only; a path outside it (a sibling namespace) is answered by the mount point alone.
fn directories(path: &str, root: &str, mount_point: &Path) -> Vec<PathBuf> {
    let below = if root == "/" {
        path
    } else {
        path.strip_prefix(root).unwrap_or("")
    };
    let names: Vec<&str> = below
        .split('/')
        .filter(|name| !name.is_empty() && *name != "..")
        .collect();
    (0..=names.len())
        .rev()
        .map(|depth| {
            names[..depth]
                .iter()
                .fold(mount_point.to_path_buf(), |d, n| d.join(n))
        })
        .collect()
}

/// A limit in a cgroup file: `max` and version 1's huge number for "none" are `None`.
pub fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 62)
}

/// The allowance of a cgroup from the texts of its files: each limit (hard, and for version 2 the
/// throttling one), use, and stat.
pub fn allowance(limits: &[Option<String>], usage: &str, stat: &str) -> Option<Allowance> {
    let limit_bytes = limits
        .iter()
        .flatten()
        .filter_map(|text| limit(text))
        .min()?;
    let cache = field(stat, "total_inactive_file ")
        .or_else(|| field(stat, "inactive_file "))
        .unwrap_or(0);
    let used_bytes = usage.trim().parse::<u64>().ok()?.saturating_sub(cache);
    Some(Allowance {
        limit_bytes,
        used_bytes,
    })
}

/// Where process `pid` stands.
fn ancestries_of(pid: &str) -> Vec<Ancestry> {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let cgroup = read(&Path::new("/proc").join(pid).join("cgroup"));
    ancestries(&cgroup, &read(Path::new("/proc/self/mountinfo")))
}

/// The file that says how long tasks of the cgroup of process `pid` (`self` works) have waited for
/// memory, in the format of `/proc/pressure/memory`; none if there is none (version 1, or a kernel
/// without pressure stall information).
pub fn pressure_file(pid: &str) -> Option<PathBuf> {
    let unified = ancestries_of(pid)
        .into_iter()
        .find(|ancestry| ancestry.unified)?;
    let file = unified.directories.first()?.join("memory.pressure");
    file.is_file().then_some(file)
}

/// Every cgroup with a memory limit above process `pid` (`self` works), nearest first.
pub fn limited_groups(pid: &str) -> Vec<LimitedGroup> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let mut groups = Vec::new();
    for ancestry in ancestries_of(pid) {
        let (limits, usage): (&[&str], &str) = if ancestry.unified {
            (&["memory.max", "memory.high"], "memory.current")
        } else {
            (&["memory.limit_in_bytes"], "memory.usage_in_bytes")
        };
        for directory in ancestry.directories {
            let limits: Vec<Option<String>> = limits
                .iter()
                .map(|name| read(&directory.join(name)))
                .collect();
            let usage = read(&directory.join(usage)).unwrap_or_default();
            let stat = read(&directory.join("memory.stat")).unwrap_or_default();
            if let Some(allowance) = allowance(&limits, &usage, &stat) {
                groups.push(LimitedGroup {
                    directory,
                    allowance,
                });
            }
        }
    }
    groups
}

/// How often the kernel ended a process of the memory cgroup of process `pid` (`self` works), or of
/// one below it, for want of memory; 0 where that is not told.
pub fn oom_kills(pid: &str) -> u64 {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let kills = |ancestry: &Ancestry| {
        let name = match ancestry.unified {
            true => "memory.events",
            false => "memory.oom_control",
        };
        let own = ancestry.directories.first()?;
        field(&read(&own.join(name)), "oom_kill ")
    };
    ancestries_of(pid).iter().filter_map(kills).sum()
}

/// Bytes of memory available to process `pid` (`self` works): the least of `MemAvailable` and what
/// its cgroups leave.
pub fn available_to(pid: &str) -> u64 {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| mem_available(&text))
        .unwrap_or(u64::MAX);
    limited_groups(pid)
        .iter()
        .map(|group| group.allowance.left_bytes())
        .fold(machine, u64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
24 1 0:22 / /proc rw shared:1 - proc proc rw
31 30 0:27 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
42 30 0:38 / /sys/fs/cgroup/unified rw,relatime shared:2 - cgroup2 cgroup2 rw
";

    fn paths(ancestry: &Ancestry) -> Vec<&str> {
        ancestry
            .directories
            .iter()
            .map(|d| d.to_str().unwrap())
            .collect()
    }

    #[test]
    fn a_cgroup_and_all_above_it_are_found_in_both_versions() {
        let found = ancestries("4:cpu,memory:/a/b\n3:cpuset:/x\n0::/user.slice\n", MOUNTS);
        assert_eq!(found.len(), 2);
        assert!(!found[0].unified && found[1].unified);
        assert_eq!(
            paths(&found[0]),
            [
                "/sys/fs/cgroup/memory/a/b",
                "/sys/fs/cgroup/memory/a",
                "/sys/fs/cgroup/memory"
            ]
        );
        assert_eq!(
            paths(&found[1]),
            [
                "/sys/fs/cgroup/unified/user.slice",
                "/sys/fs/cgroup/unified"
            ]
        );
    }

    #[test]
    fn a_containers_mount_shows_its_own_subtree() {
        let mounts = "31 30 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let found = ancestries("4:memory:/docker/abc/inner\n", mounts);
        assert_eq!(
            paths(&found[0]),
            ["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory"]
        );
        let outside = ancestries("4:memory:/elsewhere\n", mounts);
        assert_eq!(paths(&outside[0]), ["/sys/fs/cgroup/memory"]);
    }

    #[test]
    fn a_line_that_is_no_cgroup_line_is_passed_over() {
        assert_eq!(
            ancestries("nonsense\n\n4:memory\n", "also nonsense\n1 - \n"),
            []
        );
    }

    #[test]
    fn no_limit_is_no_allowance() {
        for text in ["max\n", "9223372036854771712\n", "", "x"] {
            assert_eq!(allowance(&[Some(text.into())], "100", ""), None, "{text}");
        }
    }

    #[test]
    fn the_least_limit_counts_and_inactive_cache_is_not_use() {
        let limits = [Some("1000000\n".into()), Some("800000\n".into()), None];
        let group = allowance(
            &limits,
            "500000\n",
            "anon 1\ninactive_file 200000\nactive_file 9\n",
        )
        .unwrap();
        assert_eq!(
            group,
            Allowance {
                limit_bytes: 800_000,
                used_bytes: 300_000
            }
        );
        assert_eq!(group.left_bytes(), 500_000);
        let v1 = allowance(
            &limits[..1],
            "500000",
            "inactive_file 1\ntotal_inactive_file 100000\n",
        )
        .unwrap();
        assert_eq!(v1.left_bytes(), 600_000);
        let over = Allowance {
            limit_bytes: 1,
            used_bytes: 2,
        };
        assert_eq!(over.left_bytes(), 0);
    }

    #[test]
    fn the_machine_s_available_memory_is_read() {
        assert_eq!(
            mem_available("MemTotal: 8 kB\nMemAvailable:    1024 kB\n"),
            Some(1 << 20)
        );
        assert_eq!(mem_available("MemTotal: 8 kB\n"), None);
        assert!(available_to("self") > 0);
    }
}
