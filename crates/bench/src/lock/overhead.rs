//! `overhead`: STREAM and a compile job, with and without locking. The text of 2015 found no
//! measurable cost.
use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use pagetide::lock::{self, AllFlags};
use serde::{Deserialize, Serialize};

use super::registry;
use super::threads::Sizes;
use crate::machine::Machine;
use crate::undo;

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Each is measured so many times, in turns; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Doubles in each of STREAM's three arrays
    #[arg(long, default_value_t = 10_000_000)]
    pub elements: usize,
    /// The `pagetide` command, for the compile job; beside this program if not said
    #[arg(long)]
    pub pagetide: Option<PathBuf>,
    /// Print a JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// For the process that runs STREAM.
#[derive(Debug, Clone, Args)]
pub struct Stream {
    /// Lock all memory on fault first
    #[arg(long)]
    pub lock: bool,
    /// Doubles in each array
    #[arg(long)]
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

#[derive(Debug, Serialize)]
struct Line {
    name: &'static str,
    unit: &'static str,
    without: f64,
    with: f64,
    /// Time with locking over time without: above 1 is slower.
    cost: f64,
    /// Least and most of the runs without: what noise there is.
    without_min: f64,
    without_max: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    machine: Machine,
    runs: u32,
    rows: Vec<Line>,
    registry: registry::Cost,
}

/// The four kernels of STREAM (McCalpin), the best of ten passes each.
pub fn stream(task: &Stream) -> Result<Rates> {
    if task.lock {
        let flags = AllFlags::CURRENT | AllFlags::FUTURE | AllFlags::ONFAULT;
        lock::mlockall(flags).map_err(|error| Error::other(error.to_string()))?;
    }
    let count = task.elements;
    let (mut a, mut b, mut c) = (
        vec![1.0f64; count],
        vec![2.0f64; count],
        vec![0.0f64; count],
    );
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
    let rate = |arrays: usize, seconds: f64| (arrays * 8 * count) as f64 / seconds / 1e6;
    Ok(Rates {
        copy: rate(2, best[0]),
        scale: rate(2, best[1]),
        add: rate(3, best[2]),
        triad: rate(3, best[3]),
    })
}

/// Measures and prints.
pub fn run(plan: &Plan) -> Result<()> {
    undo::arm()?;
    let mut rates: [Vec<Rates>; 2] = Default::default();
    let mut compiles: [Vec<f64>; 2] = Default::default();
    let mut threads: [Vec<Sizes>; 2] = Default::default();
    let job = CompileJob::new(plan.pagetide.as_deref())?;
    for _ in 0..plan.runs {
        for (locked, rates) in [false, true].into_iter().zip(&mut rates) {
            rates.push(stream_once(plan.elements, locked)?);
        }
        for (locked, times) in [false, true].into_iter().zip(&mut compiles) {
            times.push(job.once(locked)?);
        }
        for (locked, sizes) in [false, true].into_iter().zip(&mut threads) {
            sizes.push(job.threads(locked)?);
        }
    }
    let mut rows = Vec::new();
    type Of = fn(&Rates) -> f64;
    let streams: [(&'static str, Of); 4] = [
        ("STREAM copy", |r| r.copy),
        ("STREAM scale", |r| r.scale),
        ("STREAM add", |r| r.add),
        ("STREAM triad", |r| r.triad),
    ];
    for (name, of) in streams {
        let [without, with] = [0, 1].map(|i: usize| rates[i].iter().map(of).collect::<Vec<f64>>());
        rows.push(line(name, "MB/s", without, with, |without, with| {
            without / with
        }));
    }
    let [without, with] = compiles;
    rows.push(line("compile job", "s", without, with, |without, with| {
        with / without
    }));
    let [without, with] = threads.map(|sizes| {
        let mib = |sizes: &Sizes| sizes.rss_bytes as f64 / f64::from(1 << 20);
        sizes.iter().map(mib).collect()
    });
    rows.push(line(
        "RSS, 64 threads",
        "MiB",
        without,
        with,
        |without, with| with / without,
    ));
    let results = Results {
        machine: Machine::here(),
        runs: plan.runs,
        rows,
        registry: registry::measure(20_000, plan.runs)?,
    };
    let text = if plan.json {
        serde_json::to_string(&results)? + "\n"
    } else {
        table(&results)
    };
    std::io::stdout().write_all(text.as_bytes())
}

fn line(
    name: &'static str,
    unit: &'static str,
    mut without: Vec<f64>,
    mut with: Vec<f64>,
    cost: impl Fn(f64, f64) -> f64,
) -> Line {
    without.sort_by(f64::total_cmp);
    with.sort_by(f64::total_cmp);
    let (before, after) = (without[without.len() / 2], with[with.len() / 2]);
    Line {
        name,
        unit,
        without: before,
        with: after,
        cost: cost(before, after),
        without_min: without[0],
        without_max: without[without.len() - 1],
    }
}

fn table(results: &Results) -> String {
    let machine = &results.machine;
    let mut out = format!(
        "without and with all memory locked on fault, medians of {} runs taken in turns\n{}, {} \
         cores, Linux {}, THP {}\n\n{:<14} {:>10} {:>10} {:>6} {:>22}\n",
        results.runs,
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.thp,
        "",
        "without",
        "with",
        "cost",
        "noise of without"
    );
    for row in &results.rows {
        out.push_str(&format!(
            "{:<14} {:>10.2} {:>10.2} {:>6.3} {:>10.2} to {:>8.2} {}\n",
            row.name, row.without, row.with, row.cost, row.without_min, row.without_max, row.unit
        ));
    }
    let registry = &results.registry;
    out + &format!(
        "\ncost: time (or memory) with locking over without\n\nregistry with {} ranges: lock \
         {:.2} us (bare {:.2}, added {:.2}), unlock {:.2} us (bare {:.2}, added {:.2})\n{} \
         threads at once, time over all calls: {:.2} us (bare {:.2})\n",
        registry.ranges,
        registry.lock_ns / 1e3,
        registry.bare_lock_ns / 1e3,
        (registry.lock_ns - registry.bare_lock_ns) / 1e3,
        registry.unlock_ns / 1e3,
        registry.bare_unlock_ns / 1e3,
        (registry.unlock_ns - registry.bare_unlock_ns) / 1e3,
        registry.threads,
        registry.threads_ns / 1e3,
        registry.bare_threads_ns / 1e3,
    )
}

fn stream_once(elements: usize, lock: bool) -> Result<Rates> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["stream-worker", &format!("--elements={elements}")]);
    if lock {
        command.arg("--lock");
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(Error::other(format!("STREAM ended with {}", output.status)));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// A C file with many functions, compiled with the C compiler of this system.
struct CompileJob {
    pagetide: PathBuf,
    source: PathBuf,
    compiler: String,
}

impl CompileJob {
    fn new(pagetide: Option<&Path>) -> Result<CompileJob> {
        let beside = std::env::current_exe()?.with_file_name("pagetide");
        let pagetide = pagetide.map_or(beside, Path::to_owned);
        if !pagetide.is_file() {
            return Err(Error::other(format!(
                "{}: the pagetide command is not there; name it with --pagetide",
                pagetide.display()
            )));
        }
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
            pagetide,
            source,
            compiler: std::env::var("CC").unwrap_or_else(|_| "cc".into()),
        })
    }

    /// `program`, under `pagetide run --lock on-fault` or by itself.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>, lock: bool) -> Command {
        if !lock {
            return Command::new(program);
        }
        let mut command = Command::new(&self.pagetide);
        command
            .args(["run", "--lock", "on-fault", "--"])
            .arg(program);
        command
    }

    /// Seconds.
    fn once(&self, lock: bool) -> Result<f64> {
        let mut command = self.command(&self.compiler, lock);
        command
            .args(["-O2", "-c", "-o", "/dev/null"])
            .arg(&self.source);
        let start = Instant::now();
        let status = command
            .status()
            .map_err(|error| Error::new(error.kind(), format!("{}: {error}", self.compiler)))?;
        if !status.success() {
            return Err(Error::other(format!("the compile job ended with {status}")));
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Sizes of a program of 64 threads.
    fn threads(&self, lock: bool) -> Result<Sizes> {
        let mut command = self.command(std::env::current_exe()?, lock);
        let output = command
            .arg("threads-worker")
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(Error::other(format!(
                "the program of 64 threads ended with {}",
                output.status
            )));
        }
        let sizes: Sizes = serde_json::from_slice(&output.stdout)?;
        if lock && sizes.vmlck_bytes == 0 {
            return Err(Error::other("the program of 64 threads was not locked"));
        }
        Ok(sizes)
    }
}
