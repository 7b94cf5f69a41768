//! What processes that do not end are doing, for the message of the test that waited for them.
use std::fmt::Write;
use std::fs::{read_dir, read_to_string};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// How far apart the two looks are: who has run in between is busy, not stuck.
const APART: Duration = Duration::from_millis(500);

/// The threads of process group `group`, as they are now and a moment later, and what the pager says of the processes.
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
        let Ok(pagetide) = super::pagetide::binary() else {
            continue;
        };
        let mut command = Command::new("timeout");
        let said = command
            .arg("5")
            .arg(pagetide)
            .args(["stat", &pid.to_string()])
            .output();
        if let Ok(said) = said
            && said.status.success()
        {
            text.push_str(&String::from_utf8_lossy(&said.stdout));
        }
    }
    text
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
        let stat = of("stat");
        let _ = writeln!(
            text,
            "{pid}/{} {}: state {} on processor {}, in {} ({}), ns run, waited, turns: {}",
            task.file_name().to_string_lossy(),
            of("comm").trim(),
            field(&stat, 0).unwrap_or("gone"),
            field(&stat, 36).unwrap_or("?"),
            of("wchan"),
            of("syscall").split(' ').next().unwrap_or_default().trim(),
            of("schedstat").trim(),
        );
    }
}
