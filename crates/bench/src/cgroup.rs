//! A memory cgroup for the peer, of version 1 or 2, set up below this process's own group and taken
//! down.
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::{sysfs, undo};

/// A memory cgroup made for one comparison.
#[derive(Debug, Clone)]
pub struct MemoryGroup {
    directory: PathBuf,
    unified: bool,
}

/// The directory of this process's own group in a hierarchy: `memory` of version 1, or the unified
/// one.
fn own_group(mount: &Path, is_line: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let line = groups.lines().find(|line| is_line(line))?;
    let own = line.splitn(3, ':').nth(2)?.trim_start_matches('/');
    let directory = mount.join(own);
    // In a container the path can be one of the host's; the mount point itself is then the group.
    Some(if directory.is_dir() {
        directory
    } else {
        mount.to_owned()
    })
}

impl MemoryGroup {
    /// Makes an empty group without a limit.
    pub fn create() -> Result<MemoryGroup> {
        let name = format!("pagetide-bench-{}", std::process::id());
        let mount = Path::new("/sys/fs/cgroup/memory");
        let is_memory = |line: &str| {
            line.split(':')
                .nth(1)
                .is_some_and(|names| names.split(',').any(|name| name == "memory"))
        };
        let (parent, unified) = if mount.join("memory.limit_in_bytes").exists() {
            (
                own_group(mount, is_memory).unwrap_or_else(|| mount.to_owned()),
                false,
            )
        } else {
            (unified_parent()?, true)
        };
        let directory = parent.join(name);
        let removed = directory.clone();
        undo::change(
            &format!("memory cgroup {}", directory.display()),
            || {
                fs::create_dir(&directory).map_err(|error| {
                    Error::new(
                        error.kind(),
                        format!("making {}: {error}", directory.display()),
                    )
                })
            },
            move || remove(&removed),
        )?;
        Ok(MemoryGroup { directory, unified })
    }

    /// The directory that processes enter.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// 1 or 2.
    pub fn version(&self) -> u32 {
        if self.unified { 2 } else { 1 }
    }

    /// The most memory the group may hold, page tables and other kernel memory of its processes
    /// included.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        let name = if self.unified {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        sysfs::write(self.directory.join(name), bytes.to_string())
    }

    /// The most the group has held.
    pub fn peak(&self) -> Result<u64> {
        let name = if self.unified {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        sysfs::read(self.directory.join(name))?
            .parse()
            .map_err(Error::other)
    }

    /// How often the kernel ended a process because the group could not be kept within its limit.
    pub fn oom_kills(&self) -> Result<u64> {
        let name = if self.unified {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        counter(&sysfs::read(self.directory.join(name))?, "oom_kill")
    }

    /// What the group holds besides anonymous pages: files, page tables and other kernel memory,
    /// and what is charged in advance. Brings the group's counters up to date, which the kernel
    /// does every two seconds.
    pub fn besides_anonymous(&self) -> Result<u64> {
        let (usage, mapped, cached) = match self.unified {
            true => ("memory.current", "anon", "swapcached"),
            false => ("memory.usage_in_bytes", "total_rss", "total_swapcached"),
        };
        let counters = sysfs::read(self.directory.join("memory.stat"))?;
        let all = sysfs::read(self.directory.join(usage))?;
        let all: u64 = all.parse().map_err(Error::other)?;
        // On their way to or from swap; before Linux 5.12 they are not told from files.
        let cached = counter(&counters, cached).unwrap_or(0);
        Ok(all.saturating_sub(counter(&counters, mapped)? + cached))
    }

    /// From now on the kernel's OOM killer ends no process of the group: who finds no room waits
    /// until the limit is raised. The event, which does not block, is signalled each time. Only
    /// version 1 can do that.
    pub fn hold_off_oom_killer(&self) -> Result<OwnedFd> {
        if self.unified {
            let text = "the OOM killer of a memory cgroup of version 2 cannot be held off";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let control = self.directory.join("memory.oom_control");
        sysfs::write(&control, "1")?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watched = fs::File::open(&control)?;
        let words = format!("{} {}", event.as_raw_fd(), watched.as_raw_fd());
        sysfs::write(self.directory.join("cgroup.event_control"), words)?;
        Ok(event)
    }

    /// Whether a process waits because it has found no room.
    pub fn is_under_oom(&self) -> Result<bool> {
        let text = sysfs::read(self.directory.join("memory.oom_control"))?;
        Ok(text.lines().any(|line| line == "under_oom 1"))
    }

    /// Starts the peak anew; version 2 before Linux 6.12 cannot.
    pub fn reset_peak(&self) -> Result<()> {
        let name = if self.unified {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        sysfs::write(self.directory.join(name), "0")
    }
}

/// The value that `text`, with a name and a value in each line, has for `name`.
fn counter(text: &str, name: &str) -> Result<u64> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = pairs
        .find(|(found, _)| *found == name)
        .ok_or_else(|| Error::other(format!("the memory cgroup has no {name}; it has `{text}`")))?;
    value.parse().map_err(Error::other)
}

/// A group of the unified hierarchy whose children may have memory limits: the root, where
/// processes may stay beside them.
fn unified_parent() -> Result<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let controllers = sysfs::read(root.join("cgroup.controllers")).map_err(|error| {
        Error::new(
            error.kind(),
            format!("there is no memory cgroup here, neither version 1 nor 2 ({error}); mount one"),
        )
    })?;
    if !controllers.split_whitespace().any(|name| name == "memory") {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the unified cgroup hierarchy has no memory controller here",
        ));
    }
    let control = root.join("cgroup.subtree_control");
    if !sysfs::read(&control)?
        .split_whitespace()
        .any(|name| name == "memory")
    {
        let restored = control.clone();
        undo::change(
            "+memory in the root cgroup",
            || sysfs::write(&control, "+memory"),
            move || sysfs::write(restored, "-memory"),
        )?;
    }
    Ok(root)
}

fn remove(directory: &Path) -> Result<()> {
    for _ in 0..100 {
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            // Processes that were killed take a moment to leave.
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    fs::remove_dir(directory)
}
