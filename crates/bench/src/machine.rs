//! The machine a measurement was made on: a number without it says nothing.
use std::fmt;

use serde::Serialize;

use crate::sysfs;

/// What a reader needs to judge a number.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Machine {
    pub kernel: String,
    pub processor: String,
    pub cores: usize,
    pub memory_bytes: u64,
    pub clock_source: String,
    /// The system's setting for transparent huge pages; the workers turn them off for themselves.
    pub thp: String,
    pub swap_before: bool,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine {
            processor,
            cores,
            kernel,
            thp,
            clock_source,
            ..
        } = self;
        write!(
            f,
            "{processor}, {cores} cores, Linux {kernel}, THP {thp}, clock {clock_source}"
        )
    }
}

impl Machine {
    /// This machine, now.
    pub fn here() -> Machine {
        let known = |path: &str| sysfs::read(path).unwrap_or_else(|_| "unknown".to_owned());
        let chosen = |text: String| {
            text.split(['[', ']'])
                .nth(1)
                .map(str::to_owned)
                .unwrap_or(text)
        };
        let after_colon = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let (processor, memory) = (known("/proc/cpuinfo"), known("/proc/meminfo"));
        let memory = after_colon(&memory, "MemTotal")
            .and_then(|kib| kib.split(' ').next()?.parse::<u64>().ok());
        Machine {
            kernel: known("/proc/sys/kernel/osrelease"),
            processor: after_colon(&processor, "model name")
                .unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory.unwrap_or(0) * 1024,
            clock_source: known("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            thp: chosen(known("/sys/kernel/mm/transparent_hugepage/enabled")),
            swap_before: known("/proc/swaps").lines().count() > 1,
        }
    }
}
