//! `restore`: how soon a snapshot's memory can be used, how soon all of it is there, and what a
//! recorded working set saves.
#![allow(unsafe_code)] // reads restored memory through raw pointers, as any program does
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use clap::Args;
use pagetide::track::snapshot::image::Image;
use pagetide::track::{
    LazyPlan, Restored, WorkingSet, read_region_with, restore as restore_lazily,
};
use serde::{Deserialize, Serialize};

use super::scratch::scratch_file;
use crate::arguments::{Usage, at_least_one, size};
use crate::content::{PAGE_BYTES, Random};
use crate::machine::Machine;
use crate::memory::{HugePages, Plain};
use crate::report::{print, progress};
use crate::statistics::medians;

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

#[derive(Debug, Serialize, Deserialize)]
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
pub fn run(plan: &Plan) -> Result<()> {
    let pages = plan.size / PAGE_BYTES;
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
    let mut random = Random::new(99);
    let place = |_| random.below(pages as u64) as usize;
    let places: Vec<usize> = (0..working_set).map(place).collect();
    let recording = lazily(&path, LazyPlan::default().record())?;
    touch_all(&recording, &places);
    let set = recording.working_set();
    drop(recording);
    let mut runs = Vec::new();
    for turn in 0..plan.runs {
        progress(&format!("run {} of {}", turn + 1, plan.runs));
        runs.push(once(plan.size, &path, &places, &set)?);
        std::thread::sleep(Duration::from_millis(1));
    }
    progress("");
    print(plan.json, &medians(&runs), |figures| text(plan, figures))
}

/// Each way of bringing the memory back, once.
fn once(size: usize, path: &Path, places: &[usize], set: &WorkingSet) -> Result<Figures> {
    let us = |begun: Instant| begun.elapsed().as_nanos() as f64 / 1e3;
    let mut into = Plain::new(size, HugePages::Never)?;
    let begun = Instant::now();
    let image = Image::open(path).map_err(Error::other)?;
    read_region_with(&image, "data", into.bytes_mut(), 0, &AtomicU64::new(0))
        .map_err(Error::other)?;
    let eager_us = us(begun);
    drop(into);
    let begun = Instant::now();
    let restored = lazily(path, LazyPlan::default())?;
    touch(&restored, size / PAGE_BYTES / 2);
    let lazy_first_access_us = us(begun);
    restored.wait().map_err(Error::other)?;
    let lazy_whole_us = us(begun);
    drop(restored);
    let touched = |plan: LazyPlan| {
        let restored = lazily(path, plan.without_background())?;
        let begun = Instant::now();
        touch_all(&restored, places);
        Ok::<_, Error>((us(begun), restored.faults() as f64))
    };
    let (touch_without_us, faults_without_working_set) = touched(LazyPlan::default())?;
    let replay = LazyPlan::default().replay(set.clone());
    let (touch_with_us, faults_with_working_set) = touched(replay)?;
    Ok(Figures {
        size_bytes: size,
        working_set_pages: places.len(),
        eager_us,
        lazy_first_access_us,
        lazy_whole_us,
        faults_without_working_set,
        faults_with_working_set,
        touch_without_us,
        touch_with_us,
    })
}

fn lazily(path: &Path, plan: LazyPlan) -> Result<Restored> {
    let image = Image::open(path).map_err(Error::other)?;
    restore_lazily(image, plan).map_err(Error::other)
}

/// Reads a byte of page `page` of the region `data`.
fn touch(restored: &Restored, page: usize) -> u8 {
    let data = restored
        .region("data")
        .expect("the benchmark wrote this region");
    std::hint::black_box(data.as_slice()[page * PAGE_BYTES])
}

fn touch_all(restored: &Restored, places: &[usize]) {
    places.iter().for_each(|page| _ = touch(restored, *page));
}

fn text(plan: &Plan, f: &Figures) -> String {
    format!(
        "restoring {} bytes, half compressible, file in the page cache, medians of {} runs; {}\n\
         eager: {:.1} ms\nlazy: first access after {:.2} ms ({:.4} of eager), whole after {:.1} \
         ms ({:.2} of eager)\n\
         {} pages touched: {:.0} faults in {:.1} ms; with the recorded working set {:.0} faults \
         ({:.4}) in {:.1} ms\n",
        f.size_bytes,
        plan.runs,
        Machine::here(),
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
}
