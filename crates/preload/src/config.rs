//! What the launcher tells the agent, by the environment. The names are declared here and nowhere else in the agent.
use std::path::PathBuf;

use pagetide::pager::policy::Kind;

/// The budget in bytes.
pub const BUDGET: &str = "PAGETIDE_BUDGET";
/// The store's URI.
pub const STORE: &str = "PAGETIDE_STORE";
/// Only mappings of more bytes than this are governed; absent for all.
pub const MAPPINGS_OVER: &str = "PAGETIDE_MAPPINGS_OVER";
/// The run's directory.
pub const RUN_DIR: &str = "PAGETIDE_RUN_DIR";
/// The eviction policy's name.
pub const POLICY: &str = "PAGETIDE_POLICY";
/// A file to record the first process's faults in; empty for none.
pub const TRACE: &str = "PAGETIDE_TRACE";
/// Instead of all these: how memory is to be locked, `on-fault:PID` or `now:PID` with the launcher's process ID.
pub const LOCK: &str = "PAGETIDE_LOCK";
/// Path of this library.
pub const AGENT: &str = "PAGETIDE_PRELOAD";
/// The dynamic loader's own list.
pub const LD_PRELOAD: &str = "LD_PRELOAD";

/// The launcher's wishes.
#[derive(Debug)]
pub struct Config {
    /// Bytes that may be resident.
    pub budget_bytes: u64,
    /// Store URI.
    pub store: String,
    /// The eviction policy.
    pub policy: Kind,
    /// Where faults are recorded.
    pub trace: Option<PathBuf>,
    /// Only mappings of more bytes than this are governed.
    pub mappings_over_bytes: u64,
    /// Directory for the ledger and the control socket.
    pub run_dir: PathBuf,
    /// The variables as found, `NAME=value`, for programs started with another environment.
    pub variables: Vec<Vec<u8>>,
    /// Path of this library.
    pub agent: Vec<u8>,
}

impl Config {
    /// From the environment; `None` when the program was not started by `pagetide run`.
    pub fn from_environment() -> Option<Config> {
        use std::os::unix::ffi::OsStringExt;
        let budget = std::env::var(BUDGET).ok()?;
        let run_dir = std::env::var_os(RUN_DIR)?;
        let agent = std::env::var_os(AGENT)?.into_vec();
        let variables = [BUDGET, STORE, MAPPINGS_OVER, RUN_DIR, AGENT, POLICY]
            .iter()
            .filter_map(|name| {
                let value = std::env::var_os(name)?.into_vec();
                Some([name.as_bytes(), b"=", &value].concat())
            });
        Some(Config {
            budget_bytes: budget.parse().ok()?,
            store: std::env::var(STORE).unwrap_or_else(|_| "ram:".into()),
            policy: std::env::var(POLICY)
                .ok()
                .and_then(|name| name.parse().ok())
                .unwrap_or_default(),
            trace: std::env::var_os(TRACE)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            mappings_over_bytes: std::env::var(MAPPINGS_OVER)
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0),
            run_dir: run_dir.into(),
            variables: variables.collect(),
            agent,
        })
    }

    /// Whether this is the program the launcher itself started (not a descendant of it).
    pub fn is_first(&self) -> bool {
        let launcher = self
            .run_dir
            .file_name()
            .and_then(|n| n.to_str())
            .and_then(|n| n.strip_prefix("run-"))
            .and_then(|n| n.parse().ok());
        rustix::process::getppid().map(|p| p.as_raw_nonzero().get()) == launcher
    }
}
