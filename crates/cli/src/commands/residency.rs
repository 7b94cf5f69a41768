//! `pagetide residency`: which pages of files are in the page cache, and which of them are locked.
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use pagetide::lock::{PageState, Residency};
use serde::Serialize;

use super::lock::files;
use crate::exit::{Exit, Failure};
use crate::size::{Bytes, PAGE_BYTES};
use crate::text::printable;

/// Cells in the map.
const CELLS: u64 = 64;

/// So many of its pages in bytes of the file, whose last page may be less than one.
fn bytes_of(pages: u64, residency: &Residency) -> u64 {
    (pages * PAGE_BYTES).min(residency.size)
}

/// Shows each file, as text with a map or as JSON. What cannot be looked at is told of on stderr,
/// and decides the code.
pub fn residency(named: &[PathBuf], json: bool) -> Result<u8, Failure> {
    let (files, mut failures) = files::expand_all(named);
    let mut all = Vec::new();
    for files::Listed { path, .. } in files {
        match Residency::of(&path) {
            Ok(residency) => all.push((path, residency)),
            Err(error) => failures.push(Failure::new(
                Exit::Store,
                format!("{}: cannot be looked at ({})", path.display(), error.cause),
            )),
        }
    }
    show(&all, json)?;
    for failure in &failures {
        // A closed stderr leaves nobody to tell.
        let _ = writeln!(std::io::stderr(), "pagetide: {failure}");
    }
    let exit = if failures.is_empty() {
        Exit::Ok
    } else {
        Exit::Store
    };
    Ok(exit.code())
}

fn show(all: &[(PathBuf, Residency)], json: bool) -> Result<(), Failure> {
    if json {
        let files = all
            .iter()
            .map(|(path, residency)| FileReport::new(path, residency))
            .collect();
        return super::print_json(&Report { files });
    }
    let mut text = String::new();
    for (path, residency) in all {
        describe(&mut text, path, residency);
    }
    if all.len() > 1 {
        total(&mut text, all);
    }
    if all.iter().any(|(_, residency)| !residency.tells_locked) {
        text.push_str("which pages are locked only root may see (/proc/kpageflags)\n");
    }
    super::print(&text)
}

#[derive(Serialize)]
struct Report {
    files: Vec<FileReport>,
}

#[derive(Serialize)]
struct FileReport {
    path: String,
    size_bytes: u64,
    pages: u64,
    cached_bytes: u64,
    /// `null` where it cannot be told.
    locked_bytes: Option<u64>,
    ranges: Vec<RangeReport>,
}

/// A run of pages in memory; those between are not.
#[derive(Serialize)]
struct RangeReport {
    offset_bytes: u64,
    length_bytes: u64,
    locked: Option<bool>,
}

impl FileReport {
    fn new(path: &Path, residency: &Residency) -> FileReport {
        let locked = residency.count(PageState::Locked);
        let in_memory = residency
            .runs
            .iter()
            .filter(|(_, _, state)| *state != PageState::Absent);
        FileReport {
            path: path.display().to_string(),
            size_bytes: residency.size,
            pages: residency.size.div_ceil(PAGE_BYTES),
            cached_bytes: (residency.count(PageState::Cached) + locked) * PAGE_BYTES,
            locked_bytes: residency.tells_locked.then_some(locked * PAGE_BYTES),
            ranges: in_memory
                .map(|(first, pages, state)| RangeReport {
                    offset_bytes: first * PAGE_BYTES,
                    length_bytes: pages * PAGE_BYTES,
                    locked: residency
                        .tells_locked
                        .then_some(*state == PageState::Locked),
                })
                .collect(),
        }
    }
}

fn describe(text: &mut String, path: &Path, residency: &Residency) {
    let pages = residency.size.div_ceil(PAGE_BYTES);
    let locked = residency.count(PageState::Locked);
    let cached = residency.count(PageState::Cached) + locked;
    let _ = writeln!(text, "{}", printable(&path.display().to_string()));
    let _ = writeln!(
        text,
        "  {} of {} in memory ({:.1} %){}",
        Bytes(bytes_of(cached, residency)),
        Bytes(residency.size),
        if pages == 0 {
            0.0
        } else {
            cached as f64 * 100.0 / pages as f64
        },
        if residency.tells_locked {
            format!(", {} locked", Bytes(bytes_of(locked, residency)))
        } else {
            String::new()
        }
    );
    if pages > 0 {
        let _ = writeln!(text, "  [{}]", map(residency, pages));
    }
}

fn total(text: &mut String, all: &[(PathBuf, Residency)]) {
    let sum = |count: &dyn Fn(&Residency) -> u64| all.iter().map(|(_, r)| count(r)).sum::<u64>();
    let locked = sum(&|r| bytes_of(r.count(PageState::Locked), r));
    let cached = sum(&|r| bytes_of(r.count(PageState::Cached) + r.count(PageState::Locked), r));
    let _ = writeln!(
        text,
        "{} files: {} of {} in memory{}",
        all.len(),
        Bytes(cached),
        Bytes(sum(&|r| r.size)),
        if all.iter().all(|(_, residency)| residency.tells_locked) {
            format!(", {} locked", Bytes(locked))
        } else {
            String::new()
        }
    );
}

/// The file from left to right: `.` nothing of the cell is in memory, then rising shades; `L` and
/// `l` all and some of it is locked.
fn map(residency: &Residency, pages: u64) -> String {
    let cells = CELLS.min(pages);
    let mut cached = vec![0u64; cells as usize];
    let mut locked = vec![0u64; cells as usize];
    // Cell c holds pages from c * pages / cells on.
    let begins = |cell: u64| (cell * pages).div_ceil(cells);
    for (first, count, state) in &residency.runs {
        if *state == PageState::Absent {
            continue;
        }
        let end = first + count;
        let mut cell = first * cells / pages;
        while cell < cells && begins(cell) < end {
            let part = end
                .min(begins(cell + 1))
                .saturating_sub((*first).max(begins(cell)));
            cached[cell as usize] += part;
            if *state == PageState::Locked {
                locked[cell as usize] += part;
            }
            cell += 1;
        }
    }
    (0..cells)
        .map(|cell| {
            let room = begins(cell + 1) - begins(cell);
            let (cached, locked) = (cached[cell as usize], locked[cell as usize]);
            match (cached, locked) {
                (0, _) => '.',
                (_, locked) if locked >= room => 'L',
                (_, 1..) => 'l',
                (cached, _) if cached >= room => '█',
                (cached, _) if cached * 3 >= room * 2 => '▓',
                (cached, _) if cached * 3 >= room => '▒',
                _ => '░',
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_has_no_more_in_memory_than_it_is_long() {
        let small = Residency {
            size: 649,
            runs: vec![(0, 1, PageState::Cached)],
            tells_locked: true,
        };
        let mut text = String::new();
        describe(&mut text, Path::new("small"), &small);
        assert!(
            text.contains("649 B of 649 B in memory (100.0 %), 0 B locked"),
            "{text}"
        );
    }

    #[test]
    fn the_map_has_a_cell_for_every_part() {
        let residency = |runs| Residency {
            size: 128 * PAGE_BYTES,
            runs,
            tells_locked: true,
        };
        let none = residency(vec![(0, 128, PageState::Absent)]);
        assert_eq!(map(&none, 128), ".".repeat(64));
        let some = residency(vec![
            (0, 2, PageState::Locked),
            (2, 1, PageState::Cached),
            (3, 1, PageState::Absent),
            (4, 1, PageState::Locked),
            (5, 1, PageState::Cached),
            (6, 122, PageState::Cached),
        ]);
        assert_eq!(map(&some, 128), format!("L▒l{}", "█".repeat(61)));
        let odd = Residency {
            size: 100 * PAGE_BYTES,
            runs: vec![(0, 100, PageState::Cached)],
            tells_locked: false,
        };
        assert_eq!(map(&odd, 100), "█".repeat(64));
    }
}
