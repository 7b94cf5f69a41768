//! What the launcher tells the agent: environment variables, all named here, written and read by
//! [`Wishes`], or by [`LockAll`] in their stead.
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use pagetide_kernel::{PAGE_SIZE, mask};

use crate::evict::adapting::Automatic;
use crate::page::policy::Kind;
use crate::tree::file::{WEIGHT_DEFAULT, WEIGHTS};

/// The budget in bytes.
const BUDGET: &str = "PAGETIDE_BUDGET";
/// The most bytes of all memory of each process, resident, stored and other; else empty.
const MEMORY: &str = "PAGETIDE_MEMORY";
/// `1` where the processes of the run have one budget between them.
const PER_RUN: &str = "PAGETIDE_PER_RUN";
/// From the user: this process's weight, and that of those it starts, in a common budget.
pub const WEIGHT: &str = "PAGETIDE_WEIGHT";
/// The store's URI.
const STORE: &str = "PAGETIDE_STORE";
/// Only mappings of more bytes than this are governed; 0 or absent for all.
const MAPPINGS_OVER: &str = "PAGETIDE_MAPPINGS_OVER";
/// The share of its time that a program may lose, and the fewest bytes that it has all the same,
/// `0.1:16777216`, where its budget follows it; else empty.
const AUTOMATIC: &str = "PAGETIDE_AUTO";
/// `1` where it is to be measured how much memory programs need.
const MEASURE: &str = "PAGETIDE_MEASURE";
/// The run's directory, as its processes have it in their environment.
pub const RUN_DIR: &str = "PAGETIDE_RUN_DIR";
/// The eviction policy's name.
const POLICY: &str = "PAGETIDE_POLICY";
/// A file to record the first process's faults in; empty for none.
const TRACE: &str = "PAGETIDE_TRACE";
/// `1` where nothing is to be said of processes that run without the agent: wished by the user, or
/// said already.
pub const QUIET: &str = "PAGETIDE_QUIET";
/// For a launcher that becomes the program: the descriptor of the run's directory that it leaves
/// open; else empty.
const EXEC: &str = "PAGETIDE_EXEC";
/// Instead of all these: how memory is to be locked, `on-fault:PID` or `now:PID` with the process
/// ID of the launcher, or, followed by `:exec`, of the program that the launcher becomes.
const LOCK: &str = "PAGETIDE_LOCK";
/// Path of the agent that is loaded.
pub const AGENT: &str = "PAGETIDE_PRELOAD";
/// For the launcher, from the user: the agent's file, where it is not where it is looked for.
pub const AGENT_FILE: &str = "PAGETIDE_AGENT";
/// For the command, from the user: the directory in which runs are kept and looked for.
pub const BASE_DIR: &str = "PAGETIDE_BASE_DIR";
/// For all, in tests: [kernel features treated as absent](mask).
pub const MASK: &str = mask::VARIABLE;
/// The dynamic loader's own list.
pub const LD_PRELOAD: &str = "LD_PRELOAD";

/// Those that executed programs get as well.
const PASSED_ON: [&str; 14] = [
    BUDGET,
    MEMORY,
    PER_RUN,
    WEIGHT,
    STORE,
    MAPPINGS_OVER,
    MEASURE,
    AUTOMATIC,
    RUN_DIR,
    AGENT,
    POLICY,
    QUIET,
    EXEC,
    MASK,
];

/// Variables with their values.
pub type Variables = Vec<(&'static str, OsString)>;

/// How a program is to be governed.
#[derive(Debug, Clone, PartialEq)]
pub struct Wishes {
    /// Bytes that may be resident.
    pub budget_bytes: u64,
    /// Bytes that all memory of each process may be, if that is bounded.
    pub memory_bytes: Option<u64>,
    /// Of all processes of the run together, and not of each.
    pub per_run: bool,
    /// Store URI.
    pub store: String,
    /// The eviction policy.
    pub policy: Kind,
    /// Where the first process's faults are recorded.
    pub trace: Option<PathBuf>,
    /// Only mappings of more bytes than this are governed.
    pub mappings_over_bytes: u64,
    /// The budget follows the program, `budget_bytes` at most.
    pub automatic: Option<Automatic>,
    /// It is to be measured how much memory the program needs.
    pub measure: bool,
    /// Directory for the ledger and the control socket.
    pub run_dir: PathBuf,
    /// Nothing is to be said of a process that runs without the agent.
    pub quiet: bool,
    /// The launcher becomes the program, so there is nobody to read notes: what is to be said goes
    /// to the standard error stream. The run's directory is open under this number, which tells the
    /// first program from those that it executes or starts, and keeps the directory until then.
    pub exec: Option<RawFd>,
    /// Path of the agent.
    pub agent: PathBuf,
}

impl Wishes {
    /// For the program's environment. What is not wished is set all the same: an outer launcher may
    /// have.
    pub fn variables(&self) -> Variables {
        let trace = self.trace.clone().unwrap_or_default();
        let exec = self.exec.map(|fd| fd.to_string()).unwrap_or_default();
        let memory = self.memory_bytes.map(|bytes| bytes.to_string());
        vec![
            (AGENT, self.agent.clone().into()),
            (BUDGET, self.budget_bytes.to_string().into()),
            (MEMORY, memory.unwrap_or_default().into()),
            (PER_RUN, u8::from(self.per_run).to_string().into()),
            (STORE, self.store.clone().into()),
            (RUN_DIR, self.run_dir.clone().into()),
            (POLICY, self.policy.name().into()),
            (QUIET, u8::from(self.quiet).to_string().into()),
            (TRACE, trace.into()),
            (EXEC, exec.into()),
            (MAPPINGS_OVER, self.mappings_over_bytes.to_string().into()),
            (MEASURE, u8::from(self.measure).to_string().into()),
            (
                AUTOMATIC,
                self.automatic
                    .map(automatic_text)
                    .unwrap_or_default()
                    .into(),
            ),
        ]
    }

    /// From this process's environment; `None` when the program was not started by `pagetide run`.
    pub fn from_environment() -> Option<Wishes> {
        Wishes::read(|name| std::env::var_os(name))
    }

    fn read(value: impl Fn(&str) -> Option<OsString>) -> Option<Wishes> {
        let text = |name| value(name)?.into_string().ok();
        Some(Wishes {
            budget_bytes: text(BUDGET)?.parse().ok()?,
            memory_bytes: text(MEMORY).and_then(|text| text.parse().ok()),
            per_run: value(PER_RUN).is_some_and(|value| value == "1"),
            store: text(STORE).unwrap_or_else(|| "ram:".into()),
            policy: text(POLICY)
                .and_then(|name| name.parse().ok())
                .unwrap_or_default(),
            trace: value(TRACE)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            mappings_over_bytes: text(MAPPINGS_OVER)
                .and_then(|text| text.parse().ok())
                .unwrap_or(0),
            automatic: text(AUTOMATIC).and_then(|text| automatic(&text)),
            measure: value(MEASURE).is_some_and(|value| value == "1"),
            run_dir: value(RUN_DIR)?.into(),
            quiet: value(QUIET).is_some_and(|value| value == "1"),
            exec: text(EXEC).and_then(|text| text.parse().ok()),
            agent: value(AGENT)?.into(),
        })
    }
}

fn automatic_text(automatic: Automatic) -> String {
    let Automatic {
        slowdown,
        floor_pages,
    } = automatic;
    format!("{slowdown}:{}", floor_pages * PAGE_SIZE as u64)
}

fn automatic(text: &str) -> Option<Automatic> {
    let (slowdown, floor) = text.split_once(':')?;
    Some(Automatic {
        slowdown: slowdown.parse().ok()?,
        floor_pages: floor.parse::<u64>().ok()? / PAGE_SIZE as u64,
    })
}

/// The weight that this process is to have in a common budget, from its environment; what is wrong
/// with it if it is none.
///
/// # Errors
/// The sentence to say.
pub fn weight() -> Result<u64, String> {
    weight_in(std::env::var_os(WEIGHT))
}

fn weight_in(value: Option<OsString>) -> Result<u64, String> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(WEIGHT_DEFAULT);
    };
    let number = value.to_str().and_then(|text| text.parse().ok());
    number
        .filter(|weight| WEIGHTS.contains(weight))
        .ok_or_else(|| {
            format!(
                "{WEIGHT}={} is not a weight; expected a number from {} to {}",
                value.display(),
                WEIGHTS.start(),
                WEIGHTS.end()
            )
        })
}

/// This process's variables that executed programs get as well, as `NAME=value`.
pub fn passed_on() -> Vec<Vec<u8>> {
    entries(PASSED_ON.iter().filter_map(|name| {
        let value = std::env::var_os(name)?;
        Some((*name, value))
    }))
}

/// Variables as `NAME=value`.
pub fn entries(variables: impl IntoIterator<Item = (&'static str, OsString)>) -> Vec<Vec<u8>> {
    let entry = |(name, value): (&str, OsString)| {
        let value = value.into_vec();
        [name.as_bytes(), b"=", &value].concat()
    };
    variables.into_iter().map(entry).collect()
}

/// How a program's memory is to be locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockAll {
    /// Pages are locked as they are touched, and not all at once.
    pub on_fault: bool,
    /// The launcher's process ID: its own child is not to run unlocked.
    pub launcher: i32,
    /// The launcher becomes the program: it is that process itself, not its child.
    pub exec: bool,
    /// Path of the agent.
    pub agent: PathBuf,
}

impl LockAll {
    /// For the program's environment, and for programs it executes.
    pub fn variables(&self) -> Variables {
        let mode = if self.on_fault { "on-fault" } else { "now" };
        let exec = if self.exec { ":exec" } else { "" };
        vec![
            (LOCK, format!("{mode}:{}{exec}", self.launcher).into()),
            (AGENT, self.agent.clone().into()),
        ]
    }

    /// From this process's environment, if that is what the launcher wishes.
    pub fn from_environment() -> Option<LockAll> {
        LockAll::read(|name| std::env::var_os(name))
    }

    fn read(value: impl Fn(&str) -> Option<OsString>) -> Option<LockAll> {
        let text = value(LOCK)?.into_string().ok()?;
        let (text, exec) = match text.strip_suffix(":exec") {
            Some(text) => (text, true),
            None => (&text[..], false),
        };
        let (mode, launcher) = text.split_once(':')?;
        Some(LockAll {
            on_fault: match mode {
                "on-fault" => true,
                "now" => false,
                _ => return None,
            },
            launcher: launcher.parse().ok()?,
            exec,
            agent: value(AGENT)?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_in(variables: &Variables, name: &str) -> Option<OsString> {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone())
    }

    #[test]
    fn wishes_are_read_as_they_were_written() {
        let mut wishes = Wishes {
            budget_bytes: 1 << 30,
            memory_bytes: Some(2 << 30),
            per_run: true,
            store: "file:/x".into(),
            policy: Kind::Fifo,
            trace: Some("/trace".into()),
            mappings_over_bytes: 7,
            automatic: Some(Automatic {
                slowdown: 0.05,
                floor_pages: 4096,
            }),
            measure: true,
            run_dir: "/run-1".into(),
            quiet: true,
            exec: Some(7),
            agent: "/a.so".into(),
        };
        for (trace, exec) in [(wishes.trace.clone(), Some(7)), (None, None)] {
            (wishes.trace, wishes.exec) = (trace, exec);
            wishes.memory_bytes = exec.map(|_| 2 << 30);
            let written = wishes.variables();
            assert_eq!(
                Wishes::read(|name| value_in(&written, name)),
                Some(wishes.clone())
            );
        }
        let least = vec![
            (BUDGET, "1".into()),
            (RUN_DIR, "/r".into()),
            (AGENT, "/a".into()),
        ];
        let read = Wishes::read(|name| value_in(&least, name)).unwrap();
        assert_eq!((read.store.as_str(), read.quiet), ("ram:", false));
        assert_eq!((read.policy, read.trace), (Kind::default(), None));
        assert_eq!(
            (read.exec, read.per_run, read.measure),
            (None, false, false)
        );
        assert_eq!(
            Wishes::read(|name| value_in(&least[1..].to_vec(), name)),
            None
        );
    }

    #[test]
    fn how_memory_is_locked_is_read_as_it_was_written() {
        for (on_fault, exec) in [(true, true), (true, false), (false, true), (false, false)] {
            let wish = LockAll {
                on_fault,
                launcher: 42,
                exec,
                agent: "/a.so".into(),
            };
            let written = wish.variables();
            assert_eq!(LockAll::read(|name| value_in(&written, name)), Some(wish));
        }
        let wrong = vec![(LOCK, "later:1".into()), (AGENT, "/a.so".into())];
        assert_eq!(LockAll::read(|name| value_in(&wrong, name)), None);
    }

    #[test]
    fn weights_are_numbers_in_their_range() {
        let weight = |text: &str| weight_in(Some(text.into())).ok();
        assert_eq!(weight_in(None), Ok(WEIGHT_DEFAULT));
        let given = ["", "1", "10000", "0", "10001", "x"];
        let read = [Some(100), Some(1), Some(10_000), None, None, None];
        assert_eq!(given.map(weight), read);
    }

    #[test]
    fn entries_are_names_and_values() {
        let list = entries([(QUIET, "1".into())]);
        assert_eq!(list, [b"PAGETIDE_QUIET=1".to_vec()]);
    }
}
