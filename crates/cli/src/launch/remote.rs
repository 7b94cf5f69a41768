//! What a run with a remote store needs outside the program: clearing up before and after, and
//! leases kept alive.
//!
//! A program's own agent cannot do it: it may be killed, and an idle one does nothing at all.
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pagetide_store::{Clear, Remote, is_remote};

/// How often the keys of processes that have ended are looked for while the run goes on: a compile
/// job has thousands of them.
const CLEAR_EVERY: Duration = Duration::from_secs(5);

/// Looks after the store of a run.
pub struct Caretaker {
    uri: String,
    renewing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Caretaker {
    /// Clears up after dead runs of this machine and keeps the leases of the living from running
    /// out; `None` for stores that are kept on this machine.
    pub fn begin(uri: &str) -> Option<Caretaker> {
        if !is_remote(uri) {
            return None;
        }
        let mut caretaker = Caretaker {
            uri: uri.to_owned(),
            renewing: None,
        };
        if let Ok(remote) = Remote::open(uri) {
            // What cannot be removed now the next run removes; this one does not depend on it.
            if remote.clears_at_start() {
                let _ = remote.clear(Clear::Known);
            }
            let (stop, stopped) = channel();
            let uri = uri.to_owned();
            let thread = std::thread::Builder::new()
                .name("caretaker".into())
                .spawn(move || look_after(&uri, remote.renewal(), &stopped));
            caretaker.renewing = thread.ok().map(|thread| (stop, thread));
        }
        Some(caretaker)
    }

    /// Removes what the run has left, except what processes that outlive it still use.
    pub fn end(mut self) {
        if let Some((stop, thread)) = self.renewing.take() {
            drop(stop);
            let _ = thread.join();
        }
        let _ = Remote::open(&self.uri).and_then(|remote| remote.clear(Clear::Known));
    }
}

/// Until it is told to stop: removes the keys of processes that have ended, and renews the leases
/// of those that have not.
fn look_after(uri: &str, renewal: Duration, stopped: &Receiver<()>) {
    let mut renewed = Instant::now();
    while stopped.recv_timeout(CLEAR_EVERY.min(renewal)) == Err(RecvTimeoutError::Timeout) {
        // A server that is away now is asked again next time.
        let Ok(remote) = Remote::open(uri) else {
            continue;
        };
        let _ = remote.clear(Clear::Known);
        if renewed.elapsed() >= renewal && remote.renew().is_ok() {
            renewed = Instant::now();
        }
    }
}
