//! `pagetide run`: check everything that can be checked, start the program under the agent, wait
//! for it, and report.
mod destination;
pub mod inherited;
pub mod locked;
pub mod outcome;
pub mod remote;
pub mod spawn;
mod started;
mod store;
mod trace;
pub mod wait;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use nix::sys::signal::{SigSet, Signal};
use pagetide_kernel::probe::Openings;

use crate::agent;
use crate::args::Run;
use crate::exit::{Exit, Failure};
use crate::memory;
use crate::plot;
use crate::plot::samples::{INTERVAL, Recorder};
use crate::program;
use crate::rundir::RunDir;
use destination::Destination;
use inherited::Inherited;
use outcome::Outcome;

/// Runs the program and returns the code to exit with.
pub fn run(options: &Run, inherited: &Inherited) -> Result<u8, Failure> {
    // A write beyond the limit on file sizes is to fail, and be told. The program gets its mask as
    // it was.
    let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
    let path = std::env::var_os("PATH");
    let file = program::find::find(&options.command[0], path.as_deref())?;
    program::check(&file)?;
    if let Some(mode) = options.lock {
        return locked::run(mode, &file, options, inherited);
    }
    let openings = Openings::probe();
    if !openings.serve_kernel_mode() {
        return Err(Failure::new(
            Exit::CannotPage,
            crate::fix::no_userfaultfd(&openings),
        ));
    }
    let agent = agent::find()?;
    store::check_file_limit()?;
    let store = store::open(&options.store)?;
    let budget_bytes = options.resident.resolve(memory::available_to("self"));
    let statistics = options
        .stats
        .as_deref()
        .map(|path| Destination::open("--stats", path))
        .transpose()?;
    let picture = options
        .plot
        .as_deref()
        .map(|path| Destination::open("--plot", path))
        .transpose()?;
    let trace = options.trace.as_deref().map(trace::prepare).transpose()?;
    destination::check_apart(&[
        ("--stats", options.stats.as_deref()),
        ("--plot", options.plot.as_deref()),
        ("--trace", options.trace.as_deref()),
    ])?;
    statistics
        .iter()
        .chain(&picture)
        .for_each(Destination::empty);
    let run_dir = RunDir::create()?;

    let mut environment = environment(&agent, budget_bytes, &store, run_dir.path()).to_vec();
    environment.push(("PAGETIDE_POLICY", options.policy.name().into()));
    environment.push(("PAGETIDE_QUIET", u8::from(options.quiet).to_string().into()));
    // Empty rather than absent: an outer `pagetide run` may have set it.
    environment.push((
        "PAGETIDE_TRACE",
        trace.clone().unwrap_or_default().into_os_string(),
    ));
    environment.push((
        "PAGETIDE_MAPPINGS_OVER",
        options.only_mappings_over.unwrap_or(0).to_string().into(),
    ));
    let signals = spawn::take_over_signals(inherited).map_err(|error| cannot_wait(&error))?;
    let caretaker = remote::Caretaker::begin(&store);
    let child = spawn::spawn(&file, &options.command, &environment, inherited)?;
    let mut recorder = Recorder::default();
    let interval = picture.as_ref().map(|_| INTERVAL);
    let ended = wait::wait(child, &signals, interval, || {
        recorder.sample(run_dir.path())
    })
    .map_err(|error| cannot_wait(&error))?;

    if let Some(caretaker) = caretaker {
        caretaker.end();
    }
    let outcome = Outcome::collect(run_dir.path());
    let mut stderr = io::stderr();
    for message in outcome.messages(ended, !options.quiet) {
        let _ = writeln!(stderr, "pagetide: {message}");
    }
    // What cannot be written now (a full disk) is said, but the exit code stays the program's.
    let mut written = Ok(());
    if let Some(destination) = statistics {
        written = destination.write(|out| outcome.write_statistics(out));
    }
    if let Some(destination) = picture {
        // Nobody sampled a program that was shorter than an interval.
        let command = match recorder.command() {
            "" => outcome.command(),
            sampled => sampled,
        };
        let drawn = plot::svg::draw(command, budget_bytes, recorder.samples());
        written = written.and(destination.write(|out| out.write_all(drawn.as_bytes())));
    }
    if let Some(path) = trace {
        match trace::finish(&path) {
            Ok(0) => {}
            Ok(lost) => drop(writeln!(
                stderr,
                "pagetide: the trace was full; {lost} faults are not in it"
            )),
            Err(failure) => written = written.and(Err(failure)),
        }
    }
    if let Err(failure) = written {
        let _ = writeln!(stderr, "pagetide: {}", failure.message);
    }
    if !options.quiet
        && stderr.is_terminal()
        && let Some(summary) = outcome.summary()
    {
        let _ = writeln!(stderr, "pagetide: {summary}");
    }
    Ok(outcome.code(ended))
}

fn cannot_wait(error: &nix::Error) -> Failure {
    Failure::new(
        Exit::CannotPage,
        format!("the launcher cannot take over signals or wait ({error})"),
    )
}

/// The contract between launcher and agent.
fn environment(
    agent: &Path,
    budget_bytes: u64,
    store: &str,
    run_dir: &Path,
) -> [(&'static str, OsString); 5] {
    [
        (
            "LD_PRELOAD",
            agent::preload_list(agent, std::env::var_os("LD_PRELOAD")),
        ),
        ("PAGETIDE_PRELOAD", agent.into()),
        ("PAGETIDE_BUDGET", budget_bytes.to_string().into()),
        ("PAGETIDE_STORE", store.into()),
        ("PAGETIDE_RUN_DIR", run_dir.into()),
    ]
}
