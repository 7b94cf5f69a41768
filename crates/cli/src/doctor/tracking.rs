//! Which way of tracking writes this kernel gives: each is tried on a scratch page.
use pagetide::track::{Method, Snapshotter};
use pagetide_kernel::probe::Openings;

use super::finding::{Finding, Need, Status};
use crate::fix::Situation;

const TRACKING: &str = "tracking";

/// Dirty tracking and snapshots.
pub fn examine(situation: Situation) -> Vec<Finding> {
    vec![dirty_tracking(situation), snapshots(situation)]
}

/// What a `DirtyTracker` would use. Slower ones are tried only where better ones fail.
fn dirty_tracking(situation: Situation) -> Finding {
    let mut refused = Vec::new();
    let found = Method::ALL.into_iter().find(|method| {
        let works = method.works();
        works
            .map_err(|error| refused.push(format!("{method}: {error}")))
            .is_ok()
    });
    let used_for = "DirtyTracker: which pages were written since it was last asked";
    let detail = match (found, refused.is_empty()) {
        (Some(method), true) => format!("by {method}"),
        (Some(method), false) => format!("by {method} ({})", refused.join("; ")),
        (None, _) => refused.join("; "),
    };
    let finding = Finding::ok(
        TRACKING,
        "dirty tracking",
        Need::Elsewhere,
        detail,
        used_for,
    );
    match found {
        Some(Method::Async) => finding,
        Some(_) => finding.but(Status::Degraded, better(situation, "6.7")),
        None => finding.but(Status::Missing, better(situation, "6.7")),
    }
}

/// A newer kernel, or the right to what this one has.
fn better(situation: Situation, since: &str) -> String {
    let openings = Openings::probe();
    match openings.serve_kernel_mode() {
        true => super::kernel::needs_kernel(since),
        false => situation.userfaultfd(&openings),
    }
}

/// Whether a `Snapshotter` can be made.
fn snapshots(situation: Situation) -> Finding {
    let finding = Finding::ok(
        TRACKING,
        "live snapshots",
        Need::Elsewhere,
        "work",
        "Snapshotter; restoring a snapshot whole (eagerly) works everywhere",
    );
    match Snapshotter::works() {
        Ok(()) => finding,
        Err(error) => Finding {
            detail: error.to_string(),
            ..finding
        }
        .but(Status::Missing, better(situation, "5.7")),
    }
}
