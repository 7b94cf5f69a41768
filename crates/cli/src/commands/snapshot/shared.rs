//! What the commands about snapshot files share: failures, printing, a bar.
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use pagetide::track::snapshot::image;
use pagetide::track::snapshot::reader::{FileError, SnapshotFile};
use serde::Serialize;

use crate::commands;
use crate::exit::{Exit, Failure};

pub fn failure(error: FileError) -> Failure {
    match error {
        FileError::Block { .. } => Failure::new(Exit::DataLost, error.to_string()),
        FileError::Region { .. } => Failure::new(Exit::Failed, error.to_string()),
        FileError::Io(..) | FileError::Wrong(..) => Failure::new(Exit::Store, error.to_string()),
        FileError::Parent { .. } => Failure::new(
            Exit::Store,
            format!(
                "{}; a parent is looked for beside the file that builds on it, under the name \
                 that `pagetide snapshot inspect` shows: put it there",
                lack(&error)
            ),
        ),
    }
}

/// What is wrong, without advice.
pub fn lack(error: &FileError) -> String {
    match error {
        FileError::Parent {
            name,
            parent,
            looked,
        } => format!("{name}: its parent, snapshot {parent}, is not {looked}"),
        error => error.to_string(),
    }
}

/// Opens a snapshot file.
pub fn open(path: &Path) -> Result<SnapshotFile, FileError> {
    image::open_file(path).map(|(file, _)| file)
}

/// Tells of one failure of several; its code.
pub fn tell(failure: &Failure) -> u8 {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "pagetide: {failure}");
    failure.exit.code()
}

/// Prints to stdout. Where that fails, code 1 would say that pages differ.
pub fn print(text: &str) -> Result<(), Failure> {
    commands::print(text).map_err(commands::as_of_a_file)
}

/// Prints a value as JSON, likewise.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    commands::print_json(value).map_err(commands::as_of_a_file)
}

/// A bar on a terminal; nothing elsewhere.
pub fn progress(total: u64, what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent} % {eta}");
    let bar = ProgressBar::new(total).with_message(what.to_owned());
    style.map_or(bar.clone(), |style| bar.with_style(style))
}
