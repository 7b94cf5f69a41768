//! The kernel's swap as the peer of whole programs: zram with LZ4 without read-ahead, below a
//! memory cgroup.
use std::ffi::OsString;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;

use super::relief::{Relief, Room};
use crate::cgroup::MemoryGroup;
use crate::report::say;
use crate::{sysfs, zram};

/// Room for what is swapped out, before compression: more than any program takes.
const DEVICE_BYTES: u64 = 16 << 30;

/// The group and the swap behind it.
pub struct KernelSwap {
    group: MemoryGroup,
    device: String,
    /// Its reclaim is helped; see [`super::relief`].
    helped: bool,
    /// Tells that the OOM killer was called, where it can be held off.
    called: Option<OwnedFd>,
}

/// Counters around one run.
pub struct Before {
    swapped_in: u64,
    swapped_out: u64,
    killed: u64,
    relief: Option<Relief>,
}

/// What happened meanwhile.
pub struct After {
    /// Pages swapped in, on the whole machine.
    pub swapped_in: u64,
    /// Pages swapped out, on the whole machine.
    pub swapped_out: u64,
    /// The kernel ended a process of the group.
    pub killed: bool,
    /// How often it would have, had it not been held off.
    pub held_off: Option<u64>,
    /// The group's peak and the most that zram took.
    pub memory_bytes: u64,
}

/// Pages swapped in and out since the machine was started.
fn swapped() -> Result<(u64, u64)> {
    let text = sysfs::read("/proc/vmstat")?;
    let field = |name: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
        let value = pairs.find(|(found, _)| *found == name);
        let value = value.and_then(|(_, value)| value.parse().ok());
        value.ok_or_else(|| Error::other(format!("/proc/vmstat has no {name}")))
    };
    Ok((field("pswpin")?, field("pswpout")?))
}

impl KernelSwap {
    /// Sets up the device and the group, until everything is undone; reclaim is `helped` or left
    /// alone.
    pub fn start(helped: bool) -> Result<KernelSwap> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                "a swap device and a memory cgroup need root",
            ));
        }
        let group = MemoryGroup::create()?;
        group.oom_kills()?;
        let device = zram::start(DEVICE_BYTES)?;
        zram::set_page_cluster(0)?;
        let called = match helped.then(|| group.hold_off_oom_killer()).transpose() {
            Ok(called) => called,
            Err(error) => {
                say(&format!("swap will not survive all programs: {error}"));
                None
            }
        };
        Ok(KernelSwap {
            group,
            device,
            helped,
            called,
        })
    }

    /// The words before a program's that have it start in the group.
    pub fn words(&self) -> Vec<OsString> {
        let enter = "echo $$ >\"$0/cgroup.procs\" && exec \"$@\"";
        let group = self.group.directory().into();
        vec!["sh".into(), "-c".into(), enter.into(), group]
    }

    /// Before a run that may have `room`; all of it from the beginning where reclaim is left alone.
    pub fn begin(&self, room: Room) -> Result<Before> {
        self.group.set_limit(room.most())?;
        // Version 2 before Linux 6.12 keeps the highest peak of all runs: still a true bound.
        self.group.reset_peak().ok();
        zram::forget_most_used(&self.device)?;
        let killed = self.group.oom_kills()?;
        let called = self.called.as_ref().map(OwnedFd::try_clone).transpose()?;
        let relief = (self.helped).then(|| Relief::start(self.group.clone(), room, called));
        let (swapped_in, swapped_out) = swapped()?;
        Ok(Before {
            swapped_in,
            swapped_out,
            killed,
            relief,
        })
    }

    /// After it.
    pub fn end(&self, before: Before) -> Result<After> {
        let (swapped_in, swapped_out) = swapped()?;
        let held_off = before.relief.map(Relief::end);
        Ok(After {
            swapped_in: swapped_in - before.swapped_in,
            swapped_out: swapped_out - before.swapped_out,
            killed: self.group.oom_kills()? > before.killed,
            held_off: held_off.filter(|_| self.called.is_some()),
            memory_bytes: self.group.peak()? + zram::most_used(&self.device)?,
        })
    }
}
