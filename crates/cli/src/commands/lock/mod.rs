//! `pagetide lock`: keeps the pages of files in memory from the moment anyone touches them.
pub mod files;
mod kept;
pub mod parts;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::background;
use crate::args::{Lock, LockMode};
use crate::exit::{Exit, Failure};
use crate::launch::inherited::Inherited;
use crate::size::Bytes;
use kept::Kept;

/// Between looks for pages that someone has touched.
const TICK: Duration = Duration::from_millis(100);
/// Between figures on a terminal.
const SHOW: Duration = Duration::from_millis(500);

/// Locks the files, and holds on until told to end.
pub fn lock(options: &Lock, inherited: &Inherited) -> Result<u8, Failure> {
    if options.daemon && !options.in_background {
        return start_in_background();
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
    let (mut kept, shorter) = kept::all(options, &files)?;
    if shorter > 0 {
        // A closed stderr leaves nobody to tell.
        let _ = writeln!(
            io::stderr(),
            "{shorter} of {} files end before the range and are passed over",
            files.len()
        );
    }
    let bytes: u64 = kept.iter().map(Kept::bytes).sum();
    announce(options, kept.len(), bytes)?;
    hold(options, &mut kept, &end)?;
    Ok(Exit::Ok.code())
}

fn start_in_background() -> Result<u8, Failure> {
    match background::start(&["lock"])? {
        Ok(started) => {
            let printed = super::print(&started.line);
            printed.inspect_err(|_| started.end())?;
            Ok(Exit::Ok.code())
        }
        Err(code) => Ok(code),
    }
}

/// Files share one limit; each has a descriptor.
fn raise_limits() {
    crate::launch::locked::raise_limit();
    super::raise_descriptor_limit();
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

fn hold(options: &Lock, kept: &mut [Kept], end: &AtomicBool) -> Result<(), Failure> {
    let deadline = options.hold_for.map(|time| Instant::now() + time);
    let is_over = || {
        end.load(Ordering::Relaxed) || deadline.is_some_and(|deadline| Instant::now() >= deadline)
    };
    let terminal = io::stderr().is_terminal() && !options.in_background;
    let mut shown: Option<(u64, Instant)> = None;
    while !is_over() {
        for file in kept.iter_mut() {
            // A look at very many files, or at one that is very large, takes its time.
            if is_over() {
                break;
            }
            file.step().map_err(|error| {
                Failure::new(Exit::Store, format!("keeping what is touched: {error}"))
            })?;
        }
        let locked: u64 = kept.iter().map(Kept::locked_bytes).sum();
        let news = shown.is_none_or(|(before, when)| before != locked && when.elapsed() > SHOW);
        if terminal && news {
            shown = Some((locked, Instant::now()));
            // A closed terminal leaves nobody to tell.
            let _ = write!(io::stderr(), "\r{} locked   ", Bytes(locked));
        }
        // Interrupted by the signals that end it.
        let left = deadline.map_or(TICK, |deadline| {
            deadline.saturating_duration_since(Instant::now()).min(TICK)
        });
        std::thread::sleep(left);
    }
    if terminal {
        let _ = writeln!(io::stderr());
    }
    Ok(())
}
