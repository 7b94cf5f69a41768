//! Measures every system that can be had here.
use std::fs::File;
use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};

use super::cost::{Cost, cost};
use super::plan::Plan;
use super::report::{self, Row};
use super::servers::{self, Memcached, Valkey, had};
use super::systems::{Places, SCAN, SCAN_SIGNAL};
use crate::launch::find_command;
use crate::paging::task::Task;
use crate::report::say;
use crate::runner::in_turns;
use crate::undo;

/// Does what the plan says and prints it; says on stderr what cannot be measured.
pub fn run(plan: &Plan) -> Result<()> {
    undo::arm()?;
    let to_stdout = |path: &&PathBuf| path.as_os_str() == "-";
    // Before a measurement of many minutes, not after it.
    let create = |path: &PathBuf| {
        File::create(path).map_err(|error| {
            let text = format!("{} cannot be written: {error}", path.display());
            Error::new(error.kind(), text)
        })
    };
    let json = plan.json.as_ref();
    let file = json
        .filter(|path| !to_stdout(path))
        .map(create)
        .transpose()?;
    let plot = plan.plot.as_ref().map(create).transpose()?;
    let directory = servers::directory(&plan.directory)?;
    let (rows, cost) = measure(plan, &directory)?;
    let lines = rows
        .iter()
        .map(|row| Ok(serde_json::to_string(row)? + "\n"));
    let lines = lines.collect::<Result<String>>()?;
    if let Some(mut file) = file {
        file.write_all(lines.as_bytes())?;
    }
    if let Some(mut plot) = plot {
        plot.write_all(report::draw(&rows).as_bytes())?;
    }
    let text = match json.is_some_and(|path| to_stdout(&path)) {
        true => lines,
        false => report::text(plan, &rows, cost),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    match rows.is_empty() {
        true => Err(Error::other(
            "nothing was measured: what stopped each system is said above, and `--only TEXT` must \
             be a part of a system's name",
        )),
        false => Ok(()),
    }
}

fn measure(plan: &Plan, directory: &Path) -> Result<(Vec<Row>, Option<Cost>)> {
    let valkey = had("valkey", Valkey::start(directory, None));
    let beside = servers::last_processor().and_then(|cpu| Valkey::start(directory, Some(cpu)));
    let beside = had("valkey on one processor", beside);
    let memcached = had("memcached", Memcached::start(plan.size.saturating_mul(2)));
    let pagetide = had("pagetide run", find_command(plan.pagetide.as_deref()));
    let places = Places {
        directory,
        pagetide: pagetide.as_deref(),
        valkey: valkey.as_ref(),
        beside: beside.as_ref(),
        memcached: memcached.as_ref(),
    };
    let mut systems = places.systems();
    if let Some(text) = &plan.only {
        systems.retain(|system| system.name().contains(text.as_str()));
    }
    let work = |turn| Task {
        seed: 1 + turn as u64,
        warmup: plan.accesses / 4,
        ..Task::random_reads(plan.size, plan.resident, plan.accesses)
    };
    let measured = in_turns(systems, plan.runs, work, |name, _, found| match found {
        Ok(findings) => {
            let scans = [SCAN, SCAN_SIGNAL].contains(&name);
            Ok(Some(Row::of(name, &findings, scans)))
        }
        Err(error) if undo::has_begun() => Err(error),
        Err(error) => {
            say(&format!("NOT MEASURED: {name}: {error}"));
            Ok(None)
        }
    })?;
    let cost = match valkey.as_ref().filter(|_| plan.only.is_none()) {
        None => None,
        Some(valkey) => Some(cost(&valkey.by_socket(""))?),
    };
    let rows = measured.into_iter().filter_map(|mut system| {
        system.runs.sort_by(|a, b| a.mean_us.total_cmp(&b.mean_us));
        let middle = system.runs.len() / 2;
        system.runs.into_iter().nth(middle)
    });
    Ok((rows.collect(), cost))
}
