//! `pagetide run`: check everything that can be checked, start the program under the agent, wait
//! for it, and report.
mod becoming;
mod budget;
mod destination;
mod group_limit;
pub mod inherited;
mod left;
pub mod locked;
pub mod outcome;
pub mod remote;
pub mod spawn;
mod started;
mod store;
mod summary;
mod trace;
pub mod wait;
mod warnings;
mod watch;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;

use nix::sys::signal::{SigSet, Signal};
use pagetide_kernel::probe::Openings;
use pagetide_pager::protocol::environment::{self, Wishes};
use pagetide_pager::protocol::refusal;
use rustix::process::{Resource, getrlimit};

use crate::agent;
use crate::args::Run;
use crate::curve::{self, Need};
use crate::exit::{Exit, Failure};
use crate::plot;
use crate::plot::samples::Recorder;
use crate::program;
use crate::rundir::RunDir;
use budget::Budget;
use destination::Destination;
use group_limit::GroupLimit;
use inherited::Inherited;
use outcome::Outcome;
use wait::Ended;
use watch::Watch;

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
    let budget = Budget::of(options)?;
    store::check_file_limit(budget.is_shared)?;
    let store = store::open(&options.store, budget.memory_bytes)?;
    let (outputs, group) = (Outputs::open(options)?, warned_group(budget, options.quiet));
    let run_dir = RunDir::create(&options.bases)?;
    let exec = options.exec.then(|| run_dir.leave_open()).transpose()?;
    if budget.is_shared {
        run_dir.share_budget(budget.resident_bytes)?;
    }
    let wishes = Wishes {
        budget_bytes: budget.resident_bytes,
        memory_bytes: budget.memory_bytes,
        per_run: budget.is_shared,
        store,
        policy: options.policy,
        trace: outputs.trace.clone(),
        mappings_over_bytes: options.only_mappings_over.unwrap_or(0),
        automatic: budget.automatic,
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
    outputs.empty()?;
    let child = spawn::spawn(&file, command, &environment, inherited)?;
    let mut watch = Watch::new(options);
    let interval = watch.interval();
    let look = || say_each(&watch.look(run_dir.path()));
    let ended = wait::wait(child, &signals, interval, look).map_err(wait::failure)?;

    if let Some(caretaker) = caretaker {
        caretaker.end();
    }
    let outcome = Outcome::collect(run_dir.path());
    say_all(&outcome, ended, &group, budget, options.quiet);
    // What cannot be written now (a full disk) is said, but the exit code stays the program's.
    if let Err(failure) = outputs.write(&outcome, &watch.recorder, budget) {
        say(&failure.message);
    }
    if !options.quiet {
        say_each(&watch.warnings.at_end(&outcome.governed));
        say_summary(&outcome, options);
    }
    Ok(outcome.code(ended))
}

/// How much memory was needed, if that was measured, and how the run went.
fn say_summary(outcome: &Outcome, options: &Run) {
    if options.measure
        && let Some(need) = curve::run::describe_run(&outcome.governed)
    {
        say(need.trim_end());
    }
    if (io::stderr().is_terminal() || options.stats.is_some())
        && let Some(summary) = summary::line(&outcome.governed)
    {
        say(&summary);
    }
}

/// The limit of this process's memory cgroup; a warning is said, unless `quiet`, if it is less than
/// the budget.
fn warned_group(budget: Budget, quiet: bool) -> GroupLimit {
    let group = GroupLimit::of_this_process();
    let warning = group.warning(budget).filter(|_| !quiet);
    warning.iter().for_each(|message| say(message));
    group
}

/// What went otherwise than was asked for; warnings unless `quiet`.
fn say_all(outcome: &Outcome, ended: Ended, group: &GroupLimit, budget: Budget, quiet: bool) {
    let messages = outcome.messages(ended, !quiet);
    let governed = outcome.governed.iter().map(|p| &p.reading.statistics);
    let kills = match quiet {
        true => None,
        false => group.kills_since(budget, governed),
    };
    say_each(&messages);
    kills.iter().for_each(|message| say(message));
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

/// A line each.
fn say_each(messages: &[String]) {
    messages.iter().for_each(|message| say(message));
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
    /// Opens them. What is in the files stays there until [`Outputs::empty`]: the command may yet
    /// be refused.
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
        Ok(outputs)
    }

    /// Discards what was in the files. Before the program starts, which may write to them as well.
    fn empty(&self) -> Result<(), Failure> {
        let all = self.statistics.iter().chain(&self.picture);
        all.for_each(Destination::empty);
        self.trace.as_deref().map_or(Ok(()), trace::empty)
    }

    /// Writes each; the first failure.
    fn write(self, outcome: &Outcome, recorder: &Recorder, budget: Budget) -> Result<(), Failure> {
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
            let mut drawn = plot::svg::draw(command, budget.limit().1, samples, outcome.peak());
            let largest = curve::run::largest(&outcome.governed);
            let measured = largest.and_then(|process| process.reading.measured.as_ref());
            if let Some(need) = measured.and_then(Need::of) {
                drawn = plot::svg::stacked(drawn, plot::curve::draw(command, &need));
            }
            written = written.and(destination.write(|out| writeln!(out, "{drawn}")));
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
