//! Sampling the ledgers of a run while it goes on, in bounded memory.
use std::path::Path;
use std::time::{Duration, Instant};

use crate::governed::{bound_of, is_alive, recorded};

/// Time between two samples.
pub const INTERVAL: Duration = Duration::from_millis(50);
/// Samples kept; at this number neighbours are merged, so a long run is kept more coarsely, never
/// cut.
const SAMPLES_MAX: usize = 8192;

/// The state of a run at one time, all its living processes together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Since the run began.
    pub seconds: f64,
    /// Bytes resident.
    pub resident_bytes: u64,
    /// Bytes of memory in all: resident, in the store's memory, and other.
    pub memory_bytes: u64,
    /// What bounds the processes together: the budget of the run, or the sum of their own.
    pub budget_bytes: u64,
    /// Faults since the sample before, a second.
    pub faults_per_second: f64,
    /// Processes alive.
    pub processes: usize,
}

/// The samples of a run.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    samples: Vec<Sample>,
    /// Faults of all processes when the open sample began, and when that was.
    faults_before: u64,
    seconds_before: f64,
    open: Option<Sample>,
    /// Readings merged into the open sample, and how many make one.
    merged: usize,
    per_sample: usize,
    command: String,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            began: Instant::now(),
            samples: Vec::new(),
            faults_before: 0,
            seconds_before: 0.0,
            open: None,
            merged: 0,
            per_sample: 1,
            command: String::new(),
        }
    }
}

impl Recorder {
    /// Reads the ledgers of a run directory.
    pub fn sample(&mut self, run: &Path) {
        let mut reading = Sample {
            seconds: self.began.elapsed().as_secs_f64(),
            ..Sample::default()
        };
        let mut faults = 0;
        let all = recorded(run);
        let mut living = Vec::new();
        for (index, process) in all.iter().enumerate() {
            let statistics = &process.reading.statistics;
            faults += statistics.faults;
            // A later image of the same process has taken this one's place.
            let replaced = all[index + 1..]
                .iter()
                .any(|later| later.pid == process.pid);
            if !replaced && is_alive(process) {
                reading.resident_bytes += statistics.resident_bytes;
                reading.memory_bytes += statistics.memory_bytes;
                living.push(process);
            }
        }
        reading.budget_bytes = bound_of(living.iter().copied());
        reading.processes = living.len();
        if let Some(first) = all.first() {
            self.command.clone_from(&first.reading.statistics.command);
        }
        // Before the first and between two processes there is nothing to draw.
        if reading.processes > 0 {
            self.add(reading, faults);
        }
    }

    fn add(&mut self, reading: Sample, faults: u64) {
        let open = self.open.get_or_insert(reading);
        open.seconds = reading.seconds;
        open.resident_bytes = open.resident_bytes.max(reading.resident_bytes);
        open.memory_bytes = open.memory_bytes.max(reading.memory_bytes);
        open.budget_bytes = reading.budget_bytes;
        open.processes = open.processes.max(reading.processes);
        self.merged += 1;
        if self.merged < self.per_sample {
            return;
        }
        let span = (open.seconds - self.seconds_before).max(1e-3);
        open.faults_per_second = faults.saturating_sub(self.faults_before) as f64 / span;
        (self.faults_before, self.seconds_before, self.merged) = (faults, open.seconds, 0);
        self.samples.extend(self.open.take());
        if self.samples.len() >= SAMPLES_MAX {
            self.samples = self.samples.chunks(2).map(merge).collect();
            self.per_sample *= 2;
        }
    }

    /// The samples so far, in order of time.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The command of the first process.
    pub fn command(&self) -> &str {
        &self.command
    }
}

fn merge(pair: &[Sample]) -> Sample {
    let last = pair[pair.len() - 1];
    Sample {
        seconds: last.seconds,
        resident_bytes: pair.iter().map(|s| s.resident_bytes).max().unwrap_or(0),
        memory_bytes: pair.iter().map(|s| s.memory_bytes).max().unwrap_or(0),
        budget_bytes: last.budget_bytes,
        faults_per_second: pair.iter().map(|s| s.faults_per_second).sum::<f64>()
            / pair.len() as f64,
        processes: pair.iter().map(|s| s.processes).max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(seconds: f64) -> Sample {
        Sample {
            seconds,
            resident_bytes: 4096,
            memory_bytes: 8192,
            budget_bytes: 8192,
            faults_per_second: 0.0,
            processes: 1,
        }
    }

    #[test]
    fn rates_are_per_second_between_samples() {
        let mut recorder = Recorder::default();
        recorder.add(reading(0.5), 50);
        recorder.add(reading(1.0), 150);
        let rates: Vec<f64> = recorder
            .samples()
            .iter()
            .map(|s| s.faults_per_second)
            .collect();
        assert_eq!(rates, [100.0, 200.0]);
    }

    #[test]
    fn a_long_run_is_kept_whole_in_bounded_memory() {
        let mut recorder = Recorder::default();
        for n in 1..=100_000u64 {
            let peak = if n == 77_777 { 1 << 30 } else { 4096 };
            recorder.add(
                Sample {
                    resident_bytes: peak,
                    ..reading(n as f64)
                },
                n * 10,
            );
        }
        let samples = recorder.samples();
        assert!(samples.len() < SAMPLES_MAX && samples.len() > SAMPLES_MAX / 4);
        assert!(samples.last().unwrap().seconds > 99_900.0);
        assert_eq!(
            samples.iter().map(|s| s.resident_bytes).max(),
            Some(1 << 30)
        );
        assert!(
            samples
                .iter()
                .all(|s| (s.faults_per_second - 10.0).abs() < 1e-6)
        );
    }
}
