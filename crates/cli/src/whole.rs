//! A run as a whole above its processes: what `ps`, `stat` and `top` show of several.
use pagetide_pager::report::{Latency, Statistics};

use crate::governed::{Governed, bound_of};
use crate::ledger_file::Reading;

/// Where a line of a list stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A process that is all there is of its run.
    Alone,
    /// A run of several processes.
    Whole,
    /// One of them, and others follow.
    Inner,
    /// The last of them.
    Last,
}

impl Place {
    /// What stands before the command.
    pub fn branch(self) -> &'static str {
        match self {
            Place::Alone | Place::Whole => "",
            Place::Inner => "\u{251c} ",
            Place::Last => "\u{2514} ",
        }
    }
}

/// A line of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// A process, or a run as if it were one under its launcher's number.
    pub process: Governed,
    /// Which of these, and where.
    pub place: Place,
}

/// The processes by their runs, each run of several below a line of its own; in the order of the
/// first process of each.
pub fn lines(processes: Vec<Governed>) -> Vec<Line> {
    let mut runs: Vec<Vec<Governed>> = Vec::new();
    for process in processes {
        let directory = process.socket.parent();
        let is_of_it = |run: &&mut Vec<Governed>| run[0].socket.parent() == directory;
        match runs
            .iter_mut()
            .find(is_of_it)
            .filter(|_| directory.is_some())
        {
            Some(run) => run.push(process),
            None => runs.push(vec![process]),
        }
    }
    runs.into_iter().flat_map(lines_of_run).collect()
}

fn lines_of_run(processes: Vec<Governed>) -> Vec<Line> {
    let mut lines = Vec::new();
    let count = processes.len();
    if count > 1 {
        let process = whole(&processes);
        let place = Place::Whole;
        lines.push(Line { process, place });
    }
    for (index, process) in processes.into_iter().enumerate() {
        let place = match index + 1 {
            _ if count == 1 => Place::Alone,
            last if last == count => Place::Last,
            _ => Place::Inner,
        };
        lines.push(Line { process, place });
    }
    lines
}

/// A run's processes as if they were one under its launcher's number.
fn whole(processes: &[Governed]) -> Governed {
    let mut statistics = together(processes);
    statistics.pid = processes[0].run().unwrap_or(0);
    Governed {
        pid: statistics.pid,
        socket: processes[0].socket.clone(),
        reading: Reading {
            statistics,
            ..Reading::default()
        },
    }
}

/// What the processes of a run have together. Of the times of their faults, the longest of each
/// kind: no fewer of all faults than of any process's were served by then.
pub fn together(processes: &[Governed]) -> Statistics {
    let all = || processes.iter().map(|process| &process.reading.statistics);
    let sum = |of: fn(&Statistics) -> u64| all().map(of).fold(0, u64::saturating_add);
    let seconds = |of: fn(&Statistics) -> f64| all().map(of).fold(0.0, |sum, one| sum + one);
    let longest = |of: fn(&Latency) -> u64| {
        let times = all().map(|s| of(&s.fault_latency_ns));
        times.max().unwrap_or(0)
    };
    let stored = sum(|s| s.store_bytes) as f64;
    let ratios = all().map(|s| s.compression_ratio * s.store_bytes as f64);
    Statistics {
        command: format!("{} processes", processes.len()),
        budget_bytes: bound_of(processes),
        run_budget_bytes: all().map(|s| s.run_budget_bytes).max().unwrap_or(0),
        resident_bytes: sum(|s| s.resident_bytes),
        managed_bytes: sum(|s| s.managed_bytes),
        store_bytes: sum(|s| s.store_bytes),
        store_pages: sum(|s| s.store_pages),
        compression_ratio: ratios.fold(0.0, |sum, one| sum + one) / stored.max(1.0),
        memory_budget_bytes: sum(|s| s.memory_budget_bytes),
        memory_bytes: sum(|s| s.memory_bytes),
        other_bytes: sum(|s| s.other_bytes),
        faults: sum(|s| s.faults),
        faults_waited: sum(|s| s.faults_waited),
        faults_taken_back: sum(|s| s.faults_taken_back),
        zero_faults: sum(|s| s.zero_faults),
        zero_fills: sum(|s| s.zero_fills),
        fetches: sum(|s| s.fetches),
        fetched_pages: sum(|s| s.fetched_pages),
        prefetched_pages: sum(|s| s.prefetched_pages),
        prefetch_hits: sum(|s| s.prefetch_hits),
        block_pages: sum(|s| s.block_pages),
        pointer_pages: sum(|s| s.pointer_pages),
        evictions: sum(|s| s.evictions),
        clean_drops: sum(|s| s.clean_drops),
        writebacks: sum(|s| s.writebacks),
        same_filled: sum(|s| s.same_filled),
        errors: sum(|s| s.errors),
        fault_latency_ns: Latency {
            mean: longest(|l| l.mean),
            p50: longest(|l| l.p50),
            p90: longest(|l| l.p90),
            p99: longest(|l| l.p99),
            p999: longest(|l| l.p999),
            max: longest(|l| l.max),
        },
        stall_seconds: seconds(|s| s.stall_seconds),
        refault_seconds: seconds(|s| s.refault_seconds),
        cpu_seconds: seconds(|s| s.cpu_seconds),
        fault_thread_cpu_seconds: seconds(|s| s.fault_thread_cpu_seconds),
        evictor_cpu_seconds: seconds(|s| s.evictor_cpu_seconds),
        wall_seconds: all().map(|s| s.wall_seconds).fold(0.0, f64::max),
        ..Statistics::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(run: u32, pid: u32) -> Governed {
        let statistics = Statistics {
            pid,
            resident_bytes: 10,
            run_budget_bytes: 100,
            faults: 7,
            refault_seconds: 0.5,
            wall_seconds: f64::from(pid),
            ..Statistics::default()
        };
        Governed {
            pid,
            socket: format!("/run/pagetide/run-{run}/{pid}.sock").into(),
            reading: Reading {
                statistics,
                ..Reading::default()
            },
        }
    }

    #[test]
    fn a_run_of_several_stands_above_its_processes() {
        let all = vec![
            process(3, 4),
            process(5, 6),
            process(3, 7),
            process(8, 9),
            process(5, 10),
            process(3, 11),
        ];
        let lines = lines(all);
        let found: Vec<(u32, Place)> = (lines.iter())
            .map(|line| (line.process.pid, line.place))
            .collect();
        assert_eq!(
            found,
            [
                (3, Place::Whole),
                (4, Place::Inner),
                (7, Place::Inner),
                (11, Place::Last),
                (5, Place::Whole),
                (6, Place::Inner),
                (10, Place::Last),
                (9, Place::Alone),
            ]
        );
        let s = &lines[0].process.reading.statistics;
        assert_eq!(
            (s.resident_bytes, s.run_budget_bytes, s.budget_bytes),
            (30, 100, 100)
        );
        assert_eq!(
            (s.faults, s.refault_seconds, s.wall_seconds),
            (21, 1.5, 11.0)
        );
        assert_eq!(s.command, "3 processes");
        assert_eq!(lines[0].process.run(), Some(3));
    }
}
