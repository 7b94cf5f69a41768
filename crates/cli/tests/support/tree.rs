//! Runs whose processes have one budget, looked at from outside: who has how much of it, and what
//! all together have resident.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pagetide_pager::protocol::files;
use pagetide_pager::tree::file::{FLOOR_PAGES, Part, Shares};

use super::compile::{compile_c, scratch};
use super::pagetide::governed;
use super::patience::up_to;
use super::process::{Outcome, Running};
use super::resident::{family, status_bytes};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of a mebibyte.
pub const MIB: u64 = 1 << 20;
/// What each process has beside its part of the budget: far less than is documented, so that a
/// budget each would be seen.
const OVERHEAD: u64 = 8 * MIB;

/// A fresh directory for one run of a test.
pub fn directory(name: &str) -> PathBuf {
    let directory = scratch().join(format!("tree-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory for the test");
    directory
}

pub fn worker() -> PathBuf {
    compile_c("programs", "share_worker", &[]).unwrap_or_else(|error| panic!("{error}"))
}

/// `script` in a shell whose `$0` is the worker, and whose `$1` is `directory`; it begins by saying
/// there where its run is.
pub fn shell(options: &[&str], script: &str, directory: &Path) -> Command {
    let mut command = governed(options, "sh");
    let script = format!(
        "echo \"$PAGETIDE_RUN_DIR\" >\"$1/run.new\"; mv \"$1/run.new\" \"$1/run\"; {script}"
    );
    command.arg("-c").arg(script).arg(worker()).arg(directory);
    command
}

/// Looks again and again until `what` gives something, or `running` is not to be waited for any
/// more.
#[track_caller]
pub fn wait_for<T>(running: &mut Running, why: &str, mut what: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + up_to(90);
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(running.is_running(), "it ended before {why}");
        assert!(Instant::now() < deadline, "no end of waiting for {why}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The file of the run that said in `directory` where it is.
pub fn tree_of(running: &mut Running, directory: &Path) -> PathBuf {
    let said = directory.join("run");
    let run = wait_for(running, "it said where it is", || {
        std::fs::read_to_string(&said).ok()
    });
    files::tree(Path::new(run.trim()))
}

/// The shares as they were at one moment: what goes from one to another while the file is read is
/// counted twice or not at all, so it is read until it says the same twice.
pub fn shares(tree: &Path) -> Option<Shares> {
    let mut before = Shares::read(tree).ok()?;
    for _ in 0..1000 {
        let now = Shares::read(tree).ok()?;
        if now == before {
            return Some(now);
        }
        before = now;
    }
    None
}

pub fn parts_of(tree: &Path, wanted: impl Fn(&Part) -> bool) -> Vec<Part> {
    let parts = shares(tree).map(|shares| shares.parts).unwrap_or_default();
    parts.into_iter().filter(wanted).collect()
}

/// Whether process `pid` is one of the workers.
pub fn is_worker(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .is_ok_and(|name| name.trim() == "share_worker")
}

/// What is seen of a run from outside, until it is over.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, u64)>,
}

impl Watch {
    /// Looks at what the processes below `root` have resident, and at what they are granted.
    pub fn start(root: u32, said: PathBuf) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut resident, mut granted) = (0, 0);
            while !stopped.load(Relaxed) {
                let below = family(root).into_iter().filter(|pid| *pid != root);
                let found = below.filter_map(|pid| status_bytes(pid, "RssAnon"));
                let found: Vec<u64> = found.collect();
                let overhead = found.len() as u64 * OVERHEAD;
                resident = resident.max(found.iter().sum::<u64>().saturating_sub(overhead));
                let run = std::fs::read_to_string(&said).unwrap_or_default();
                if let Some(shares) = shares(&files::tree(Path::new(run.trim()))) {
                    let floors = shares.parts.len() as u64 * FLOOR_PAGES;
                    granted = granted.max(shares.granted().saturating_sub(floors));
                }
                std::thread::sleep(Duration::from_millis(3));
            }
            (resident, granted)
        });
        Watch { stop, thread }
    }

    /// What all together had resident at most, beyond the overhead of each, is within the budget;
    /// and so is what they were granted, beyond the floors.
    #[track_caller]
    pub fn expect_within(self, budget: u64) {
        self.stop.store(true, Relaxed);
        let (resident, granted) = self.thread.join().expect("the watch does not panic");
        assert!(granted > 0, "nothing was seen");
        assert!(
            resident <= budget && granted * PAGE <= budget,
            "{resident} bytes resident, {granted} pages granted in a budget of {budget}"
        );
    }
}

/// How many workers said that every byte was right.
pub fn ok_workers(outcome: &Outcome) -> usize {
    let text = outcome.stdout_text();
    text.lines()
        .filter(|line| *line == "ok share_worker")
        .count()
}
