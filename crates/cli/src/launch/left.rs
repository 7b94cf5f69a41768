//! What goes on of a run when the launcher's own child has ended.
use std::path::Path;
use std::time::Duration;

use pagetide_pager::protocol::files::Note;

use crate::descendants;
use crate::governed::{Governed, living, recorded};

const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Who is just ending, as the other programs of a pipeline are, is given so many looks.
const LOOKS_ENDING: u32 = 10;
/// Who is just starting, as a daemon is whose parent has ended at once, is given so many.
const LOOKS_STARTING: u32 = 200;

/// The governed processes of `run` that go on.
pub fn running(run: &Path) -> Vec<Governed> {
    let mut looks = 0;
    loop {
        let left = living(run);
        let is_starting = || starting(run).any(|pid| left.iter().all(|known| known.pid != pid));
        looks += 1;
        let waits = looks < LOOKS_ENDING && !left.is_empty()
            || looks < LOOKS_STARTING && run.is_dir() && is_starting();
        if !waits {
            return left;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The processes that have `run` in their environment and have said nothing yet of how they are: an
/// agent may be about to start in them. Process IDs that have come round again are missed.
fn starting(run: &Path) -> impl Iterator<Item = u32> {
    let told = [Note::Refused, Note::Ungoverned, Note::Uncounted].map(|note| note.read_all(run));
    let told: Vec<u32> = told.into_iter().flatten().map(|(pid, _)| pid).collect();
    let without: Vec<u32> = recorded(run)
        .iter()
        .flat_map(|process| &process.reading.ungoverned)
        .map(|started| started.pid)
        .collect();
    let own = std::process::id();
    descendants::of(run, move |pid| {
        *pid > own && !told.contains(pid) && !without.contains(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_pager::protocol::environment::RUN_DIR;
    use std::fs;
    use std::process::Command;

    #[test]
    fn a_process_that_is_about_to_start_is_seen_until_it_has_said_how_it_is() {
        let run = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        let mut child = command
            .arg("1000")
            .env(RUN_DIR, run.path())
            .spawn()
            .unwrap();
        let pid = child.id();
        // The child of a moment ago may not have executed anything yet.
        while !starting(run.path()).any(|found| found == pid) {
            std::thread::sleep(LOOK_EVERY);
        }
        assert_eq!(starting(&run.path().join("other")).count(), 0);
        fs::write(Note::Ungoverned.path(run.path(), pid), "because").unwrap();
        assert_eq!(starting(run.path()).count(), 0);
        fs::remove_file(Note::Ungoverned.path(run.path(), pid)).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(starting(run.path()).count(), 0);
    }
}
