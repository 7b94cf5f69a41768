//! The governed processes: those recorded in a run directory, and which of them live.
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::ledger_file::{Reader, Reading};
use crate::rundir;

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

/// The process ID in a ledger file's name, `PID-START.stats`.
fn ledger_pid(name: &str) -> Option<u32> {
    name.strip_suffix(".stats")?.split_once('-')?.0.parse().ok()
}

/// Every process image recorded in a run directory, in the order in which they started.
pub fn recorded(run: &Path) -> Vec<Governed> {
    let mut reader = Reader::default();
    let mut found: Vec<Governed> = fs::read_dir(run)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = ledger_pid(entry.file_name().to_str()?)?;
            let reading = reader.read(&entry.path())?;
            Some(Governed {
                pid,
                socket: run.join(format!("{pid}.sock")),
                reading,
            })
        })
        .collect();
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
    last
}

/// Whether any governed process of a run lives.
pub fn any_alive(run: &Path) -> bool {
    !living(run).is_empty()
}

/// Every living governed process this user may see and name: processes of other PID namespaces have
/// numbers that mean nothing, or others, here. Directories of runs that are over are removed.
pub fn all() -> Vec<Governed> {
    let bases = rundir::bases();
    let mut found = Vec::new();
    for base in &bases {
        rundir::clean_stale(base);
        found.extend(rundir::runs(base).iter().flat_map(|run| living(run)));
    }
    found.retain(nameable());
    found.sort_by_key(|governed| governed.pid);
    found
}

/// Tells of which processes the numbers mean something here.
fn nameable() -> impl Fn(&Governed) -> bool {
    let here = fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
    move |governed| {
        let theirs = governed.reading.pid_namespace;
        theirs == here || theirs == 0 || here == 0
    }
}

/// Whether a recorded process image lives.
pub fn is_alive(governed: &Governed) -> bool {
    let reading = &governed.reading;
    reading
        .held
        .unwrap_or_else(|| has_process(governed.pid, reading.started_ns))
}

impl Governed {
    /// Whether both are images of one process.
    fn is_same_process(&self, other: &Governed) -> bool {
        (self.pid, self.reading.pid_namespace) == (other.pid, other.reading.pid_namespace)
    }
}

/// The living governed processes of the run that launcher `pid` began; `None` if it is no launcher
/// this user may see.
pub fn of_launcher(pid: u32) -> Option<Vec<Governed>> {
    if !is_launcher(pid) {
        return None;
    }
    let name = format!("{}{pid}", rundir::RUN_PREFIX);
    let mut runs = rundir::bases().into_iter().map(|base| base.join(&name));
    let run = runs.find(|run| run.is_dir())?;
    let mut found = living(&run);
    found.retain(nameable());
    Some(found)
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
    }) = stat(pid)
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
        && stat(pid).is_some_and(|stat| stat.state != 'Z')
}

/// What the kernel says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its first thread's state, as a letter.
    pub state: char,
    /// Its threads; the first one counts as long as there are others.
    pub threads: u64,
    /// When it started on `CLOCK_MONOTONIC`, in nanoseconds.
    pub start_ns: u64,
}

/// Reads it.
pub fn stat(pid: u32) -> Option<Stat> {
    use rustix::time::{ClockId, clock_gettime};
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (state, threads, start_ticks) = parse_stat(&text)?;
    let now = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    // The kernel counts from boot, time asleep included.
    let asleep_ns = now(ClockId::Boottime).saturating_sub(now(ClockId::Monotonic));
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    Some(Stat {
        state,
        threads,
        start_ns: (start_ticks * tick_ns).saturating_sub(asleep_ns),
    })
}

/// State, threads and start time in ticks from the text of `/proc/PID/stat`. The command's name may
/// hold spaces and parentheses.
fn parse_stat(stat: &str) -> Option<(char, u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let threads = fields.nth(16)?.parse().ok()?;
    Some((state, threads, fields.nth(1)?.parse().ok()?))
}

/// Text from a process, fit for a terminal: control characters are shown as `?`.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_with_a_hostile_name_is_read() {
        let line = "12 (a) b (c) S 1 12 12 0 -1 4 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        assert_eq!(parse_stat(line), Some(('S', 1, 4242)));
        assert_eq!(parse_stat("12 (a"), None);
    }

    #[test]
    fn this_process_lives_and_its_successor_is_not_taken_for_it() {
        let pid = std::process::id();
        let start_ns = stat(pid).unwrap().start_ns;
        assert!(has_process(pid, start_ns));
        assert!(has_process(pid, start_ns + 1_000_000_000));
        assert!(!has_process(pid, start_ns - 1_000_000_000));
        assert!(!has_process(u32::MAX, u64::MAX));
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

    #[test]
    fn only_ledger_files_name_a_process() {
        assert_eq!(ledger_pid("12-99.stats"), Some(12));
        for name in ["12.sock", "12.stats", "x-1.stats", "12-9.stats.tmp"] {
            assert_eq!(ledger_pid(name), None, "{name}");
        }
    }

    #[test]
    fn a_process_s_text_cannot_drive_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a?[2Jb?c");
    }
}
