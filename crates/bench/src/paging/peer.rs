//! The kernel's swap as the peer: the worker in a memory cgroup, over zram or a file.
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::PeerChoice;
use super::worker::{Findings, Task};
use crate::cgroup::MemoryGroup;
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
    /// Sets both up, and measures the allowance with a small worker that is not limited.
    pub fn start(
        peer: PeerChoice,
        swap_dir: Option<&Path>,
        task: &Task,
        resident: u64,
    ) -> Result<KernelSwap> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                "the peer needs a swap device and a memory cgroup, and those need root: run this \
                 with sudo, or with --peer none",
            ));
        }
        let group = MemoryGroup::create()?;
        let bytes = (task.bytes as u64).saturating_mul(2);
        let device = match peer {
            PeerChoice::Swapfile => {
                let directory = swap_dir.map_or_else(std::env::temp_dir, Path::to_owned);
                swap_file(&directory, bytes)?;
                "file".to_owned()
            }
            _ => zram::start(bytes)?,
        };
        let mut peer = KernelSwap {
            group,
            device,
            allowance_bytes: 0,
        };
        peer.allowance_bytes = peer.measure_allowance(task)?;
        peer.group.set_limit(resident + peer.allowance_bytes)?;
        Ok(peer)
    }

    fn measure_allowance(&self, task: &Task) -> Result<u64> {
        let small = Task {
            bytes: 16 << 20,
            resident: 16 << 20,
            pattern: super::pattern::Pattern::Random,
            accesses: 1000,
            warmup: 0,
            graph: None,
            ..task.clone()
        };
        self.run_worker(&small)?;
        let page_tables = |bytes: usize| (bytes / 512) as u64;
        let own = self
            .group
            .peak()?
            .saturating_sub(small.bytes as u64 + page_tables(small.bytes));
        Ok(own + page_tables(task.bytes))
    }

    fn run_worker(&self, task: &Task) -> Result<Findings> {
        let inside = Task {
            cgroup: Some(self.group.directory().to_owned()),
            swap: Some(self.device.clone()),
            ..task.clone()
        };
        launch::findings_of(Command::new(std::env::current_exe()?).args(inside.to_words()))
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
                    eprintln!(
                        "the peer's worker failed, try {tries} of {TRIES}: {error} (see dmesg)"
                    );
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
