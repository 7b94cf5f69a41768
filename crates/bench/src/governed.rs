//! The worker under `pagetide run`.
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::launch;
use crate::worker::{Findings, Parameters};

/// The worker as an unmodified program under the `pagetide` command.
#[derive(Debug)]
pub struct PagetideRun {
    command: PathBuf,
    resident: u64,
    store: Option<String>,
    statistics: PathBuf,
}

/// The command given, or the one beside this executable.
pub fn find_command(given: Option<&Path>) -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("pagetide");
    let path = given.map_or(beside, Path::to_owned);
    if path.is_file() {
        return Ok(path);
    }
    let advice =
        "build it with `cargo build --release --workspace`, or name it with --pagetide PATH";
    Err(Error::new(
        ErrorKind::NotFound,
        format!("there is no {}: {advice}", path.display()),
    ))
}

impl PagetideRun {
    /// Runs will hold at most `resident` bytes.
    pub fn new(command: PathBuf, resident: u64, store: Option<String>) -> PagetideRun {
        let statistics =
            std::env::temp_dir().join(format!("pagetide-bench-{}.json", std::process::id()));
        PagetideRun {
            command,
            resident,
            store,
            statistics,
        }
    }

    /// One run; with the statistics the pager wrote.
    pub fn run(&self, parameters: &Parameters) -> Result<(Findings, serde_json::Value)> {
        let mut command = Command::new(&self.command);
        command
            .args([
                "run",
                "--quiet",
                "--resident",
                &self.resident.to_string(),
                "--stats",
            ])
            .arg(&self.statistics);
        if let Some(uri) = &self.store {
            command.args(["--store", uri]);
        }
        command
            .arg("--")
            .arg(std::env::current_exe()?)
            .args(launch::worker_words(parameters));
        let findings = launch::findings(&mut command)?;
        let text = std::fs::read_to_string(&self.statistics)?;
        std::fs::remove_file(&self.statistics)?;
        let statistics =
            serde_json::from_str(text.lines().next().unwrap_or_default()).map_err(Error::other)?;
        Ok((findings, statistics))
    }
}
