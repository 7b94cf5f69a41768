//! The systems of the table: regions and programs over each store, clients without a pager, and
//! kernel swap.
use std::io::Result;
use std::path::{Path, PathBuf};

use super::raw::{Client, How};
use super::servers::{Memcached, Valkey};
use crate::paging::kernel_swap::KernelSwap;
use crate::paging::pattern::Pattern;
use crate::paging::systems::{Systems, Worker};
use crate::paging::task::{Findings, Home, Phase, Task};
use crate::runner::System;
use crate::undo;

pub(super) const VALKEY: &str = "valkey, socket";
pub(super) const VALKEY_SIGNAL: &str = "valkey, socket, signal delivery";
pub(super) const SCAN: &str = "scan, valkey, socket";
pub(super) const SCAN_SIGNAL: &str = "scan, valkey, socket, signal";
pub(super) const RAW: &str = "raw GET, socket, plain client";
pub(super) const RAW_OWN: &str = "raw GET, socket, the store itself";
pub(super) const SAME_CPU: &str = "valkey, server's processor";
pub(super) const SAME_CPU_SIGNAL: &str = "valkey, server's processor, signal";
pub(super) const SAME_CPU_RUN: &str = "valkey, server's processor, run";
pub(super) const SAME_CPU_RAW: &str = "raw GET, server's processor, plain";
pub(super) const SAME_CPU_OWN: &str = "raw GET, server's processor, store";
pub(super) const SWAP_FILE: &str = "kernel swap, file";

/// Random reads of a region with this store.
fn region(name: &str, home: Home, store: String) -> Box<Worker> {
    Worker::new(name, move |task| Task {
        home,
        store: store.clone(),
        ..task
    })
}

/// The same by a program under `pagetide run`.
fn under_run(name: &str, pagetide: &Path, store: String) -> Box<Worker> {
    let change = move |task| Task {
        store: store.clone(),
        ..task
    };
    Worker::under_run(name, pagetide.to_owned(), change)
}

/// A second pass in address order, after a whole one that is not timed.
fn scan(name: &str, home: Home, store: String) -> Box<Worker> {
    Worker::new(name, move |task| {
        let accesses = (task.bytes / 4096) as u64;
        Task {
            home,
            store: store.clone(),
            pattern: Pattern::Sequential,
            warmup: accesses,
            phases: vec![Phase {
                accesses,
                writes: 0,
            }],
            ..task
        }
    })
}

/// GETs of random values without a pager.
struct Raw(&'static str, Client);

impl System<Task> for Raw {
    type Found = Findings;

    fn name(&self) -> &str {
        self.0
    }

    fn run(&mut self, task: &Task) -> Result<Findings> {
        let absent = (task.bytes as u64 - task.resident) / 4096;
        self.1.measure(absent, task.phases[0].accesses)
    }
}

/// Kernel swap on zram or on a file in a directory, for the time of a run: the others are not to
/// meet it.
struct Swap(&'static str, Option<PathBuf>);

impl System<Task> for Swap {
    type Found = Findings;

    fn name(&self) -> &str {
        self.0
    }

    fn run(&mut self, task: &Task) -> Result<Findings> {
        let before = undo::mark();
        let swap = KernelSwap::start(self.1.as_deref(), task);
        // Random reads gain nothing from the kernel's read-ahead.
        let findings = swap.and_then(|swap| swap.run(task, 0));
        let restored = undo::back_to(before);
        let findings = findings?;
        restored?;
        Ok(findings)
    }
}

/// The servers there are, and where files may be.
pub(super) struct Places<'a> {
    pub(super) directory: &'a Path,
    pub(super) pagetide: Option<&'a Path>,
    pub(super) valkey: Option<&'a Valkey>,
    /// One that keeps to one processor.
    pub(super) beside: Option<&'a Valkey>,
    pub(super) memcached: Option<&'a Memcached>,
}

impl Places<'_> {
    /// In the order of the table.
    pub(super) fn systems(&self) -> Systems<'static> {
        let file = format!("file:{}", self.directory.display());
        let mut systems: Systems<'static> = vec![
            region("ram:", Home::Thread, "ram:".to_owned()),
            region("file:", Home::Thread, file),
        ];
        if let Some(valkey) = self.valkey {
            self.add_valkey(&mut systems, valkey);
        }
        if let Some(valkey) = self.beside {
            let uri = valkey.by_socket("");
            systems.push(Box::new(Raw(SAME_CPU_RAW, valkey.client(How::Plain))));
            systems.push(Box::new(Raw(SAME_CPU_OWN, valkey.client(How::Store))));
            systems.push(region(SAME_CPU, Home::Thread, uri.clone()));
            systems.push(region(SAME_CPU_SIGNAL, Home::Signal, uri.clone()));
            if let Some(pagetide) = self.pagetide {
                systems.push(under_run(SAME_CPU_RUN, pagetide, uri));
            }
        }
        if let Some(memcached) = self.memcached {
            let name = "memcached, TCP, lz4 and encrypted";
            systems.push(region(name, Home::Thread, memcached.uri()));
        }
        systems.push(Box::new(Swap("kernel swap, zram", None)));
        systems.push(Box::new(Swap(SWAP_FILE, Some(self.directory.to_owned()))));
        systems
    }

    fn add_valkey(&self, systems: &mut Systems<'static>, valkey: &Valkey) {
        let (socket, port) = (valkey.by_socket(""), valkey.by_port());
        let sealed = valkey.by_socket("compress=1&encrypt=1");
        for (name, how) in [
            ("raw GET, TCP, plain client", How::PlainByPort),
            ("raw GET, socket, redis crate", How::Crate),
            // Beside what they are compared with.
            (RAW, How::Plain),
            (RAW_OWN, How::Store),
        ] {
            systems.push(Box::new(Raw(name, valkey.client(how))));
        }
        let run = "valkey, socket, pagetide run";
        systems.push(region(VALKEY, Home::Thread, socket.clone()));
        systems.push(region(VALKEY_SIGNAL, Home::Signal, socket.clone()));
        if let Some(pagetide) = self.pagetide {
            systems.push(under_run(run, pagetide, socket.clone()));
        }
        systems.push(region(
            "valkey, socket, lz4 and encrypted",
            Home::Thread,
            sealed,
        ));
        systems.push(region("valkey, TCP, lz4 and encrypted", Home::Thread, port));
        systems.push(scan(SCAN, Home::Thread, socket.clone()));
        systems.push(scan(SCAN_SIGNAL, Home::Signal, socket));
    }
}
