//! The programs that `overhead` measures with and without locking: STREAM, a compile job, and a
//! program of many threads.
#![allow(unsafe_code)] // maps a reservation
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

use pagetide::lock::{self, AllFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use serde::{Deserialize, Serialize};

use crate::{launch, sysfs, undo};

/// The commands of the workers.
pub const STREAM: &str = "stream-worker";
#[allow(missing_docs)]
pub const THREADS: &str = "threads-worker";

/// What the process that runs STREAM is asked to do.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Stream {
    /// Lock all memory on fault first.
    pub lock: bool,
    /// Doubles in each array.
    pub elements: usize,
}

/// Best rates in MB/s.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Rates {
    pub copy: f64,
    pub scale: f64,
    pub add: f64,
    pub triad: f64,
}

/// The four kernels of STREAM (McCalpin), the best of ten passes each.
pub fn stream(task: &Stream) -> Result<Rates, String> {
    if task.lock {
        let flags = AllFlags::CURRENT | AllFlags::FUTURE | AllFlags::ONFAULT;
        lock::mlockall(flags).map_err(|error| error.to_string())?;
    }
    let array = |value: f64| vec![value; task.elements];
    let (mut a, mut b, mut c) = (array(1.0), array(2.0), array(0.0));
    let scalar = std::hint::black_box(3.0);
    let mut best = [f64::INFINITY; 4];
    for _ in 0..10 {
        let mut timed = |index: usize, work: &mut dyn FnMut()| {
            let start = Instant::now();
            work();
            best[index] = best[index].min(start.elapsed().as_secs_f64());
        };
        timed(0, &mut || c.copy_from_slice(&a));
        timed(1, &mut || {
            b.iter_mut().zip(&c).for_each(|(b, c)| *b = scalar * c)
        });
        timed(2, &mut || {
            let sources = a.iter().zip(&b);
            c.iter_mut().zip(sources).for_each(|(c, (a, b))| *c = a + b);
        });
        timed(3, &mut || {
            let sources = b.iter().zip(&c);
            a.iter_mut()
                .zip(sources)
                .for_each(|(a, (b, c))| *a = b + scalar * c);
        });
        std::hint::black_box((&mut a, &mut b, &mut c));
    }
    let rate = |arrays: usize, seconds: f64| (arrays * 8 * task.elements) as f64 / seconds / 1e6;
    Ok(Rates {
        copy: rate(2, best[0]),
        scale: rate(2, best[1]),
        add: rate(3, best[2]),
        triad: rate(3, best[3]),
    })
}

/// What the program of many threads found of itself.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Sizes {
    pub rss_bytes: u64,
    pub vmlck_bytes: u64,
}

/// Starts so many threads with stacks of 8 MiB, beside a reservation; has each use some stack and
/// heap, and looks while all of them live.
pub fn threads(count: &usize) -> Result<Sizes, String> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a reservation without access at a place of the kernel's choice.
    unsafe { mmap_anonymous(std::ptr::null_mut(), 1 << 30, ProtFlags::empty(), flags) }
        .map_err(|error| error.to_string())?;
    let barrier = Barrier::new(count + 1);
    std::thread::scope(|scope| {
        for thread in 0..*count {
            let barrier = &barrier;
            let work = move || {
                let stack = std::hint::black_box([thread as u8; 16 << 10]);
                let heap = std::hint::black_box(vec![stack[7]; 256 << 10]);
                barrier.wait();
                barrier.wait();
                std::hint::black_box((&stack, &heap));
            };
            let builder = std::thread::Builder::new().stack_size(8 << 20);
            builder
                .spawn_scoped(scope, work)
                .map_err(|error| error.to_string())?;
        }
        barrier.wait();
        let field = |name| sysfs::status_bytes(std::process::id(), name);
        let sizes = Sizes {
            rss_bytes: field("VmRSS").ok_or("no VmRSS")?,
            vmlck_bytes: field("VmLck").unwrap_or(0),
        };
        barrier.wait();
        Ok(sizes)
    })
}

/// A C file with many functions, compiled with the C compiler of this system.
pub struct CompileJob {
    source: PathBuf,
    compiler: String,
}

impl CompileJob {
    /// Writes the file, which [`undo`] removes.
    pub fn new() -> std::io::Result<CompileJob> {
        let source = std::env::temp_dir().join(format!("pagetide-bench-{}.c", std::process::id()));
        let mut text = String::from("#include <stdio.h>\n#include <string.h>\n");
        for index in 0..500 {
            text.push_str(&format!(
                "int f{index}(const char *s, int n) \
                 {{ int a = {index}; for (int i = 0; i < n; i++) {{ a = a * 31 + s[i % {}]; \
                 if (a % 7 == {}) a ^= (int)strlen(s); switch (a & 3) \
                 {{ case 0: a += i; break; case 1: a -= n; break; default: a ^= i * n; }} }} \
                 char b[64]; snprintf(b, sizeof b, \"%d %s\", a, s); return a + b[3]; }}\n",
                index % 13 + 1,
                index % 7
            ));
        }
        let gone = source.clone();
        undo::change(
            "the source file",
            || std::fs::write(&source, text),
            move || std::fs::remove_file(gone),
        )?;
        Ok(CompileJob {
            source,
            compiler: std::env::var("CC").unwrap_or_else(|_| "cc".into()),
        })
    }

    /// Compiles it, under `pagetide run --lock on-fault` if there is a command; seconds.
    pub fn run(&self, pagetide: Option<&Path>) -> std::io::Result<f64> {
        let mut command = match pagetide {
            None => Command::new(&self.compiler),
            Some(pagetide) => {
                let mut command = Command::new(pagetide);
                command
                    .args(["run", "--lock", "on-fault", "--"])
                    .arg(&self.compiler);
                command
            }
        };
        command
            .args(["-O2", "-c", "-o", "/dev/null"])
            .arg(&self.source);
        let start = Instant::now();
        let (status, _) = launch::output(&mut command).map_err(|error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", self.compiler))
        })?;
        match status.success() {
            true => Ok(start.elapsed().as_secs_f64()),
            false => Err(std::io::Error::other(format!(
                "the compile job ended with {status}"
            ))),
        }
    }
}
