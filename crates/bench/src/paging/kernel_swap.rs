//! The kernel's swap as the peer: the worker in a memory cgroup, over zram or a file.
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use super::task::{Findings, Phase, Task, WORKER};
use crate::cgroup::MemoryGroup;
use crate::report::say;
use crate::{launch, undo, zram};

/// Times the peer is started before its failure counts.
const TRIES: u32 = 12;

/// The group and the swap behind it.
pub struct KernelSwap {
    group: MemoryGroup,
    device: String,
    /// What the group may hold beyond the bound, for the worker's own memory and its page tables.
    pub allowance_bytes: u64,
}

impl KernelSwap {
    /// Sets up zram, or a swap file in a directory, and the group, which may hold what `task` says;
    /// measures the allowance with a small worker that is not limited.
    pub fn start(swap_dir: Option<&Path>, task: &Task) -> Result<KernelSwap> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                "the peer needs a swap device and a memory cgroup, and those need root: run this \
                 with sudo, or `paging` with --peer none",
            ));
        }
        let group = MemoryGroup::create()?;
        let bytes = (task.bytes as u64).saturating_mul(2);
        let device = match swap_dir {
            Some(directory) => {
                swap_file(directory, bytes)?;
                "file".to_owned()
            }
            None => zram::start(bytes)?,
        };
        let mut peer = KernelSwap {
            group,
            device,
            allowance_bytes: 0,
        };
        peer.allowance_bytes = peer.measure_allowance(task)?;
        peer.group.set_limit(task.resident + peer.allowance_bytes)?;
        Ok(peer)
    }

    fn measure_allowance(&self, task: &Task) -> Result<u64> {
        const SMALL: u64 = 16 << 20;
        let few = |phase: &Phase| Phase {
            accesses: 1000,
            ..*phase
        };
        self.run_worker(&Task {
            threads: task.threads,
            phases: task.phases.iter().map(few).collect(),
            ..Task::random_reads(SMALL, SMALL, 0)
        })?;
        let page_tables = |bytes: u64| bytes / 512;
        let own = self
            .group
            .peak()?
            .saturating_sub(SMALL + page_tables(SMALL));
        Ok(own + page_tables(task.bytes as u64))
    }

    fn run_worker(&self, task: &Task) -> Result<Findings> {
        let inside = Task {
            cgroup: Some(self.group.directory().to_owned()),
            swap: Some(self.device.clone()),
            ..task.clone()
        };
        launch::findings(&mut launch::worker(WORKER, &inside)?)
    }

    /// Version of the memory cgroup.
    pub fn cgroup_version(&self) -> u32 {
        self.group.version()
    }

    /// One run with swap read-ahead of two to the power of `page_cluster` pages; what is resident
    /// is the group's peak.
    pub fn run(&self, task: &Task, page_cluster: u32) -> Result<Findings> {
        zram::set_page_cluster(page_cluster)?;
        // Version 2 before Linux 6.12 keeps the highest peak of all runs: still a true bound.
        self.group.reset_peak().ok();
        let mut tries = 1;
        let mut findings = loop {
            match self.run_worker(task) {
                // Under a small limit the kernel's reclaim may find every page in use, and end the
                // worker though there is swap to be had.
                Err(error) if tries < TRIES && !undo::has_begun() => {
                    say(&format!(
                        "the peer's worker failed, try {tries} of {TRIES}: {error} (see dmesg)"
                    ));
                    tries += 1;
                }
                result => break result?,
            }
        };
        findings.resident_max_bytes = self.group.peak()?;
        Ok(findings)
    }
}

/// Makes a file of `bytes` in `directory` swap, until everything is undone.
fn swap_file(directory: &Path, bytes: u64) -> Result<PathBuf> {
    let path = directory.join(format!("pagetide-bench-{}.swap", std::process::id()));
    let removed = path.clone();
    undo::change(
        &format!("swap file {}", path.display()),
        || {
            use std::os::unix::fs::OpenOptionsExt;
            let file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            let flags = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, flags, 0, bytes)?;
            file.sync_all()
        },
        move || match fs::remove_file(&removed) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    )
    .map_err(|error| {
        Error::new(
            error.kind(),
            format!(
                "{}: {error}; name a directory with room with --swap-dir",
                path.display()
            ),
        )
    })?;
    zram::swap_on(&path).map_err(|error| {
        Error::new(
            error.kind(),
            format!(
                "{error}; a swap file needs a file system that allows it (not tmpfs or \
                overlay): name one with --swap-dir"
            ),
        )
    })?;
    Ok(path)
}
