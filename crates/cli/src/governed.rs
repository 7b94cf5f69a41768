//! The governed processes: those recorded in a run directory, and which of them live.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagetide_kernel::procfs::stat::Stat;
use pagetide_pager::protocol::files::{self, Note};
use pagetide_pager::report::{Request, Statistics};

use crate::control;
use crate::ledger_file::{Reader, Reading};

/// How long a process without a ledger may take to say what it has.
const PATIENCE: Duration = Duration::from_millis(300);

/// A process image that has, or had, a pager.
#[derive(Debug, Clone, PartialEq)]
pub struct Governed {
    /// The process ID in the file's name.
    pub pid: u32,
    /// Its control socket.
    pub socket: PathBuf,
    /// What its ledger says.
    pub reading: Reading,
}

/// Every process image recorded in a run directory, each read when it is asked for.
fn images(run: &Path) -> impl Iterator<Item = Governed> {
    let mut reader = Reader::default();
    let entries = fs::read_dir(run).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let pid = files::ledger_pid(entry.file_name().to_str()?)?;
        let reading = reader.read(&entry.path())?;
        Some(Governed {
            pid,
            socket: files::socket(run, pid),
            reading,
        })
    })
}

/// Every process image recorded in a run directory, in the order in which they started.
pub fn recorded(run: &Path) -> Vec<Governed> {
    let mut found: Vec<Governed> = images(run).collect();
    found.sort_by_key(|governed| (governed.reading.started_ns, governed.pid));
    found
}

/// The living process images of a run: of images that followed each other in one process, the last.
pub fn living(run: &Path) -> Vec<Governed> {
    let mut last: Vec<Governed> = Vec::new();
    for governed in recorded(run).into_iter().filter(is_alive) {
        last.retain(|earlier| !earlier.is_same_process(&governed));
        last.push(governed);
    }
    for process in uncounted(run) {
        if !last.iter().any(|known| known.pid == process.pid) {
            last.push(process);
        }
    }
    last
}

/// Those that said that there was no room for their ledgers, as they answer. Of a number that
/// nobody answers for, nothing lives.
pub fn uncounted(run: &Path) -> impl Iterator<Item = Governed> {
    let mut told = Note::Uncounted.read_all(run);
    told.dedup_by_key(|(pid, _)| *pid);
    told.into_iter().filter_map(|(pid, _)| {
        let socket = files::socket(run, pid);
        let statistics = match control::ask(&socket, &Request::Stat, PATIENCE) {
            Ok(statistics) => statistics,
            Err(error) if error.is_gone() => return None,
            // It may be stopped.
            Err(_) => Statistics {
                pid,
                ..Statistics::default()
            },
        };
        let reading = Reading {
            statistics,
            started_ns: Stat::of(pid).map_or(0, |stat| stat.start_ns),
            held: Some(true),
            ..Reading::default()
        };
        Some(Governed {
            pid,
            socket,
            reading,
        })
    })
}

/// Whether any governed process of a run lives.
pub fn any_alive(run: &Path) -> bool {
    images(run).any(|image| is_alive(&image)) || uncounted(run).next().is_some()
}

/// Whether a recorded process image lives.
pub fn is_alive(governed: &Governed) -> bool {
    let reading = &governed.reading;
    reading
        .held
        .unwrap_or_else(|| has_process(governed.pid, reading.started_ns))
}

/// What bounds these processes together, in bytes: the budget of each run that has one, once, and
/// the bounds of all others.
pub fn bound_of<'a>(processes: impl IntoIterator<Item = &'a Governed>) -> u64 {
    let (mut runs, mut others) = (BTreeMap::new(), 0u64);
    for process in processes {
        let statistics = &process.reading.statistics;
        match statistics.run_budget_bytes {
            0 => others = others.saturating_add(statistics.limit_bytes()),
            bytes => {
                runs.insert(process.socket.parent(), bytes);
            }
        }
    }
    runs.into_values().fold(others, u64::saturating_add)
}

impl Governed {
    /// The process ID of its run's launcher.
    pub fn run(&self) -> Option<u32> {
        files::launcher_of(self.socket.parent()?)
    }

    /// Whether both are images of one process.
    fn is_same_process(&self, other: &Governed) -> bool {
        (self.pid, self.reading.pid_namespace) == (other.pid, other.reading.pid_namespace)
    }
}

/// Whether `pid` is the process that started a pager at `started_ns`, not a later one with the same
/// number.
fn has_process(pid: u32, started_ns: u64) -> bool {
    // A clock tick is the grain of the kernel's start times.
    const GRAIN_NS: u64 = 20_000_000;
    let Some(Stat {
        state,
        threads,
        start_ns,
    }) = Stat::of(pid)
    else {
        return false;
    };
    // A process whose first thread has ended before the others looks like one that is over, but for
    // its other threads.
    let is_over = state == 'X' || state == 'Z' && threads <= 1;
    !is_over && start_ns <= started_ns.saturating_add(GRAIN_NS)
}

/// Whether `pid` is a pagetide process.
pub fn is_launcher(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("pagetide"))
        && Stat::of(pid).is_some_and(|stat| stat.state != 'Z')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_its_successor_is_not_taken_for_it() {
        let pid = std::process::id();
        let start_ns = Stat::of(pid).unwrap().start_ns;
        assert!(has_process(pid, start_ns));
        assert!(has_process(pid, start_ns + 1_000_000_000));
        assert!(!has_process(pid, start_ns - 1_000_000_000));
        assert!(!has_process(u32::MAX, u64::MAX));
    }

    #[test]
    fn a_budget_that_processes_have_together_counts_once() {
        let process = |run: &str, granted, whole| Governed {
            pid: 1,
            socket: Path::new(run).join("1.sock"),
            reading: Reading {
                statistics: pagetide_pager::report::Statistics {
                    budget_bytes: granted,
                    run_budget_bytes: whole,
                    ..Default::default()
                },
                ..Reading::default()
            },
        };
        let all = [
            process("/run/a", 10, 100),
            process("/run/a", 20, 100),
            process("/run/b", 10, 50),
            process("/run/c", 7, 0),
            process("/run/c", 7, 0),
        ];
        assert_eq!(bound_of(&all), 164);
    }

    #[test]
    fn a_ledger_that_is_not_held_is_of_a_process_that_is_over() {
        let pid = std::process::id();
        let governed = |held| Governed {
            pid,
            socket: "".into(),
            reading: Reading {
                started_ns: u64::MAX,
                held,
                ..Reading::default()
            },
        };
        // As in another PID namespace: a process of that number lives here, and is not the one.
        assert!(!is_alive(&governed(Some(false))));
        assert!(is_alive(&governed(Some(true))));
        assert!(is_alive(&governed(None)));
    }
}
