//! Files of a measurement, and whether they can be made.
use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::fork::end_child;
use crate::arguments::Usage;
use crate::undo;

/// An error that names the file or directory.
fn named(path: &Path, error: impl fmt::Display) -> Error {
    Error::other(format!("{}: {error}", path.display()))
}

/// A file for the measurement in `directory`. It is removed by [`undo`], on signals too, and so is
/// every other whose name begins the same, after the forked child that may be writing it was ended.
pub fn scratch_file(directory: &Path) -> Result<PathBuf> {
    check_directory("--directory", directory)?;
    let stem = format!("pagetide-bench-{}.", std::process::id());
    let path = directory.join(format!("{stem}snapshot"));
    undo::arm()?;
    let directory = directory.to_owned();
    undo::change(
        "the files of the measurement",
        || Ok(path),
        move || {
            end_child();
            remove_files(&directory, &stem)
        },
    )
}

/// Removes the files whose names begin with `stem`, and those that are not complete yet: these have
/// a dot before it.
fn remove_files(directory: &Path, stem: &str) -> Result<()> {
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
fn check_directory(option: &str, directory: &Path) -> Result<()> {
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
pub fn check_plot(path: &Path) -> Result<()> {
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
