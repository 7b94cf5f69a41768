//! The command line, declared once: parsing, help, man page and completions all come from here.
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::ArgPredicate;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCandidates;
use pagetide_pager::page::policy::Kind;

use crate::bases::Bases;
use crate::candidates::processes;
use crate::commands::pack::{self, Pack};
use crate::commands::serve::ServeCommand;
use crate::commands::snapshot::SnapshotCommand;
use crate::commands::store::StoreCommand;
use crate::exit::{self, Exit};
use crate::size::{Resident, Size};

/// The version, the commit it was built from where that is known, and what is built in.
const VERSION: &str = env!("PAGETIDE_VERSION");

/// Run unmodified programs in a fixed amount of memory.
#[derive(Debug, Parser)]
#[command(name = "pagetide", version = VERSION, max_term_width = 100, after_help = Exit::table())]
#[command(disable_help_subcommand = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program with at most SIZE bytes of its memory resident, the rest in a store
    #[command(
        long_about = RUN_ABOUT,
        after_help = Exit::table(),
        override_usage = "pagetide run [OPTIONS] [--] CMD [ARG]..."
    )]
    Run(Run),
    /// List the governed processes, and those that serve pages
    #[command(after_help = exit::OF_PROCESSES)]
    Ps {
        /// Print a JSON array of the governed processes' statistics, in bytes and nanoseconds
        #[arg(long)]
        json: bool,
        /// Only those that serve pages of other processes (`pagetide serve`)
        #[arg(long)]
        serving: bool,
        /// Where runs are
        #[command(flatten)]
        bases: Bases,
    },
    /// Show everything known of one process, or list those of a run
    #[command(after_help = exit::OF_PROCESSES)]
    Stat {
        /// Process ID, as `pagetide ps` lists it, or that of its `pagetide run`
        #[arg(value_parser = pid, add = ArgValueCandidates::new(processes))]
        pid: u32,
        /// Print a JSON object, in bytes and nanoseconds
        #[arg(long)]
        json: bool,
        /// Measure how much memory it needs, and print what is expected with less
        #[arg(long)]
        curve: bool,
        /// How long to measure, in seconds; not at all where `run --measure` does
        #[arg(
            long = "for",
            id = "measure_for",
            value_name = "SECONDS",
            default_value = "10",
            value_parser = seconds,
            requires = "curve"
        )]
        measure_for: Duration,
        /// Draw what is expected with less memory to FILE, as SVG, beside printing it
        #[arg(long, value_name = "FILE.svg", requires = "curve")]
        plot: Option<PathBuf>,
        /// Where runs are
        #[command(flatten)]
        bases: Bases,
    },
    /// Change the budget of a running process, or its --memory; returns when the new bound holds
    #[command(after_help = exit::OF_PROCESSES)]
    Limit {
        /// Process ID, as `pagetide ps` lists it, or that of its `pagetide run`
        #[arg(value_parser = pid, add = ArgValueCandidates::new(processes))]
        pid: u32,
        /// Most bytes resident, or in all under `run --memory`: 256M, 1.5G, or a share of the
        /// memory available to the process
        #[arg(allow_hyphen_values = true)]
        size: Size,
        /// Give up after so many seconds; the process goes on towards the new bound
        #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
        timeout: Duration,
        /// Where runs are
        #[command(flatten)]
        bases: Bases,
    },
    /// Watch the governed processes, and those that serve pages, full screen
    #[command(after_help = exit::OF_PROCESSES)]
    Top {
        /// Where runs are
        #[command(flatten)]
        bases: Bases,
    },
    /// Export the counters of all governed processes, and of those that serve pages, as OpenMetrics
    #[command(after_help = exit::OF_PROCESSES)]
    Metrics(Metrics),
    /// Examine this system: what works, what does not, and the line that mends it
    #[command(after_help = exit::OF_DOCTOR)]
    Doctor {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Look at snapshot files, check, compare and merge them
    #[command(subcommand, after_help = exit::OF_SNAPSHOTS)]
    Snapshot(SnapshotCommand),
    /// Look at the servers of remote stores, measure them, and clear up after dead runs
    #[command(subcommand, after_help = exit::OF_STORES)]
    Store(StoreCommand),
    /// Keep the pages of files in memory, from the moment anyone touches them
    #[command(long_about = LOCK_ABOUT, after_help = exit::OF_LOCK)]
    Lock(Lock),
    /// Show which pages of files are in memory and locked
    #[command(after_help = exit::OF_RESIDENCY)]
    Residency {
        /// Print a JSON object, sizes in bytes
        #[arg(long)]
        json: bool,
        /// Files, or directories with everything below them
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Show what a process has locked, by mapping
    #[command(after_help = exit::OF_LOCKS)]
    Locks {
        /// Process ID
        #[arg(value_parser = pid)]
        pid: u32,
        /// Print a JSON object, sizes in bytes
        #[arg(long)]
        json: bool,
    },
    /// Give other processes their pages: virtual machines that resume, processes that are restored
    #[command(subcommand, after_help = exit::OF_SERVE)]
    Serve(ServeCommand),
    /// Put the pages of a dump of CRIU's into a store, compressed, and each content once
    #[command(long_about = pack::ABOUT, after_help = exit::OF_PACK)]
    Pack(Pack),
    /// Measure Pagetide beside its peers: hands over to pagetide-bench
    #[command(disable_help_flag = true)]
    Bench {
        /// What pagetide-bench is to do; --help lists it
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Print a completion script
    Completions {
        /// The shell to complete in
        shell: Shell,
    },
    /// Print the man page, or write one for each command to a directory
    Man {
        /// Where pagetide.1, pagetide-run.1 and so on go
        directory: Option<PathBuf>,
    },
}

/// Reads a process ID.
fn pid(text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok();
    number
        .filter(|pid| (1..=i32::MAX as u32).contains(pid))
        .ok_or_else(|| {
            "expected a process ID, a number such as 4711; `pagetide ps` lists those of governed \
             processes"
                .to_owned()
        })
}

/// Reads a number of bytes, with a unit or without.
fn bytes(text: &str) -> Result<u64, String> {
    pagetide_store::parse_size(text).map_err(|error| error.to_string())
}

/// Reads a number of seconds, with a fraction or without.
fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| *time >= Duration::from_millis(1) && *time <= Duration::from_secs(86_400))
        .ok_or_else(|| {
            format!(
                "'{text}' is not a time; expected seconds such as 30 or 0.5, at most a day (86400)"
            )
        })
}

fn listening(text: &str) -> Result<std::net::SocketAddr, String> {
    (text.parse())
        .map_err(|_| "expected an IP address and a port: 127.0.0.1:9753, [::]:9753".into())
}

/// Options of `metrics`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("way").required(true).args(["listen", "textfile", "once"])))]
pub struct Metrics {
    /// Answer GET /metrics at this address, until the command is ended
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listening)]
    pub listen: Option<std::net::SocketAddr>,
    /// Write FILE.prom anew every --every seconds, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE.prom")]
    pub textfile: Option<PathBuf>,
    /// Print them once
    #[arg(long)]
    pub once: bool,
    /// How often the textfile is written, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    pub every: Duration,
    /// Tell processes apart by their IDs as well; by default those of one name in one run are added
    /// up
    #[arg(long)]
    pub pids: bool,
    /// Where runs are
    #[command(flatten)]
    pub bases: Bases,
}

const LOCK_ABOUT: &str = "\
Keep the pages of files in memory, from the moment anyone touches them.

On fault (the usual mode) nothing is read: a page is locked once some process has brought it into \
the page cache, looked for ten times a second. With --mode now everything is read and locked \
first. The locks end with the command. Files that are not yours, nor writable for you, are locked \
with --mode now only. What a file grows by, and files that come later, are not covered.

What --access reads ahead of those who touch the file: adaptive, parts that are touched densely \
or in order; sequential, 2 MiB and more after every touch; random and normal, nothing beyond what \
the toucher's own system calls read.";

/// Options of `lock`.
#[derive(Debug, Args)]
pub struct Lock {
    /// When pages are locked: as someone touches them, or all of them at once
    #[arg(long, value_enum, default_value = "on-fault")]
    pub mode: LockMode,
    /// What to read ahead of those who touch the files
    #[arg(long, value_enum, default_value = "adaptive")]
    pub access: LockAccess,
    /// This part of each file: OFFSET:LENGTH, such as 0:64M; the offset a multiple of 4096. Files
    /// below directories that end before it are passed over
    #[arg(long, value_name = "OFF:LEN", value_parser = crate::commands::lock::parts::parse_range)]
    pub range: Option<(u64, u64)>,
    /// Go on in the background once everything is set up, and print the process ID. Until it is
    /// ended: not together with --for
    #[arg(long, conflicts_with = "hold_for")]
    pub daemon: bool,
    /// End after this time: 30 (seconds), 500ms, 1.5s, 10m, 2h, 1d. Not together with --daemon
    #[arg(
        long = "for",
        id = "hold_for",
        value_name = "DURATION",
        value_parser = crate::commands::lock::parts::parse_duration
    )]
    pub hold_for: Option<Duration>,
    /// Internal: this is the background process
    #[arg(long, hide = true)]
    pub in_background: bool,
    /// Files, or directories with everything below them
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// When pages are locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LockMode {
    /// When they are touched
    OnFault,
    /// At once
    Now,
}

/// How files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LockAccess {
    /// As seen
    Adaptive,
    /// Single pages
    Random,
    /// In order
    Sequential,
    /// As the kernel sees fit
    Normal,
}

const RUN_ABOUT: &str = "\
Run a program with at most SIZE bytes of its memory resident, the rest in a store.

Governed is the anonymous private memory of the program and of every process it starts, which \
have this budget together; with --per-process each has it by itself. Not governed are stacks, file \
mappings, shared memory and Pagetide's own memory, nor programs among them that are statically \
linked or gain privilege.

The program keeps its standard descriptors, directory, terminal and signals; signals sent to \
pagetide go on to it. With --exec there is no pagetide beside it: it is the process that pagetide \
was, under the same ID.";

/// Options of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Most bytes resident: 256M, 1.5G, or a share of the memory available to this process; or
    /// auto:10%, the least with which the program loses no more than so much of its time
    #[arg(
        long,
        value_name = "SIZE|auto[:PERCENT]",
        default_value = "75%",
        default_value_if("memory", ArgPredicate::IsPresent, "100%"),
        allow_hyphen_values = true
    )]
    pub resident: Resident,
    /// Most bytes of memory in all, for each process: what is resident, what the store holds in
    /// memory, and stacks, tables and the like. What of it is resident follows from how well the
    /// rest compresses; --resident, if given, bounds that part
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<Size>,
    /// With --resident auto: never less than this; 16M if not said
    #[arg(long, value_name = "SIZE")]
    pub floor: Option<Size>,
    /// With --resident auto: never more than this; 75% if not said
    #[arg(long, value_name = "SIZE")]
    pub ceiling: Option<Size>,
    /// SIZE is for each process of the run by itself, and not for all together. So it always is
    /// with --memory, --resident auto, --measure and --trace
    #[arg(long, overrides_with = "per_run")]
    pub per_process: bool,
    /// SIZE is for all processes of the run together, as it is by default: who gains most by memory
    /// gets it. A process's PAGETIDE_WEIGHT (1 to 10000, 100 if not set) makes what it gains count
    /// for more
    #[arg(long, overrides_with = "per_process", conflicts_with_all = ["trace", "measure"])]
    pub per_run: bool,
    /// Where pages go that are not resident: ram:, file:PATH, valkey://HOST, valkey+unix:///SOCKET,
    /// memcached://HOST,HOST ... (docs/stores.md)
    #[arg(long, value_name = "URI", default_value = "ram:")]
    pub store: String,
    /// At exit, write one JSON object a process to FILE, or to stdout for -
    #[arg(long, value_name = "FILE|-")]
    pub stats: Option<PathBuf>,
    /// Govern only mappings larger than SIZE, such as a virtual machine's memory; the rest stays as
    /// it is
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub only_mappings_over: Option<u64>,
    /// Instead of a budget: the program's memory never goes to swap. on-fault locks it as it is
    /// touched, now all of it, reservations and stacks included
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        conflicts_with_all = [
            "resident", "store", "stats", "plot", "trace", "policy", "only_mappings_over",
            "per_run", "per_process", "measure", "floor", "ceiling", "memory"
        ]
    )]
    pub lock: Option<LockMode>,
    /// Where the run is kept
    #[command(flatten)]
    pub bases: Bases,
    /// Say nothing on stderr except errors. Else a line tells at the end how it went, where stderr
    /// is a terminal, and with --stats
    #[arg(long, short)]
    pub quiet: bool,
    /// Become the program instead of waiting for it: for service managers, which then see the
    /// program's own process ID. Nothing is written at its end: not with --stats, --plot, --trace
    /// or --measure
    #[arg(long)]
    pub exec: bool,
    /// At exit, draw resident memory against the budget and the fault rate over time to FILE, as
    /// SVG; with --measure also what is expected with less memory
    #[arg(long, value_name = "FILE.svg|-")]
    pub plot: Option<PathBuf>,
    /// Measure how much memory each process needs, with room for all of it, and say at exit what is
    /// expected with less, and a SIZE for the run
    #[arg(long)]
    pub measure: bool,
    /// Record the faults of the program, not of processes it starts, to FILE for `pagetide bench
    /// policy`; at most 16 Mi of them
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Which pages go first: s3fifo (pages that come back soon are kept longer), fifo, or accessed
    /// (those not used of late; Linux 7.3)
    #[arg(long, value_name = "POLICY", default_value = Kind::default().name())]
    pub policy: Kind,
    /// The program and its arguments; after -- its name may begin with a dash
    // Hyphens are not allowed in its first word: a mistyped option would be taken for the program.
    #[arg(
        trailing_var_arg = true,
        required = true,
        value_name = "CMD",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

impl Run {
    /// Whether the budget is for all processes of the run together: unless that is not wished, or
    /// something is that is of each process by itself.
    pub fn is_shared(&self) -> bool {
        let of_each = self.per_process
            || self.memory.is_some()
            || self.measure
            || self.trace.is_some()
            || matches!(self.resident, Resident::Automatic { .. });
        self.per_run || !of_each
    }
}
