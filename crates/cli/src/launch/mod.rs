//! `pagetide run`: check everything that can be checked, start the program under the agent, wait
//! for it, and report.
mod becoming;
mod destination;
mod group_limit;
pub mod inherited;
pub mod locked;
pub mod outcome;
pub mod remote;
pub mod spawn;
mod started;
mod store;
mod summary;
mod trace;
pub mod wait;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;

use nix::sys::signal::{SigSet, Signal};
use pagetide_kernel::probe::Openings;
use pagetide_kernel::procfs::memory::available_to;
use pagetide_pager::evict::adapting::Automatic;
use pagetide_pager::protocol::environment::{self, Wishes};
use pagetide_pager::protocol::refusal;
use rustix::process::{Resource, getrlimit};

use crate::agent;
use crate::args::Run;
use crate::curve;
use crate::exit::{Exit, Failure};
use crate::plot;
use crate::plot::samples::{INTERVAL, Recorder};
use crate::program;
use crate::rundir::RunDir;
use crate::size::{Bytes, PAGE_BYTES, Resident, Size};
use destination::Destination;
use group_limit::GroupLimit;
use inherited::Inherited;
use outcome::Outcome;
use wait::Ended;

/// Runs the program and returns the code to exit with; with `--exec`, becomes it and does not
/// return.
pub fn run(options: &Run, inherited: &Inherited) -> Result<u8, Failure> {
    // A write beyond the limit on file sizes is to fail, and be told. The program gets its mask as
    // it was.
    let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
    let path = std::env::var_os("PATH");
    let file = program::find::find(&options.command[0], path.as_deref())?;
    check_descriptors()?;
    becoming::check(options)?;
    environment::weight().map_err(|text| Failure::new(Exit::Usage, text))?;
    program::check(&file)?;
    if let Some(mode) = options.lock {
        return locked::run(mode, &file, options, inherited);
    }
    let openings = Openings::probe();
    if !openings.serve_kernel_mode() {
        let message = crate::fix::no_userfaultfd(&openings);
        return Err(Failure::new(Exit::CannotPage, message));
    }
    let agent = agent::find()?;
    store::check_file_limit()?;
    let store = store::open(&options.store)?;
    let (budget_bytes, automatic) = budget(options)?;
    let outputs = Outputs::open(options)?;
    let group = warned_group(budget_bytes, options.quiet);
    let run_dir = RunDir::create(&options.bases)?;
    let exec = match options.exec {
        true => Some(run_dir.leave_open()?),
        false => None,
    };
    if options.per_run {
        run_dir.share_budget(budget_bytes)?;
    }
    let wishes = Wishes {
        budget_bytes,
        per_run: options.per_run,
        store,
        policy: options.policy,
        trace: outputs.trace.clone(),
        mappings_over_bytes: options.only_mappings_over.unwrap_or(0),
        automatic,
        measure: options.measure,
        run_dir: run_dir.path().to_owned(),
        quiet: options.quiet,
        exec,
        agent,
    };
    let environment = agent::preloaded(&wishes.agent, wishes.variables());
    let command = &options.command;
    if options.exec {
        return Err(spawn::exec(&file, command, &environment, inherited));
    }

    let signals = spawn::take_over_signals(inherited).map_err(wait::failure)?;
    let caretaker = remote::Caretaker::begin(&wishes.store);
    let child = spawn::spawn(&file, command, &environment, inherited)?;
    let mut recorder = Recorder::default();
    let interval = outputs.picture.as_ref().map(|_| INTERVAL);
    let sample = || recorder.sample(run_dir.path());
    let ended = wait::wait(child, &signals, interval, sample).map_err(wait::failure)?;

    if let Some(caretaker) = caretaker {
        caretaker.end();
    }
    let outcome = Outcome::collect(run_dir.path());
    say_all(&outcome, ended, &group, budget_bytes, options.quiet);
    // What cannot be written now (a full disk) is said, but the exit code stays the program's.
    if let Err(failure) = outputs.write(&outcome, &recorder, budget_bytes) {
        say(&failure.message);
    }
    if !options.quiet {
        say_summary(&outcome, options.measure);
    }
    Ok(outcome.code(ended))
}

/// The budget in bytes, and whether it follows the program.
fn budget(options: &Run) -> Result<(u64, Option<Automatic>), Failure> {
    const FLOOR: Size = Size::Bytes(16 << 20);
    const CEILING: Size = Size::Share {
        millionths: 750_000,
    };
    let usage = |text: String| Err(Failure::new(Exit::Usage, text));
    let available = available_to("self");
    let slowdown = match options.resident {
        Resident::Fixed(_) if options.floor.or(options.ceiling).is_some() => {
            return usage(
                "--floor and --ceiling bound a budget that follows the program; expected \
                 --resident auto with them, or neither"
                    .to_owned(),
            );
        }
        Resident::Fixed(size) => return Ok((size.resolve(available), None)),
        Resident::Automatic { slowdown } => slowdown,
    };
    let floor = options.floor.unwrap_or(FLOOR).resolve(available);
    let ceiling = options.ceiling.unwrap_or(CEILING).resolve(available);
    if options.per_run {
        return usage(
            "--resident auto: with --per-run the budget is the run's; expected a size".to_owned(),
        );
    }
    if floor > ceiling {
        return usage(format!(
            "--resident auto: the floor of {} is more than the ceiling of {}; expected less",
            Bytes(floor),
            Bytes(ceiling)
        ));
    }
    let automatic = Automatic {
        slowdown,
        floor_pages: floor / PAGE_BYTES,
    };
    Ok((ceiling, Some(automatic)))
}

/// How much memory was needed, if that was measured, and how the run went.
fn say_summary(outcome: &Outcome, measured: bool) {
    if measured {
        say_need(outcome);
    }
    if io::stderr().is_terminal()
        && let Some(summary) = summary::line(&outcome.governed)
    {
        say(&summary);
    }
}

/// How much memory the run's largest process needs.
fn say_need(outcome: &Outcome) {
    let Some(process) = curve::largest(&outcome.governed) else {
        return;
    };
    let others = match outcome.governed.len() {
        1 => String::new(),
        several => format!("the largest of {several}: "),
    };
    let text = curve::describe(process);
    say(&format!("{others}{}", text.trim_end()));
}

/// The limit of this process's memory cgroup; a warning is said, unless `quiet`, if it is less than
/// the budget.
fn warned_group(budget_bytes: u64, quiet: bool) -> GroupLimit {
    let group = GroupLimit::of_this_process();
    let warning = group.warning(budget_bytes).filter(|_| !quiet);
    warning.iter().for_each(|message| say(message));
    group
}

/// What went otherwise than was asked for; warnings unless `quiet`.
fn say_all(outcome: &Outcome, ended: Ended, group: &GroupLimit, budget_bytes: u64, quiet: bool) {
    let messages = outcome.messages(ended, !quiet);
    let governed = outcome.governed.iter().map(|p| &p.reading.statistics);
    let kills = match quiet {
        true => None,
        false => group.kills_since(budget_bytes, governed),
    };
    messages
        .iter()
        .chain(&kills)
        .for_each(|message| say(message));
}

/// With fewer than these, launching itself fails somewhere; what a store needs is seen later.
fn check_descriptors() -> Result<(), Failure> {
    const LEAST: u64 = 12;
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < LEAST => {
            let text = refusal::too_few_descriptors(most);
            Err(Failure::new(Exit::CannotPage, text))
        }
        _ => Ok(()),
    }
}

/// On stderr; a closed one leaves nobody to tell.
fn say(message: &str) {
    let _ = writeln!(io::stderr(), "pagetide: {message}");
}

/// What is written after the run.
struct Outputs {
    statistics: Option<Destination>,
    picture: Option<Destination>,
    trace: Option<PathBuf>,
}

impl Outputs {
    /// Opens them, and empties them when all could be opened.
    fn open(options: &Run) -> Result<Outputs, Failure> {
        let (stats, plot) = (options.stats.as_deref(), options.plot.as_deref());
        let trace = options.trace.as_deref();
        let outputs = Outputs {
            statistics: stats
                .map(|path| Destination::open("--stats", path))
                .transpose()?,
            picture: plot
                .map(|path| Destination::open("--plot", path))
                .transpose()?,
            trace: trace.map(trace::prepare).transpose()?,
        };
        destination::check_apart(&[("--stats", stats), ("--plot", plot), ("--trace", trace)])?;
        let all = outputs.statistics.iter().chain(&outputs.picture);
        all.for_each(Destination::empty);
        Ok(outputs)
    }

    /// Writes each; the first failure.
    fn write(
        self,
        outcome: &Outcome,
        recorder: &Recorder,
        budget_bytes: u64,
    ) -> Result<(), Failure> {
        let mut written = Ok(());
        if let Some(destination) = self.statistics {
            written = destination.write(|out| outcome.write_statistics(out));
        }
        if let Some(destination) = self.picture {
            // Nobody sampled a program that was shorter than an interval.
            let command = match recorder.command() {
                "" => outcome.command(),
                sampled => sampled,
            };
            let samples = recorder.samples();
            let drawn = plot::svg::draw(command, budget_bytes, samples, outcome.peak());
            written = written.and(destination.write(|out| out.write_all(drawn.as_bytes())));
        }
        if let Some(path) = self.trace {
            match trace::finish(&path) {
                Ok(0) => {}
                Ok(lost) => say(&format!("the trace was full; {lost} faults are not in it")),
                Err(failure) => written = written.and(Err(failure)),
            }
        }
        written
    }
}
