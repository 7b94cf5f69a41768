//! `pagetide lock`: keeps the pages of files in memory from the moment anyone touches them.
mod background;
pub mod files;
pub mod parts;

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::Signal;
use pagetide::lock::{Access, Keeper, LockError, LockedFile};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::args::{Lock, LockAccess, LockMode};
use crate::exit::{Exit, Failure};
use crate::launch::inherited::Inherited;
use crate::size::{Bytes, Count};

/// Between looks for pages that someone has touched.
const TICK: Duration = Duration::from_millis(100);

/// Locks the files, and holds on until told to end.
pub fn lock(options: &Lock, inherited: &Inherited) -> Result<u8, Failure> {
    if options.daemon && !options.in_background {
        return background::start();
    }
    if options.in_background {
        // A terminal that closes does not end it.
        let _ = rustix::process::setsid();
    }
    let end = Arc::new(AtomicBool::new(false));
    // What whoever started it had ignored stays so: `nohup`, or `&` in a script.
    let heard = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    for signal in heard.into_iter().filter(|s| !inherited.ignores(*s)) {
        signal_hook::flag::register(signal as i32, Arc::clone(&end))
            .map_err(|error| Failure::new(Exit::Failed, format!("signals: {error}")))?;
    }
    raise_limits();
    let files = files::expand(&options.files)?;
    let (mut keepers, shorter) = map(options, &files)?;
    if shorter > 0 {
        // A closed stderr leaves nobody to tell.
        let _ = writeln!(
            io::stderr(),
            "{shorter} of {} files end before the range and are passed over",
            files.len()
        );
    }
    let bytes: u64 = keepers
        .iter()
        .map(|keeper| keeper.file().len() as u64)
        .sum();
    announce(options, keepers.len(), bytes)?;
    hold(options, &mut keepers, &end)?;
    Ok(Exit::Ok.code())
}

/// Maps the files, and returns how many of those below directories end before the range.
fn map(options: &Lock, files: &[files::Listed]) -> Result<(Vec<Keeper>, usize), Failure> {
    let access = match options.access {
        LockAccess::Adaptive => Access::Adaptive,
        LockAccess::Random => Access::Random,
        LockAccess::Sequential => Access::Sequential,
        LockAccess::Normal => Access::Normal,
    };
    // Each read of the keeper's own is of pages that are in memory already.
    let mut builder = LockedFile::builder().access(Access::Random);
    if let Some((offset, len)) = options.range {
        builder = builder.range(offset, len);
    }
    let mut keepers = Vec::with_capacity(files.len());
    let mut shorter = 0;
    for files::Listed { path, named } in files {
        let open = File::open(path).map_err(|error| failure(path, "cannot be opened", &error))?;
        let size = open.metadata().map_or(0, |meta| meta.len());
        if !named && options.range.is_some_and(|(offset, _)| offset >= size) {
            shorter += 1;
            continue;
        }
        let file = builder
            .map(open)
            .map_err(|error| failure(path, "cannot be locked", &error))?;
        keepers.push((path, file));
    }
    if let (Some((offset, _)), []) = (options.range, &keepers[..]) {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "--range: it begins at {offset} bytes, and all {shorter} files end before; expected at least one that is longer"
            ),
        ));
    }
    if options.mode == LockMode::Now {
        fill(&mut keepers)?;
    }
    let keep = |(_, file)| Keeper::new(file, access);
    Ok((keepers.into_iter().map(keep).collect(), shorter))
}

fn fill(files: &mut [(&PathBuf, LockedFile)]) -> Result<(), Failure> {
    let total: u64 = files.iter().map(|(_, file)| file.len() as u64).sum();
    let bar = if io::stderr().is_terminal() {
        ProgressBar::new(total)
    } else {
        ProgressBar::hidden()
    };
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} {wide_msg}",
    ) {
        bar.set_style(style);
    }
    let mut before = 0;
    for (path, file) in files {
        bar.set_message(path.display().to_string());
        file.fill(|done| bar.set_position(before + done))
            .map_err(|error| failure(path, "cannot be read and locked", &error))?;
        before += file.len() as u64;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Files share one limit; each has a descriptor.
fn raise_limits() {
    crate::launch::locked::raise_limit();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

fn failure(path: &Path, what: &str, error: &io::Error) -> Failure {
    let locking = error
        .get_ref()
        .is_some_and(|inner| inner.downcast_ref::<LockError>().is_some());
    let exit = match error.kind() {
        _ if locking => Exit::CannotPage,
        io::ErrorKind::InvalidInput => Exit::Usage,
        _ => Exit::Store,
    };
    Failure::new(exit, format!("{}: {what}: {error}", path.display()))
}

fn announce(options: &Lock, files: usize, bytes: u64) -> Result<(), Failure> {
    let how = match options.mode {
        LockMode::OnFault => "locked on fault",
        LockMode::Now => "locked",
    };
    let many = if files == 1 { "file" } else { "files" };
    let line = format!("{files} {many}, {} {how}", Bytes(bytes));
    if options.in_background {
        return background::ready(&line);
    }
    let until = match options.hold_for {
        Some(time) => format!("for {} s", time.as_secs_f64()),
        None => "until interrupted".to_owned(),
    };
    super::print(&format!("{line} {until}\n"))
}

fn hold(options: &Lock, keepers: &mut [Keeper], end: &AtomicBool) -> Result<(), Failure> {
    let deadline = options.hold_for.map(|time| Instant::now() + time);
    let terminal = io::stderr().is_terminal() && !options.in_background;
    let mut shown = Instant::now();
    let mut result = Ok(());
    while !end.load(Ordering::Relaxed) && deadline.is_none_or(|deadline| Instant::now() < deadline)
    {
        let mut looked = false;
        for keeper in keepers.iter_mut() {
            looked |= keeper.step().map_err(|error| {
                Failure::new(Exit::Store, format!("keeping what is touched: {error}"))
            })?;
        }
        if terminal && looked && shown.elapsed() > Duration::from_millis(500) {
            shown = Instant::now();
            let locked: u64 = keepers.iter().map(Keeper::locked_bytes).sum();
            result = write!(
                io::stderr(),
                "\r{} locked ({} pages)   ",
                Bytes(locked),
                Count((locked / 4096) as f64)
            );
        }
        // Interrupted by the signals that end it.
        let left = deadline.map_or(TICK, |deadline| {
            deadline.saturating_duration_since(Instant::now()).min(TICK)
        });
        std::thread::sleep(left);
    }
    if terminal {
        result = result.and(writeln!(io::stderr()));
    }
    // A closed terminal leaves nobody to tell.
    drop(result);
    Ok(())
}
