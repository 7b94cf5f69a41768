//! Whatever is changed on the machine is put back: at the end, on an error, on a panic, and on
//! SIGINT, SIGTERM, SIGHUP or SIGQUIT. Only SIGKILL and a power cut leave something behind.
//!
//! A change and the note of how to undo it are made under one lock, which the undoing takes and
//! never gives back: a change cannot slip in behind it.
use std::io::Result;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

use rustix::process::{Pid, Signal, kill_process_group};

/// Undoing has begun: whatever fails from now on fails for that.
static BEGUN: AtomicBool = AtomicBool::new(false);

type Step = (String, Box<dyn FnOnce() -> Result<()> + Send>);

static STEPS: Mutex<Vec<Step>> = Mutex::new(Vec::new());
/// The process group being measured, 0 for none: it must go before what it stands on is taken away.
static GROUP: AtomicI32 = AtomicI32::new(0);

fn steps() -> MutexGuard<'static, Vec<Step>> {
    STEPS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// From now on panics and signals undo everything before they end the process.
pub fn arm() -> Result<()> {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        // The panicking thread may hold the lock only if a step panicked; then there is nothing
        // more to be done.
        if let Ok(steps) = STEPS.try_lock() {
            run(steps);
        }
    }));
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("signal {signal}: putting the machine back as it was");
            let steps = steps();
            std::process::exit(if run(steps) { 128 + signal } else { 1 });
        }
    });
    Ok(())
}

/// Makes a change with `change`; `undo` will put it back. When the change fails, what it may have
/// done in part is undone too, so `undo` must bear that nothing was done.
pub fn change<T>(
    what: &str,
    change: impl FnOnce() -> Result<T>,
    undo: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<T> {
    let mut steps = steps();
    steps.push((what.to_owned(), Box::new(undo)));
    change()
}

/// Puts everything back, latest change first. Says on stderr what could not be; false if anything
/// could not.
pub fn all() -> bool {
    run(steps())
}

/// Where the changes stand now, for [`back_to`].
pub fn mark() -> usize {
    steps().len()
}

/// Puts back what was changed since `mark`, latest change first, and lets the rest stand. The first
/// failure is returned; the others are tried nevertheless.
pub fn back_to(mark: usize) -> Result<()> {
    let mut steps = steps();
    let mut done = Ok(());
    while steps.len() > mark
        && let Some((what, undo)) = steps.pop()
    {
        let undone = undo().map_err(|error| {
            std::io::Error::new(error.kind(), format!("could not undo: {what}: {error}"))
        });
        done = done.and(undone);
    }
    done
}

/// Whether undoing has begun, so that nothing should be started any more.
pub fn has_begun() -> bool {
    BEGUN.load(SeqCst)
}

fn run(mut steps: MutexGuard<'static, Vec<Step>>) -> bool {
    BEGUN.store(true, SeqCst);
    let group = GROUP.swap(0, SeqCst);
    if let Some(pid) = Pid::from_raw(group).filter(|_| group > 0) {
        // It may have ended by itself.
        kill_process_group(pid, Signal::KILL).ok();
    }
    let mut complete = true;
    while let Some((what, undo)) = steps.pop() {
        if let Err(error) = undo() {
            eprintln!("could not undo: {what}: {error}");
            complete = false;
        }
    }
    complete
}

/// Starts a process in a group of its own, which is killed before anything is undone.
pub fn spawn(command: &mut std::process::Command) -> Result<std::process::Child> {
    use std::os::unix::process::CommandExt;
    let _no_undoing_meanwhile = steps();
    let child = command.process_group(0).spawn()?;
    GROUP.store(child.id() as i32, SeqCst);
    Ok(child)
}

/// The process started last has been waited for.
pub fn forget_process() {
    GROUP.store(0, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    static UNDONE: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn changes_are_undone_latest_first_and_failed_ones_too() {
        let undo = |expected| {
            move || {
                if UNDONE.fetch_add(1, SeqCst) == expected {
                    Ok(())
                } else {
                    Err(std::io::Error::other("order"))
                }
            }
        };
        change("first", || Ok(()), undo(2)).unwrap();
        let here = mark();
        change("for a while", || Ok(()), undo(0)).unwrap();
        back_to(here).unwrap();
        assert_eq!(UNDONE.load(SeqCst), 1, "what was there before stands");
        change(
            "second",
            || Err::<(), _>(std::io::Error::other("half done")),
            undo(1),
        )
        .unwrap_err();
        assert!(all());
        assert_eq!(UNDONE.load(SeqCst), 3);
        assert!(all(), "nothing is left to undo");
    }
}
