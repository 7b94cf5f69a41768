//! The table of 2019 made again: random reads of a set four times its local memory, over each store
//! and over kernel swap.
//!
//! One worker for each system, in turns, and beside them clients without a pager that read the same
//! number of values from the same server: no pager can read a page faster than that. The servers
//! are started here, with the settings that serve them best, on private sockets and ports. They,
//! the swap devices and the files go away at the end, on an error and on a signal.
mod cost;
mod raw;
mod report;
mod servers;

use std::fs::File;
use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use pagetide_pager::page::policy::Kind as Policy;
use serde::Serialize;

use crate::governed::find_command;
use crate::paging::PeerChoice;
use crate::paging::pattern::Pattern;
use crate::paging::peer::KernelSwap;
use crate::paging::worker::{Findings, Home, Task};
use crate::{launch, undo};
use servers::{Memcached, Valkey};

/// What to measure.
#[derive(Debug, Args)]
pub struct Plan {
    /// Bytes of the set
    #[arg(long, default_value = "1G", value_parser = bytes)]
    pub size: u64,
    /// Bytes of it that may be resident
    #[arg(long, default_value = "256M", value_parser = bytes)]
    pub resident: u64,
    /// Timed reads of random pages, for each system; a quarter as many go before, untimed
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub accesses: u64,
    /// Each system is measured so many times, in turns; the run with the median mean counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Measure only systems whose names contain TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Where `file:` and the swap file keep their pages: a directory on a disk
    #[arg(long, default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Write one JSON object a system to FILE, or to stdout for -
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Draw the means to FILE, as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// The pagetide command; default: the one beside this executable
    #[arg(long)]
    pub pagetide: Option<PathBuf>,
}

fn bytes(text: &str) -> std::result::Result<u64, String> {
    pagetide_store::parse_size(text).map_err(|error| error.to_string())
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was measured.
    pub system: String,
    /// Mean of one access, hits included.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// One in a hundred takes longer.
    pub p99_us: f64,
    /// Accesses by the length of the timed part.
    pub pages_per_s: f64,
    /// Pages written back in the timed part, which only reads; of systems that are scanned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writebacks: Option<u64>,
}

/// A thing that is measured.
struct System {
    name: &'static str,
    what: What,
    rows: Vec<Row>,
}

enum What {
    /// Random reads of a region with this store.
    Region(Home, String),
    /// The same by a program under `pagetide run`.
    Run(String),
    /// A second pass in address order over a region with this store.
    Scan(Home, String),
    /// GETs of random values without a pager, by this client.
    Raw(raw::Client),
    /// Kernel swap.
    Swap(PeerChoice),
}

/// Measures every system that can be had here; says on stderr which cannot.
pub fn stores(plan: &Plan) -> Result<()> {
    undo::arm()?;
    let to_stdout = |path: &&PathBuf| path.as_os_str() == "-";
    // Before a measurement of many minutes, not after it.
    let create = |path: &PathBuf| {
        File::create(path).map_err(|error| {
            let text = format!("{} cannot be written: {error}", path.display());
            Error::new(error.kind(), text)
        })
    };
    let json = plan.json.as_ref();
    let file = json
        .filter(|path| !to_stdout(path))
        .map(create)
        .transpose()?;
    let plot = plan.plot.as_ref().map(create).transpose()?;
    let directory = servers::directory(&plan.directory)?;
    let (rows, cost) = measure(plan, &directory)?;
    let mut text = String::new();
    for row in &rows {
        text += &serde_json::to_string(row)?;
        text.push('\n');
    }
    if let Some(mut file) = file {
        file.write_all(text.as_bytes())?;
    }
    if let Some(mut plot) = plot {
        plot.write_all(report::draw(&rows).as_bytes())?;
    }
    match json.is_some_and(|path| to_stdout(&path)) {
        true => std::io::stdout().write_all(text.as_bytes())?,
        false => report::print(plan, &rows, cost)?,
    }
    match rows.is_empty() {
        true => Err(Error::other(
            "nothing was measured: what stopped each system is said above, and `--only TEXT` must \
             be a part of a system's name",
        )),
        false => Ok(()),
    }
}

fn measure(plan: &Plan, directory: &Path) -> Result<(Vec<Row>, Option<cost::Cost>)> {
    let valkey = servers::had("valkey", Valkey::start(directory, None));
    let beside = servers::last_processor().and_then(|cpu| Valkey::start(directory, Some(cpu)));
    let beside = servers::had("valkey on one processor", beside);
    let memcached = servers::had("memcached", Memcached::start(plan.size.saturating_mul(2)));
    let mut systems = systems(
        directory,
        valkey.as_ref(),
        beside.as_ref(),
        memcached.as_ref(),
    );
    if let Some(text) = &plan.only {
        systems.retain(|system| system.name.contains(text.as_str()));
    }
    for turn in 0..plan.runs {
        for system in &mut systems {
            eprintln!("run {} of {}: {}", turn + 1, plan.runs, system.name);
            match once(plan, &system.what, system.name, directory, turn) {
                Ok(row) => system.rows.push(row),
                Err(error) if undo::has_begun() => return Err(error),
                Err(error) => eprintln!("NOT MEASURED: {}: {error}", system.name),
            }
        }
    }
    let cost = match valkey.as_ref().filter(|_| plan.only.is_none()) {
        None => None,
        Some(valkey) => Some(cost::cost(&valkey.by_socket(""))?),
    };
    let rows = systems.into_iter().filter_map(|mut system| {
        system.rows.sort_by(|a, b| a.mean_us.total_cmp(&b.mean_us));
        let middle = system.rows.len() / 2;
        system.rows.into_iter().nth(middle)
    });
    Ok((rows.collect(), cost))
}

/// The order is that of the table.
fn systems(
    directory: &Path,
    valkey: Option<&Valkey>,
    beside: Option<&Valkey>,
    memcached: Option<&Memcached>,
) -> Vec<System> {
    let mut systems = vec![];
    let mut add = |name, what| {
        systems.push(System {
            name,
            what,
            rows: vec![],
        });
    };
    let file = format!("file:{}", directory.display());
    add("ram:", What::Region(Home::Thread, "ram:".to_owned()));
    add("file:", What::Region(Home::Thread, file));
    if let Some(valkey) = valkey {
        let (socket, port) = (valkey.by_socket(""), valkey.by_port());
        let sealed = valkey.by_socket("compress=1&encrypt=1");
        let raw = |how| What::Raw(valkey.client(how));
        add("raw GET, TCP, plain client", raw(raw::How::PlainByPort));
        add("raw GET, socket, redis crate", raw(raw::How::Crate));
        // Beside what they are compared with.
        add(report::RAW, raw(raw::How::Plain));
        add(report::RAW_OWN, raw(raw::How::Store));
        add(report::VALKEY, What::Region(Home::Thread, socket.clone()));
        add(
            report::VALKEY_SIGNAL,
            What::Region(Home::Signal, socket.clone()),
        );
        add("valkey, socket, pagetide run", What::Run(socket.clone()));
        add(
            "valkey, socket, lz4 and encrypted",
            What::Region(Home::Thread, sealed),
        );
        add(
            "valkey, TCP, lz4 and encrypted",
            What::Region(Home::Thread, port),
        );
        add(report::SCAN, What::Scan(Home::Thread, socket.clone()));
        add(report::SCAN_SIGNAL, What::Scan(Home::Signal, socket));
    }
    if let Some(valkey) = beside {
        let uri = valkey.by_socket("");
        let raw = |how| What::Raw(valkey.client(how));
        add(report::SAME_CPU_RAW, raw(raw::How::Plain));
        add(report::SAME_CPU_OWN, raw(raw::How::Store));
        add(report::SAME_CPU, What::Region(Home::Thread, uri.clone()));
        add(
            report::SAME_CPU_SIGNAL,
            What::Region(Home::Signal, uri.clone()),
        );
        add(report::SAME_CPU_RUN, What::Run(uri));
    }
    if let Some(memcached) = memcached {
        add(
            "memcached, TCP, lz4 and encrypted",
            What::Region(Home::Thread, memcached.uri()),
        );
    }
    add("kernel swap, zram", What::Swap(PeerChoice::Zram));
    add(report::SWAP_FILE, What::Swap(PeerChoice::Swapfile));
    systems
}

fn once(plan: &Plan, what: &What, name: &str, directory: &Path, turn: u32) -> Result<Row> {
    let pages = plan.size / 4096;
    let task = Task {
        bytes: plan.size as usize,
        resident: plan.resident,
        pattern: Pattern::Random,
        writes: 0,
        threads: 1,
        accesses: plan.accesses,
        warmup: plan.accesses / 4,
        seed: 1 + u64::from(turn),
        compressibility: 0.5,
        home: Home::Plain,
        store: "ram:".to_owned(),
        policy: Policy::default(),
        cgroup: None,
        swap: None,
        graph: None,
    };
    let this = std::env::current_exe()?;
    let region = |task: Task| launch::findings_of(Command::new(&this).args(task.to_words()));
    let findings: Findings = match what {
        What::Raw(client) => {
            return client.measure(name, pages - plan.resident / 4096, plan.accesses);
        }
        What::Region(home, uri) => region(Task {
            home: *home,
            store: uri.clone(),
            ..task
        })?,
        What::Scan(home, uri) => {
            let findings = region(Task {
                home: *home,
                store: uri.clone(),
                pattern: Pattern::Sequential,
                // A whole pass before the one that is timed.
                warmup: pages,
                accesses: pages,
                ..task
            })?;
            let writebacks = Some(findings.store_writes);
            return Ok(Row {
                writebacks,
                ..row(name, &findings)
            });
        }
        What::Run(uri) => {
            let mut command = Command::new(find_command(plan.pagetide.as_deref())?);
            command
                .args(["run", "--quiet", "--resident", &plan.resident.to_string()])
                .args(["--store", uri, "--"])
                .arg(&this)
                .args(task.to_words());
            launch::findings_of(&mut command)?
        }
        What::Swap(peer) => {
            let before = undo::mark();
            let swap = KernelSwap::start(*peer, Some(directory), &task, plan.resident);
            // Random reads gain nothing from the kernel's read-ahead.
            let findings = swap.and_then(|swap| swap.run(&task, 0));
            let restored = undo::back_to(before);
            let findings = findings?;
            restored?;
            findings
        }
    };
    Ok(row(name, &findings))
}

fn row(name: &str, findings: &Findings) -> Row {
    Row {
        system: name.to_owned(),
        mean_us: findings.all.mean / 1000.0,
        p50_us: findings.all.p50 / 1000.0,
        p99_us: findings.all.p99 / 1000.0,
        pages_per_s: findings.all.count as f64 / findings.seconds,
        writebacks: None,
    }
}
