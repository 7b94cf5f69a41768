//! Runs each program in its environments, in turns.
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::catalogue::Program;
use super::findings::Findings;
use super::inputs::{Ready, prepare};
use super::kernel_swap::KernelSwap;
use super::plan::{Bound, Plan};
use super::relief::Room;
use super::report;
use super::results::{Measured, Ratio, Results, Row, Side, Summary};
use super::run::{Environment, Home};
use super::tools::Tools;
use super::watch::Seen;
use crate::arguments::Usage;
use crate::launch::find_command;
use crate::machine::Machine;
use crate::report::{mib, progress, say};
use crate::runner::{Systems, in_turns};
use crate::undo;

/// Does what the plan says and prints it; says on stderr what cannot be measured.
pub fn run(plan: &Plan) -> Result<()> {
    if plan.list {
        return std::io::stdout().write_all(report::list(plan.catalogue()).as_bytes());
    }
    let programs = chosen(plan.catalogue(), &plan.only)?;
    undo::arm()?;
    // Before a measurement of an hour, not after it.
    let to_stdout = plan.json.as_deref() == Some(Path::new("-"));
    let json = plan.json.as_deref().filter(|_| !to_stdout);
    let json = json.map(create).transpose()?;
    let plot = plan.plot.as_deref().map(create).transpose()?;
    let mut bench = Bench::start(plan)?;
    let measured = bench.all(&programs)?;
    let results = bench.results(measured);
    let line = serde_json::to_string(&results)? + "\n";
    let text = if to_stdout {
        &line
    } else {
        &report::text(&results)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    if let Some(mut file) = json {
        file.write_all(line.as_bytes())?;
    }
    if let Some(mut file) = plot {
        file.write_all(report::draw(&results).as_bytes())?;
    }
    match results.programs.is_empty() {
        true => Err(Error::other("nothing was measured; see above why")),
        false => Ok(()),
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| {
        let text = format!("{} cannot be written: {error}", path.display());
        Error::new(error.kind(), text)
    })
}

/// Those of `all` that have these names, or all.
fn chosen(all: &'static [Program], names: &[String]) -> Result<Vec<&'static Program>> {
    if let Some(unknown) = names
        .iter()
        .find(|name| all.iter().all(|p| p.name != **name))
    {
        let known = all.iter().map(|program| program.name);
        let known = known.collect::<Vec<_>>().join(", ");
        return Err(Usage::error(format!(
            "--only: there is no program '{unknown}'; there are {known}"
        )));
    }
    let wanted = |program: &&Program| names.is_empty() || names.iter().any(|n| n == program.name);
    Ok(all.iter().filter(wanted).collect())
}

struct Bench<'a> {
    plan: &'a Plan,
    tools: Tools,
    pagetide: PathBuf,
    directory: PathBuf,
    swap: Option<Rc<KernelSwap>>,
    not_measured: Vec<(String, String)>,
    machine: Machine,
}

impl<'a> Bench<'a> {
    fn start(plan: &'a Plan) -> Result<Bench<'a>> {
        let mut bench = Bench {
            plan,
            tools: Tools::new(plan)?,
            pagetide: find_command(plan.pagetide.as_deref())?,
            directory: directory(&plan.directory)?,
            swap: None,
            not_measured: Vec::new(),
            machine: Machine::here(),
        };
        let wanted = plan.share.iter().any(|bound| *bound != Bound::Fits) && !plan.no_swap;
        if wanted {
            match KernelSwap::start(!plan.plain_swap) {
                Ok(swap) => bench.swap = Some(Rc::new(swap)),
                Err(error) => bench.skip("swap", &error)?,
            }
        }
        Ok(bench)
    }

    /// Notes that something is not measured, unless everything is ending.
    fn skip(&mut self, what: &str, error: &Error) -> Result<()> {
        if undo::has_begun() {
            return Err(Error::new(error.kind(), error.to_string()));
        }
        say(&format!("NOT MEASURED: {what}: {error}"));
        self.not_measured.push((what.to_owned(), error.to_string()));
        Ok(())
    }

    fn all(&mut self, programs: &[&'static Program]) -> Result<Vec<Measured>> {
        let mut all = Vec::new();
        for program in programs {
            match self.measure(program) {
                Ok(measured) => all.push(measured),
                Err(error) => self.skip(program.name, &error)?,
            }
            // Inputs are large.
            std::fs::remove_dir_all(self.directory.join(program.name)).ok();
        }
        Ok(all)
    }

    fn measure(&self, program: &'static Program) -> Result<Measured> {
        progress(&format!("{}: making it ready", program.name));
        let python = self.tools.meet(program)?;
        let ready = prepare(program, self.plan.scale, &python, &self.directory)?;
        let (expected, seen) = self.seen_alone(program, &ready)?;
        let keep = |_: &str, _, found: Result<Findings>| found.map(Some);
        let measured = in_turns(
            self.environments(program, seen.peak_bytes),
            self.plan.runs,
            |_| ready.clone(),
            keep,
        )?;
        let mut sides = measured
            .into_iter()
            .map(|system| Side::new(system.runs, &expected));
        let missing = || Error::other("an environment has no runs");
        let alone = sides.next().ok_or_else(missing)?;
        if let Some(failure) = alone.failures.first() {
            return Err(Error::other(format!("alone: {}", failure.text())));
        }
        let measuring = match self.plan.measure {
            true => Some(sides.next().ok_or_else(missing)?),
            false => None,
        };
        let following = match self.plan.auto {
            Some(_) => Some(sides.next().ok_or_else(missing)?),
            None => None,
        };
        let mut rows = Vec::new();
        for share in &self.plan.share {
            let pagetide = sides.next().ok_or_else(missing)?;
            let swap = match self.swaps(*share) {
                true => Some(sides.next().ok_or_else(missing)?),
                false => None,
            };
            let theirs = match (share, &swap) {
                (Bound::Fits, _) => Some(&alone),
                (_, swap) => swap.as_ref(),
            };
            rows.push(Row {
                share: *share,
                resident_bytes: share.of(seen.peak_bytes),
                ratio: theirs.map_or_else(Ratio::default, |side| Ratio::of(&pagetide, side)),
                pagetide,
                swap,
            });
        }
        Ok(Measured {
            name: program.name,
            what: program.what,
            peak_bytes: seen.peak_bytes,
            alone,
            measuring,
            following,
            mean_bytes: seen.mean_bytes,
            rows,
        })
    }

    /// What it prints and the memory it takes, from a run by itself whose time does not count; it
    /// also brings the program's files into the page cache.
    fn seen_alone(&self, program: &Program, ready: &Ready) -> Result<(String, Seen)> {
        let name = format!("{} for its peak", program.name);
        progress(&name);
        let alone = Environment::new(name, Home::Alone, self.plan.timeout);
        let (findings, seen) = alone.run_once(ready, Some(Duration::from_millis(1)))?;
        if let Some(failure) = &findings.failure {
            return Err(Error::other(format!("alone: {}", failure.text())));
        }
        if seen.peak_bytes == 0 {
            return Err(Error::other("it was over before its memory was seen"));
        }
        let peak = mib(seen.peak_bytes as f64);
        say(&format!("{}: peak {peak}", program.name));
        Ok((findings.output, seen))
    }

    fn swaps(&self, share: Bound) -> bool {
        self.swap.is_some() && share != Bound::Fits
    }

    /// Alone, then for each bound Pagetide and, if it is measured, swap.
    fn environments(&self, program: &Program, peak: u64) -> Systems<'static, Ready, Findings> {
        let new = |name: &str, home| -> Box<Environment> {
            let name = format!("{} {name}", program.name);
            Box::new(Environment::new(name, home, self.plan.timeout))
        };
        let mut all: Systems<'static, _, _> = vec![new("alone", Home::Alone)];
        if self.plan.measure {
            let home = Home::Measuring(self.pagetide.clone(), Bound::Fits.of(peak));
            all.push(new("measured", home));
        }
        if let Some(percent) = self.plan.auto {
            let home = Home::Following(self.pagetide.clone(), percent);
            all.push(new("with a budget that follows it", home));
        }
        for share in &self.plan.share {
            let budget = share.of(peak);
            let name = format!("under pagetide, {share}");
            all.push(new(&name, Home::Pagetide(self.pagetide.clone(), budget)));
            if let Some(swap) = self.swap.as_ref().filter(|_| self.swaps(*share)) {
                let page_tables = peak / 512;
                let room = Room {
                    anonymous: budget,
                    besides: self.plan.allowance + page_tables,
                };
                let name = format!("under swap, {share}");
                all.push(new(&name, Home::Swap(Rc::clone(swap), room)));
            }
        }
        all
    }

    fn results(self, programs: Vec<Measured>) -> Results {
        let shares = self.plan.share.iter().enumerate();
        let summary = shares.map(|(at, share)| Summary::of(&programs, at, *share));
        Results {
            machine: self.machine,
            runs: self.plan.runs,
            scale: self.plan.scale,
            auto_percent: self.plan.auto,
            allowance_bytes: self.plan.allowance,
            summary: summary.collect(),
            not_measured: self.not_measured,
            programs,
        }
    }
}

/// A directory for the inputs in `parent`, removed at the end.
fn directory(parent: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(parent)?;
    let path = path.join(format!("pagetide-bench-programs-{}", std::process::id()));
    let removed = path.clone();
    undo::change(
        &format!("directory {}", path.display()),
        || std::fs::create_dir(&path),
        move || match std::fs::remove_dir_all(&removed) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    )
    .map_err(|error| Usage::error(format!("--directory: {}: {error}", path.display())))?;
    Ok(path)
}
