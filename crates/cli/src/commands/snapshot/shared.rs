//! What the commands about snapshot files share: failures, printing, a bar.
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use pagetide::track::snapshot::image;
use pagetide::track::snapshot::reader::{FileError, SnapshotFile};
use serde::Serialize;

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

/// That stdout cannot be written has the code of any other file: 1 would say that pages differ.
pub fn of_stdout(failure: Failure) -> Failure {
    Failure::new(Exit::Store, failure.message)
}

/// Prints to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    crate::commands::print(text).map_err(of_stdout)
}

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    crate::commands::print_json(value).map_err(of_stdout)
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
