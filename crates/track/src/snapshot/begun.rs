//! A snapshot between its beginning and the moment its writers are let go.
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use pagetide_kernel::sync::now_ns;

use super::arm::Armer;
use super::copy_aside::Shared;
use super::error::SnapshotError;
use super::hold::Hold;
use super::under_way::{Claim, Outcome, Snapshot};
use super::worker::clean_up;
use crate::error::system;

/// A snapshot that is begun. Dropped before its writers were let go (arming failed, the hold
/// closure panicked), it will not be.
pub(crate) struct Begun<'s> {
    pub shared: &'s Shared,
    pub armer: &'s Armer,
    /// Pages stay protected after they are saved.
    pub keep_protected: bool,
    pub number: u64,
    pub started_ns: u64,
    /// There until it is given to the worker.
    pub claim: Option<Claim>,
    pub outcome: Arc<Outcome>,
    pub armed: bool,
}

impl Begun<'_> {
    /// Protects everything while `hold` holds the writers; `arming` is let go as soon as that is
    /// done.
    pub fn arm(
        self,
        base: u32,
        hold: impl Hold,
        arming: MutexGuard<'_, ()>,
    ) -> Result<Snapshot, SnapshotError> {
        // Called off, it is cleaned up before anybody else arms.
        let (arming, mut begun) = (arming, self);
        let shared = begun.shared;
        let (mut armed_ns, mut result) = (0, Ok(()));
        let held = hold.hold(&mut || {
            let start_ns = now_ns();
            if !begun.armed {
                begun.armed = true;
                // A writer that is not held still waits at the first page that is protected
                // already: the instant is when all are.
                shared.guard.barred(|| {
                    shared.begin(base);
                    result = begun.armer.protect_all();
                    if result.is_ok() {
                        shared.start.arm();
                    }
                });
            }
            armed_ns = now_ns() - start_ns;
        });
        let pause = Duration::from_nanos(now_ns() - begun.started_ns);
        if !begun.armed {
            held?;
            return Err(SnapshotError::NotArmed);
        }
        drop(arming);
        result.map_err(system("write-protecting memory"))?;
        shared.start.go_if_armed();
        let claim = begun.claim.take().expect("given to the worker once, here");
        let outcome = Arc::clone(&begun.outcome);
        Ok(outcome.let_go(claim, pause, Duration::from_nanos(armed_ns)))
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else {
            return;
        };
        if !self.shared.start.call_off(self.number) {
            // The sweep has begun, because room ran out, and cleans up after itself.
            self.outcome.give_up(claim);
        } else {
            if self.armed {
                clean_up(self.shared, self.keep_protected);
            }
            drop(self.outcome.result.wait());
        }
    }
}
