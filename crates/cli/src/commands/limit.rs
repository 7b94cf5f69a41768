//! `pagetide limit`: change the budget of a running process, and return when the new bound holds.
use std::time::Duration;

use pagetide_kernel::procfs::memory::available_to;
use pagetide_kernel::procfs::stat::Stat;
use pagetide_pager::report::Request;

use crate::bases::Bases;
use crate::control::{self, ControlError};
use crate::exit::{Exit, Failure};
use crate::governed::Governed;
use crate::size::{Bytes, Size};

/// Beyond the time the process has for the change, for its answer to arrive.
const ANSWER_PATIENCE: Duration = Duration::from_millis(300);

/// Sets the budget of process `pid`, which may be that of its launcher.
pub fn limit(pid: u32, size: Size, timeout: Duration, bases: &Bases) -> Result<u8, Failure> {
    let process = super::find(pid, bases)?;
    let pid = process.pid;
    let bytes = bytes_for(&process, size);
    let statistics = set(&process, bytes, timeout).map_err(|why| {
        // Its pager stands still with it.
        let stopped = Stat::of(pid).is_some_and(|stat| stat.state == 'T');
        let why = match why {
            ControlError::Silent(..) if stopped => {
                format!("it is stopped and does not answer; let it go on: kill -CONT {pid}")
            }
            other => other.to_string(),
        };
        Failure::new(
            Exit::Failed,
            format!(
                "process {pid}: the budget of {} does not hold: {why}",
                Bytes(bytes)
            ),
        )
    })?;
    eprintln!(
        "pagetide: process {pid}: budget {}, resident {}",
        Bytes(statistics.budget_bytes),
        Bytes(statistics.resident_bytes)
    );
    Ok(Exit::Ok.code())
}

/// The bytes `size` means for a process: a share is of what is available to it, what it has
/// resident included.
pub fn bytes_for(process: &Governed, size: Size) -> u64 {
    let available = available_to(&process.pid.to_string());
    size.resolve(available.saturating_add(process.reading.statistics.resident_bytes))
}

/// Asks a process to take a new budget.
pub fn set(
    process: &Governed,
    bytes: u64,
    timeout: Duration,
) -> Result<pagetide_pager::report::Statistics, ControlError> {
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    control::ask(
        &process.socket,
        &Request::Limit { bytes, timeout_ms },
        timeout.saturating_add(ANSWER_PATIENCE),
    )
}
