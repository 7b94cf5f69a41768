//! Measurements of tracking: write-protecting memory ([`wp`]), dirty tracking ([`dirty`]),
//! snapshots beside `fork` ([`snapshot`]), and bringing them back ([`restore`]).
pub mod dirty;
pub mod memory;
pub mod plot;
pub mod restore;
pub mod snapshot;
pub mod wp;
pub mod writers;

use std::fmt;
use std::io::{Error, ErrorKind, Result as Outcome};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use rustix::fs::Access;

use crate::undo;

/// An argument that is wrong for what another says, or for what is on this machine: exit code 2.
#[derive(Debug)]
pub struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

impl Usage {
    /// As an error of the command.
    pub fn error(text: String) -> Error {
        Error::new(ErrorKind::InvalidInput, Usage(text))
    }

    /// Whether it is why a command failed.
    pub fn is_cause_of(error: &Error) -> bool {
        error.get_ref().is_some_and(|cause| cause.is::<Usage>())
    }
}

/// Reads a number that is not 0.
pub fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// An error that names the file or directory.
fn named(path: &Path, error: impl fmt::Display) -> Error {
    Error::other(format!("{}: {error}", path.display()))
}

/// A file for the measurement in `directory`. It is removed by [`undo`], on signals too, and so is
/// every other whose name begins the same, after the forked child that may be writing it was ended.
fn scratch_file(directory: &Path) -> Outcome<PathBuf> {
    check_directory("--directory", directory)?;
    let stem = format!("pagetide-bench-{}.", std::process::id());
    let path = directory.join(format!("{stem}snapshot"));
    undo::arm()?;
    let directory = directory.to_owned();
    undo::change(
        "the files of the measurement",
        || Ok(path),
        move || {
            memory::end_child();
            remove_files(&directory, &stem)
        },
    )
}

/// Removes the files whose names begin with `stem`, and those that are not complete yet: these have
/// a dot before it.
fn remove_files(directory: &Path, stem: &str) -> Outcome<()> {
    for entry in std::fs::read_dir(directory).map_err(|error| named(directory, error))? {
        let entry = entry.map_err(|error| named(directory, error))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.strip_prefix('.').unwrap_or(&name).starts_with(stem) {
            match std::fs::remove_file(entry.path()) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(named(&entry.path(), error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Whether files can be made in `directory`, which `option` names.
fn check_directory(option: &str, directory: &Path) -> Outcome<()> {
    let wrong = |why: &dyn fmt::Display| {
        Usage::error(format!(
            "{option}: no file can be made in '{}': {why}; name a directory that exists and can \
             be written to",
            directory.display()
        ))
    };
    match std::fs::metadata(directory) {
        Err(error) => return Err(wrong(&error)),
        Ok(found) if !found.is_dir() => return Err(wrong(&"it is not a directory")),
        Ok(_) => {}
    }
    rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| wrong(&error))
}

/// Whether `--plot` names a file that can be written.
fn check_plot(path: &Path) -> Outcome<()> {
    let wrong = |why: &dyn fmt::Display| {
        Usage::error(format!(
            "--plot: '{}' cannot be written: {why}; name a file such as late.svg",
            path.display()
        ))
    };
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => return Err(wrong(&"it is a directory")),
        Ok(_) => {
            return rustix::fs::access(path, Access::WRITE_OK).map_err(|error| wrong(&error));
        }
        Err(_) => {}
    }
    match (path.file_name(), path.parent()) {
        (Some(_), Some(parent)) if parent.as_os_str().is_empty() => {
            check_directory("--plot", Path::new("."))
        }
        (Some(_), Some(parent)) => check_directory("--plot", parent),
        _ => Err(wrong(&"it is not the name of a file")),
    }
}

/// Reads a size such as `10G`, `256M` or a number of bytes; whole pages.
pub fn size(text: &str) -> Result<usize, String> {
    let expected =
        || format!("'{text}' is not a size; expected whole pages such as 10G, 256M or 1073741824");
    let (digits, shift) = match text.trim_end_matches(['i', 'B']).char_indices().next_back() {
        Some((at, unit)) if unit.is_ascii_alphabetic() => {
            let shift = match unit.to_ascii_uppercase() {
                'K' => 10,
                'M' => 20,
                'G' => 30,
                'T' => 40,
                _ => return Err(expected()),
            };
            (&text[..at], shift)
        }
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| expected())?;
    let bytes = number
        .checked_shl(shift)
        .filter(|bytes| bytes >> shift == number);
    bytes
        .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(4096))
        .ok_or_else(expected)
}

/// The middle value; the mean of the two middle ones of an even number.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len.is_multiple_of(2) => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// Microseconds, with their fraction.
pub fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_pages() {
        assert_eq!(size("10G"), Ok(10 << 30));
        assert_eq!(size("256M"), Ok(256 << 20));
        assert_eq!(size("8192"), Ok(8192));
        for wrong in ["", "G", "1.5G", "4095", "0", "99999999999T", "1X", "-1"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
