//! The peer: the worker in a memory cgroup, its pages swapped by the kernel to zram.
use std::io::{Error, ErrorKind, Result};
use std::process::Command;

use crate::cgroup::MemoryGroup;
use crate::launch;
use crate::worker::{Findings, Parameters};
use crate::zram;

/// Kernel swap on zram under a memory cgroup.
#[derive(Debug)]
pub struct KernelSwap {
    group: MemoryGroup,
    resident: u64,
    /// What the group may hold beyond the resident bound: the worker's own memory, measured, and
    /// its page tables.
    pub allowance_bytes: u64,
}

/// One run of the peer.
#[derive(Debug, Clone)]
pub struct PeerRun {
    /// What the worker found.
    pub findings: Findings,
    /// The most the group held, page tables included.
    pub group_peak_bytes: u64,
}

impl KernelSwap {
    /// Sets up the swap device and the cgroup, and measures the allowance with a small worker that
    /// is not limited.
    pub fn start(parameters: &Parameters, resident: u64) -> Result<KernelSwap> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                "swap devices and cgroups need root; run this with sudo",
            ));
        }
        let group = MemoryGroup::create()?;
        zram::start((parameters.bytes as u64).saturating_mul(2))?;
        let mut peer = KernelSwap {
            group,
            resident,
            allowance_bytes: 0,
        };
        peer.allowance_bytes = peer.measure_allowance(parameters)?;
        peer.group.set_limit(resident + peer.allowance_bytes)?;
        Ok(peer)
    }

    fn measure_allowance(&self, parameters: &Parameters) -> Result<u64> {
        let small = Parameters {
            bytes: 16 << 20,
            accesses: 1000,
            warmup: 0,
            ..parameters.clone()
        };
        self.run_worker(&small)?;
        let page_tables = |bytes: usize| (bytes / 512) as u64;
        let own = self
            .group
            .peak()?
            .saturating_sub(small.bytes as u64 + page_tables(small.bytes));
        Ok(own + page_tables(parameters.bytes))
    }

    fn run_worker(&self, parameters: &Parameters) -> Result<Findings> {
        let inside = Parameters {
            cgroup: Some(self.group.directory().to_owned()),
            ..parameters.clone()
        };
        launch::findings(Command::new(std::env::current_exe()?).args(launch::worker_words(&inside)))
    }

    /// Version of the memory cgroup in use.
    pub fn cgroup_version(&self) -> u32 {
        self.group.version()
    }

    /// One run with swap read-ahead of two to the power of `page_cluster` pages.
    pub fn run(&self, parameters: &Parameters, page_cluster: u32) -> Result<PeerRun> {
        zram::set_page_cluster(page_cluster)?;
        // Version 2 before Linux 6.12 keeps the highest peak of all runs: still a true bound.
        self.group.reset_peak().ok();
        let findings = self.run_worker(parameters)?;
        if findings.major_faults == 0 {
            let why = format!(
                "nothing was swapped in under a bound of {} bytes",
                self.resident
            );
            return Err(Error::other(format!(
                "{why}: this measures nothing, ask for more --bytes or less --resident"
            )));
        }
        Ok(PeerRun {
            findings,
            group_peak_bytes: self.group.peak()?,
        })
    }
}
