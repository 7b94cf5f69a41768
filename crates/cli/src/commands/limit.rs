//! `pagetide limit`: change the budget of a running process, and return when the new bound holds.
use std::time::{Duration, Instant};

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::procfs::memory::available_to;
use pagetide_kernel::procfs::stat::Stat;
use pagetide_pager::report::Request;
use pagetide_pager::tree::file::{FLOOR_PAGES, Shares};

use crate::bases::Bases;
use crate::control::{self, ControlError};
use crate::descendants;
use crate::exit::{Exit, Failure};
use crate::governed::Governed;
use crate::runs::{self, Common};
use crate::size::{Bytes, Size};

/// Beyond the time the process has for the change, for its answer to arrive.
const ANSWER_PATIENCE: Duration = Duration::from_millis(300);

/// How often it is looked whether a run's processes have got there.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Sets the budget of a run, and says what came of it.
fn limit_run(common: &Common, size: Size, timeout: Duration) -> Result<u8, Failure> {
    let bytes = bytes_for_run(common, size)?;
    let now = set_run(common, bytes, timeout)?;
    super::told(&format!(
        "run {}: budget {}, of which its processes ({}) have {}{}",
        common.run,
        Bytes(bytes_of(now.budget)),
        now.parts.len(),
        Bytes(bytes_of(now.granted())),
        beyond(&now)
    ));
    match common.tree.parent().map(descendants::apart).as_deref() {
        None | Some([]) => Ok(Exit::Ok.code()),
        Some(apart) => Err(Failure::new(
            Exit::Failed,
            format!("run {}: {}", common.run, descendants::told(apart)),
        )),
    }
}

/// Of a budget that is less than what processes have at least: that.
fn beyond(now: &Shares) -> String {
    let floors = now.parts.len() as u64 * FLOOR_PAGES;
    match floors > now.budget {
        false => String::new(),
        true => format!(
            "; each has at least {}, so that together they may have {}",
            Bytes(bytes_of(FLOOR_PAGES)),
            Bytes(bytes_of(floors))
        ),
    }
}

fn bytes_of(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_SIZE as u64)
}

fn failure_of_run(common: &Common) -> impl Fn(std::io::Error) -> Failure {
    move |error| {
        let text = format!("run {}: its budget cannot be changed ({error})", common.run);
        Failure::new(Exit::Failed, text)
    }
}

/// The bytes `size` means for a run: a share is of what is available to it, what is granted
/// included.
pub fn bytes_for_run(common: &Common, size: Size) -> Result<u64, Failure> {
    if let Size::Bytes(_) = size {
        return Ok(size.resolve(0));
    }
    let before = Shares::read(&common.tree).map_err(failure_of_run(common))?;
    let available = available_to(&common.pid.to_string());
    Ok(size.resolve(available.saturating_add(bytes_of(before.granted()))))
}

/// Sets the budget of a run; returns when no more is granted, with who has how much of it.
pub fn set_run(common: &Common, bytes: u64, timeout: Duration) -> Result<Shares, Failure> {
    let (run, path) = (common.run, &common.tree);
    let failure = failure_of_run(common);
    Shares::set_budget(path, bytes.div_ceil(PAGE_SIZE as u64)).map_err(&failure)?;
    let deadline = Instant::now() + timeout;
    loop {
        let now = Shares::read(path).map_err(&failure)?;
        if now.is_kept() {
            return Ok(now);
        }
        if Instant::now() > deadline {
            let text = format!(
                "run {run}: the budget of {} does not hold: its processes still have {}; one may \
                 be stopped, or have locked its memory. The budget stays in force and is reached \
                 as soon as that allows",
                Bytes(bytes),
                Bytes(bytes_of(now.granted()))
            );
            return Err(Failure::new(Exit::Failed, text));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Sets the budget of process `pid`, which may be that of its launcher; or, with one budget for the
/// run, that of the run by the ID of its launcher, and by that of a process the most that it may
/// have of it.
pub fn limit(pid: u32, size: Size, timeout: Duration, bases: &Bases) -> Result<u8, Failure> {
    bases.check(false)?;
    if let Some(common) = runs::common_of(pid, bases) {
        return limit_run(&common, size, timeout);
    }
    let process = super::find(pid, bases)?;
    let pid = process.pid;
    let bytes = bytes_for(&process, size);
    process
        .reading
        .statistics
        .check_limit(bytes)
        .map_err(|why| {
            let text = format!(
                "limit {pid} {}: --memory bounds it, and {why}",
                Bytes(bytes)
            );
            Failure::new(Exit::Usage, text)
        })?;
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
    let [limit, limited] = match statistics.memory_budget_bytes {
        0 => ["budget", "resident"],
        _ => ["memory", "in all"],
    };
    let (limit, has) = match statistics.run_budget_bytes {
        0 => (
            format!("{limit} {}", Bytes(statistics.limit_bytes())),
            limited,
        ),
        run if bytes >= run => (format!("all of the run's {}", Bytes(run)), limited),
        run => (
            format!("at most {} of the run's {}", Bytes(bytes), Bytes(run)),
            limited,
        ),
    };
    super::told(&format!(
        "process {pid}: {limit}, {has} {}",
        Bytes(statistics.limited_bytes())
    ));
    Ok(Exit::Ok.code())
}

/// The bytes `size` means for a process: a share is of what is available to it, what it has
/// resident included, or in all where that is what is bounded.
pub fn bytes_for(process: &Governed, size: Size) -> u64 {
    let available = available_to(&process.pid.to_string());
    size.resolve(available.saturating_add(process.reading.statistics.limited_bytes()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_pager::tree::file::Part;

    #[test]
    fn what_processes_have_at_least_is_said_where_the_budget_is_less() {
        let part = Part {
            pid: 1,
            granted: 64,
            used: 64,
            weight: 100,
            margin: 0,
        };
        let shares = |budget| Shares {
            budget,
            parts: vec![part; 51],
        };
        assert_eq!(beyond(&shares(51 * 64)), "");
        let said = beyond(&shares(1024));
        assert!(
            said.contains("at least 256 KiB, so that together they may have 12.8 MiB"),
            "{said}"
        );
    }
}
