//! `restore`: how soon a snapshot's memory can be used, how soon all of it is there, and what a
//! recorded working set saves.
use std::io::{Error, Result, Write as _};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use clap::Args;
use pagetide::track::read_region_with;
use pagetide::track::snapshot::image::Image;
use pagetide::track::{LazyPlan, restore as restore_lazily};
use serde::Serialize;

use super::memory::{HugePages, Plain, touch};
use super::{Usage, at_least_one, median, microseconds, scratch_file, size};
use crate::content::Random;
use crate::machine::Machine;

const WORKING_SET_PAGES: usize = 20_000;

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Memory in the snapshot
    #[arg(long, default_value = "1G", value_parser = size)]
    pub size: usize,
    /// Pages in the working set: at random places, touched in random order [default: 20000, or all
    /// if there are fewer]
    #[arg(long, value_parser = at_least_one())]
    pub working_set: Option<usize>,
    /// Times each is measured, in turns; medians count
    #[arg(long, default_value_t = 5, value_parser = at_least_one())]
    pub runs: usize,
    /// Where the file is written, and removed again
    #[arg(long, default_value = ".")]
    pub directory: PathBuf,
    /// Print JSON, in microseconds
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Figures {
    size_bytes: usize,
    working_set_pages: usize,
    eager_us: f64,
    lazy_first_access_us: f64,
    lazy_whole_us: f64,
    faults_without_working_set: f64,
    faults_with_working_set: f64,
    touch_without_us: f64,
    touch_with_us: f64,
}

/// Measures and prints. The file stays: call [`crate::undo::all`] afterwards, whatever came out.
pub fn restore(plan: &Plan) -> Result<()> {
    let pages = plan.size / 4096;
    let working_set = plan.working_set.unwrap_or(WORKING_SET_PAGES.min(pages));
    if working_set > pages {
        return Err(Usage::error(format!(
            "--working-set: {working_set} pages cannot be had of {} bytes, which are {pages}; \
             expected 1 to {pages}, or a larger --size",
            plan.size
        )));
    }
    let path = scratch_file(&plan.directory)?;
    let memory = Plain::new(plan.size, HugePages::Never)?;
    memory.populate(1);
    memory
        .write_file(&path)
        .map_err(|error| Error::other(format!("the snapshot could not be written: {error}")))?;
    drop(memory);
    let f = measure(plan, working_set, &path)?;
    let machine = Machine::here();
    let text = if plan.json {
        serde_json::to_string(&f)? + "\n"
    } else {
        format!(
            "restoring {} bytes, half compressible, file in the page cache, medians of {} runs; \
             {}, {} cores, Linux {}\n\
             eager: {:.1} ms\nlazy: first access after {:.2} ms ({:.4} of eager), whole after \
             {:.1} ms ({:.2} of eager)\n\
             {} pages touched: {:.0} faults in {:.1} ms; with the recorded working set {:.0} \
             faults ({:.4}) in {:.1} ms\n",
            f.size_bytes,
            plan.runs,
            machine.processor,
            machine.cores,
            machine.kernel,
            f.eager_us / 1e3,
            f.lazy_first_access_us / 1e3,
            f.lazy_first_access_us / f.eager_us,
            f.lazy_whole_us / 1e3,
            f.lazy_whole_us / f.eager_us,
            f.working_set_pages,
            f.faults_without_working_set,
            f.touch_without_us / 1e3,
            f.faults_with_working_set,
            f.faults_with_working_set / f.faults_without_working_set,
            f.touch_with_us / 1e3,
        )
    };
    std::io::stdout().write_all(text.as_bytes())
}

fn measure(plan: &Plan, working_set: usize, path: &std::path::Path) -> Result<Figures> {
    let pages = (plan.size / 4096) as u64;
    let mut random = Random::new(99);
    let places: Vec<usize> = (0..working_set)
        .map(|_| random.below(pages) as usize)
        .collect();
    let open = || Image::open(path).map_err(Error::other);
    let lazily = |plan: LazyPlan| restore_lazily(open()?, plan).map_err(Error::other);
    let recording = lazily(LazyPlan::default().record())?;
    places.iter().for_each(|page| _ = touch(&recording, *page));
    let set = recording.working_set();
    drop(recording);
    let mut columns: [Vec<f64>; 7] = Default::default();
    for _ in 0..plan.runs {
        let mut into = Plain::new(plan.size, HugePages::Never)?;
        let begun = Instant::now();
        read_region_with(&open()?, "data", into.bytes_mut(), 0, &AtomicU64::new(0))
            .map_err(Error::other)?;
        columns[0].push(microseconds(begun.elapsed()));
        drop(into);
        let begun = Instant::now();
        let restored = lazily(LazyPlan::default())?;
        touch(&restored, pages as usize / 2);
        columns[1].push(microseconds(begun.elapsed()));
        restored.wait().map_err(Error::other)?;
        columns[2].push(microseconds(begun.elapsed()));
        drop(restored);
        for (plan, column) in [
            (LazyPlan::default(), 3),
            (LazyPlan::default().replay(set.clone()), 4),
        ] {
            let restored = lazily(plan.without_background())?;
            let begun = Instant::now();
            places.iter().for_each(|page| _ = touch(&restored, *page));
            columns[column + 2].push(microseconds(begun.elapsed()));
            columns[column].push(restored.faults() as f64);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let m = columns.map(|column| median(&column));
    Ok(Figures {
        size_bytes: plan.size,
        working_set_pages: places.len(),
        eager_us: m[0],
        lazy_first_access_us: m[1],
        lazy_whole_us: m[2],
        faults_without_working_set: m[3],
        faults_with_working_set: m[4],
        touch_without_us: m[5],
        touch_with_us: m[6],
    })
}
