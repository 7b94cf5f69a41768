//! Threads of Pagetide's own.
use std::sync::Arc;
use std::thread::JoinHandle;

use pagetide_kernel::park::Exemption;
use pagetide_kernel::thread::{C_LIBRARY_SIGNALS, set_signal_mask};
use rustix::io::Errno;

use super::memory::TrackError;
use pagetide_pager::requests::Completion;

/// All but those that report the thread's own mistakes, and those that the C library waits for.
const BLOCKED: u64 = !(1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSEGV - 1) | C_LIBRARY_SIGNALS);

/// Starts a thread that runs no signal handler of the program's and is never parked, not even while
/// it starts: whoever parks threads waits for what this one does.
pub(crate) fn start(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, TrackError> {
    // Inherited, so that there is no moment without.
    let mask = set_signal_mask(BLOCKED);
    let ready = Completion::new();
    let told = Arc::clone(&ready);
    let started = std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            let _never_parked = Exemption::current_thread();
            told.finish(Ok(()));
            body();
        });
    set_signal_mask(mask);
    let thread = started.map_err(|_| TrackError::System("starting a thread", Errno::AGAIN))?;
    let _ = ready.wait();
    Ok(thread)
}
