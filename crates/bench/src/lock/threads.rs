//! A program of many threads, to see what locking does to its resident memory: stacks of 8 MiB,
//! reservations, a heap in use.
#![allow(unsafe_code)] // maps a reservation
use std::io::{Error, Result};
use std::sync::Barrier;

use clap::Args;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use serde::{Deserialize, Serialize};

use crate::sysfs;

/// What the process is asked to do.
#[derive(Debug, Clone, Args)]
pub struct Threads {
    /// Threads, each with a stack of 8 MiB
    #[arg(long, default_value_t = 64)]
    pub threads: usize,
}

/// What it found of itself.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Sizes {
    pub rss_bytes: u64,
    pub address_space_bytes: u64,
    pub vmlck_bytes: u64,
}

/// Starts the threads, has each use some stack and heap, and looks while all of them live.
pub fn work(task: &Threads) -> Result<Sizes> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a reservation without access at a place of the kernel's choice.
    unsafe { mmap_anonymous(std::ptr::null_mut(), 1 << 30, ProtFlags::empty(), flags) }?;
    let barrier = Barrier::new(task.threads + 1);
    std::thread::scope(|scope| {
        for thread in 0..task.threads {
            let barrier = &barrier;
            std::thread::Builder::new()
                .stack_size(8 << 20)
                .spawn_scoped(scope, move || {
                    let stack = std::hint::black_box([thread as u8; 16 << 10]);
                    let heap = std::hint::black_box(vec![stack[7]; 256 << 10]);
                    barrier.wait();
                    barrier.wait();
                    std::hint::black_box((&stack, &heap));
                })?;
        }
        barrier.wait();
        let field = |name| sysfs::status_bytes(std::process::id(), name);
        let sizes = Sizes {
            rss_bytes: field("VmRSS").ok_or_else(|| Error::other("no VmRSS"))?,
            address_space_bytes: field("VmSize").unwrap_or(0),
            vmlck_bytes: field("VmLck").unwrap_or(0),
        };
        barrier.wait();
        Ok(sizes)
    })
}
