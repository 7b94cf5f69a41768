//! What the launcher tells the agent, by the environment. The names are declared here and nowhere
//! else in the agent.
use std::ffi::CString;
use std::path::{Path, PathBuf};

use pagetide_kernel::mask;
use pagetide_pager::page::policy::Kind;

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
/// `1` where nothing is to be said of processes that run without the agent: wished by the user, or
/// said already.
pub const QUIET: &str = "PAGETIDE_QUIET";
/// Instead of all these: how memory is to be locked, `on-fault:PID` or `now:PID` with the
/// launcher's process ID.
pub const LOCK: &str = "PAGETIDE_LOCK";
/// Path of this library.
pub const AGENT: &str = "PAGETIDE_PRELOAD";
/// The dynamic loader's own list.
pub const LD_PRELOAD: &str = "LD_PRELOAD";

/// The launcher's wishes.
#[derive(Debug, Clone)]
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
    /// Whether this is the program the launcher itself started, and not one executed later, in its
    /// place or by a descendant.
    pub is_first: bool,
    /// Nothing is to be said of a process that runs without the agent.
    pub quiet: bool,
    /// The variables as found, `NAME=value`, for programs started with another environment.
    pub variables: Vec<Vec<u8>>,
    /// Path of this library.
    pub agent: CString,
}

impl Config {
    /// From the environment; `None` when the program was not started by `pagetide run`.
    pub fn from_environment() -> Option<Config> {
        use std::os::unix::ffi::OsStringExt;
        let budget = std::env::var(BUDGET).ok()?;
        let run_dir = std::env::var_os(RUN_DIR)?;
        let agent = CString::new(std::env::var_os(AGENT)?.into_vec()).ok()?;
        let run_dir = PathBuf::from(run_dir);
        let passed_on = [
            BUDGET,
            STORE,
            MAPPINGS_OVER,
            RUN_DIR,
            AGENT,
            POLICY,
            QUIET,
            mask::VARIABLE,
        ];
        let variables = passed_on.iter().filter_map(|name| {
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
            is_first: is_first(&run_dir),
            run_dir,
            quiet: std::env::var_os(QUIET).is_some_and(|value| value == "1"),
            variables: variables.collect(),
            agent,
        })
    }

    /// Whether the launcher is this process's parent.
    pub fn is_launchers_child(&self) -> bool {
        is_child_of_launcher(&self.run_dir)
    }
}

fn is_child_of_launcher(run_dir: &Path) -> bool {
    let launcher = run_dir
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_prefix("run-"))
        .and_then(|number| number.parse().ok());
    rustix::process::getppid().map(|p| p.as_raw_nonzero().get()) == launcher
}

/// Before this process has made its ledger. A program executed in the place of the first finds the
/// first one's ledger; or it may not look into the directory, which the first, with the launcher's
/// rights, always may.
fn is_first(run_dir: &Path) -> bool {
    is_child_of_launcher(run_dir) && has_no_ledger(run_dir, std::process::id())
}

fn has_no_ledger(run_dir: &Path, pid: u32) -> bool {
    let ours = format!("{pid}-");
    std::fs::read_dir(run_dir).is_ok_and(|mut entries| {
        entries.all(|entry| {
            entry.is_ok_and(|entry| {
                !entry
                    .file_name()
                    .as_encoded_bytes()
                    .starts_with(ours.as_bytes())
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_image_of_a_process_finds_no_ledger_of_its_own() {
        let dir = std::env::temp_dir().join(format!("pagetide-config-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        assert!(has_no_ledger(&dir, 12));
        std::fs::write(dir.join("123-9.stats"), "").unwrap();
        std::fs::write(dir.join("12.sock"), "").unwrap();
        assert!(has_no_ledger(&dir, 12));
        std::fs::write(dir.join("12-9.stats"), "").unwrap();
        assert!(!has_no_ledger(&dir, 12));
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(
            !has_no_ledger(&dir, 12),
            "what cannot be read is a later program's"
        );
    }
}
