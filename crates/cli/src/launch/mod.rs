//! `pagetide run`: check everything that can be checked, start the program under the agent, wait for it, and report.
pub mod inherited;
pub mod locked;
pub mod outcome;
pub mod remote;
pub mod spawn;
mod trace;
pub mod wait;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use pagetide_kernel::probe::Openings;

use crate::agent;
use crate::args::Run;
use crate::exit::{Exit, Failure};
use crate::memory;
use crate::plot;
use crate::plot::samples::{INTERVAL, Recorder};
use crate::program;
use crate::rundir::RunDir;
use inherited::Inherited;
use outcome::Outcome;

/// Runs the program and returns the code to exit with.
pub fn run(options: &Run, inherited: &Inherited) -> Result<u8, Failure> {
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
    let store = open_store(&options.store)?;
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
        let drawn = plot::svg::draw(recorder.command(), recorder.samples());
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

/// Opens the store once, so that a wrong URI is told before the program starts. Returns the URI with a relative path made
/// absolute: the program's processes may change their directory.
fn open_store(uri: &str) -> Result<String, Failure> {
    let uri = match uri.strip_prefix("file:") {
        Some(path) if !path.is_empty() && !path.starts_with(['/', '?']) => {
            let here = std::env::current_dir().unwrap_or_default();
            format!("file:{}/{path}", here.display())
        }
        _ => uri.to_owned(),
    };
    let refused = |error| {
        let shown = pagetide_store::redact(&uri);
        Failure::new(
            Exit::Store,
            format!("--store {shown}: cannot be opened: {error}"),
        )
    };
    // Names are looked up here, once: the program's processes must not.
    let uri = pagetide_store::resolve(&uri).map_err(refused)?;
    // Tried as a store that is not kept: keeping is for the processes that put pages in it.
    let trial = uri.replace("keep=1", "keep=0");
    match pagetide_store::open(&trial) {
        Ok(store) => {
            drop(store);
            Ok(uri)
        }
        Err(error) => Err(refused(error)),
    }
}

/// Where an option's output goes; opened before the program starts, so that a wrong path is told then.
struct Destination {
    option: &'static str,
    path: PathBuf,
    /// None for stdout.
    file: Option<File>,
}

impl Destination {
    fn open(option: &'static str, path: &Path) -> Result<Destination, Failure> {
        let mut destination = Destination {
            option,
            path: path.to_owned(),
            file: None,
        };
        if path != Path::new("-") {
            destination.file =
                Some(File::create(path).map_err(|error| destination.failure(&error))?);
        }
        Ok(destination)
    }

    fn write(self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        let result = match &self.file {
            None => fill(&mut io::stdout().lock()),
            Some(file) => {
                let mut out = BufWriter::new(file);
                fill(&mut out).and_then(|()| out.flush())
            }
        };
        result.map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let (option, path) = (self.option, self.path.display());
        let message = format!(
            "{option} {path}: cannot be written ({error}); expected a file you may write, or - for stdout"
        );
        Failure::new(Exit::Usage, message)
    }
}
