//! What processes that do not end are doing, for the message of the test that waited for them.
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::fs::{read_dir, read_to_string};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::pagetide::number;
use super::patience::scaled;

/// How far apart the two looks are: who has run in between is busy, not stuck.
const APART: Duration = Duration::from_millis(500);

/// The threads of process group `group`, as they are now and a moment later, and what the pager
/// says of the processes.
pub fn describe_group(group: u32) -> String {
    let mut text = String::new();
    let members = members(group);
    for look in ["now", "a moment later"] {
        let _ = writeln!(text, "--- {look} ---");
        for pid in &members {
            describe(*pid, &mut text);
        }
        sleep(APART);
    }
    for pid in &members {
        text.push_str(&pager_says(*pid, &[]));
    }
    text
}

/// What `pagetide stat` says of a process; nothing if that is not governed or does not answer soon.
fn pager_says(pid: u32, options: &[&str]) -> String {
    let Ok(pagetide) = super::pagetide::binary() else {
        return String::new();
    };
    let said = Command::new("timeout")
        .arg(scaled(Duration::from_secs(5)).as_secs().max(1).to_string())
        .arg(pagetide)
        .arg("stat")
        .args(options)
        .arg(pid.to_string())
        .output();
    match said {
        Ok(said) if said.status.success() => String::from_utf8_lossy(&said.stdout).into_owned(),
        _ => String::new(),
    }
}

/// What the pager has done for a group: faults, fetches and evictions.
const COUNTERS: [&str; 3] = ["faults", "fetches", "evictions"];

/// What a group of processes had done at one moment.
struct Look {
    at: Instant,
    run_ns: u64,
    /// By process; one that does not answer in time is not among them.
    counters: HashMap<u32, [u64; COUNTERS.len()]>,
}

impl Look {
    fn at_group(group: u32) -> Look {
        let (mut run_ns, mut counters) = (0, HashMap::new());
        let at = Instant::now();
        for pid in members(group) {
            let tasks = read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
            for task in tasks.flatten() {
                let times = read_to_string(task.path().join("schedstat")).unwrap_or_default();
                let first = times.split(' ').next().and_then(|word| word.parse().ok());
                run_ns += first.unwrap_or(0u64);
            }
            let said = pager_says(pid, &["--json"]);
            if !said.is_empty() {
                let of = |name| number(&said, name).unwrap_or(0.0) as u64;
                counters.insert(pid, COUNTERS.map(of));
            }
        }
        Look {
            at,
            run_ns,
            counters,
        }
    }
}

/// What a group of processes did between two looks some seconds apart.
pub struct Progress {
    seconds: f64,
    run_seconds: f64,
    counters: [u64; COUNTERS.len()],
}

impl Progress {
    /// Looks at the group twice.
    pub fn of_group(group: u32) -> Progress {
        let before = Look::at_group(group);
        sleep(scaled(6 * APART));
        let after = Look::at_group(group);
        let mut counters = [0; COUNTERS.len()];
        for (pid, now) in &after.counters {
            // Of one that was not heard of before, nothing is known.
            let then = before.counters.get(pid).unwrap_or(now);
            for (index, counter) in counters.iter_mut().enumerate() {
                *counter += now[index].saturating_sub(then[index]);
            }
        }
        Progress {
            seconds: (after.at - before.at).as_secs_f64(),
            run_seconds: after.run_ns.saturating_sub(before.run_ns) as f64 / 1e9,
            counters,
        }
    }

    /// Whether it was slow, not stuck. The pager's own threads look around all the time: that is no
    /// more than a quarter of a processor.
    pub fn is_moving(&self) -> bool {
        self.counters.iter().any(|counter| *counter > 0) || self.run_seconds > self.seconds / 4.0
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.is_moving() {
            true => "slow: counters still moved",
            false => "stuck: no counter moved",
        };
        write!(
            f,
            "{verdict} (in {:.1} s: ran for {:.1} s",
            self.seconds, self.run_seconds
        )?;
        for (counter, name) in self.counters.iter().zip(COUNTERS) {
            write!(f, ", {counter} {name}")?;
        }
        f.write_str(")")
    }
}

fn members(group: u32) -> Vec<u32> {
    let entries = read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let stat = read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        field(&stat, 2) == Some(group.to_string().as_str())
    })
    .collect()
}

/// Field `index` after the name, which may hold anything.
fn field(stat: &str, index: usize) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(index)
}

fn describe(pid: u32, text: &mut String) {
    let tasks = read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    for task in tasks.flatten() {
        let of = |name: &str| read_to_string(task.path().join(name)).unwrap_or_default();
        let (stat, call) = (of("stat"), of("syscall"));
        let mut call = call.split_ascii_whitespace();
        let (number, first) = (call.next(), call.next());
        let _ = writeln!(
            text,
            "{pid}/{} {}: state {} on processor {}, in {} ({}{}), ns run, waited, turns: {}",
            task.file_name().to_string_lossy(),
            of("comm").trim(),
            field(&stat, 0).unwrap_or("gone"),
            field(&stat, 36).unwrap_or("?"),
            of("wchan"),
            number.unwrap_or_default(),
            first.map_or(String::new(), |address| place(pid, address)),
            of("schedstat").trim(),
        );
    }
}

/// Where the first argument of a system call points to, such as a futex: a file and the offset in
/// its mapping there, which tells a static; empty if it is no address.
fn place(pid: u32, address: &str) -> String {
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let maps = read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Some(address) = number(address) else {
        return String::new();
    };
    let mut base = (String::new(), 0);
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let range = fields.next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range.and_then(|(a, b)| Some((number(a)?, number(b)?))) else {
            continue;
        };
        // Its .bss follows a library's last mapping without a name.
        if let Some(name) = fields.nth(4).filter(|name| **name != base.0) {
            base = (name.to_owned(), start);
        }
        if (start..end).contains(&address) {
            return format!(" on {address:#x}, {} + {:#x}", base.0, address - base.1);
        }
    }
    String::new()
}
