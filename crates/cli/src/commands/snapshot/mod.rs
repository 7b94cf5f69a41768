//! `pagetide snapshot`: looking at snapshot files, checking them, comparing and merging them. A
//! file for each, and here what they share.
mod diff;
mod inspect;
mod merge;
mod pages;
mod verify;

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use pagetide::track::snapshot::image;
use pagetide::track::snapshot::reader::{FileError, SnapshotFile};
use serde::Serialize;

use crate::exit::{Exit, Failure};

/// What to do with snapshot files.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Show what files hold: regions, pages, parents
    #[command(after_help = crate::exit::OF_SNAPSHOTS)]
    Inspect {
        /// Snapshot files
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Print a JSON array, in bytes and nanoseconds
        #[arg(long)]
        json: bool,
    },
    /// Read every byte of files and check it
    #[command(after_help = crate::exit::OF_SNAPSHOTS)]
    Verify {
        /// Snapshot files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// List the pages in which two snapshots differ; exits with 1 if any do
    #[command(after_help = crate::exit::OF_SNAPSHOTS)]
    Diff {
        /// The earlier snapshot; its parents are found beside it
        old: PathBuf,
        /// The later one
        new: PathBuf,
        /// Print a JSON array of runs of pages that differ
        #[arg(long)]
        json: bool,
    },
    /// Put a chain of snapshots together into one file
    #[command(after_help = crate::exit::OF_SNAPSHOTS)]
    Merge {
        /// The files, in any order; each but one is the parent of another. Without the first one's
        /// parent the result builds on that, and must be beside it
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Where the result goes; nothing may be there yet
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
}

/// Does it.
pub fn snapshot(command: &SnapshotCommand) -> Result<u8, Failure> {
    match command {
        SnapshotCommand::Inspect { files, json } => inspect::inspect(files, *json),
        SnapshotCommand::Verify { files } => verify::verify(files),
        SnapshotCommand::Diff { old, new, json } => diff::diff(old, new, *json),
        SnapshotCommand::Merge { files, output } => merge::merge(files, output),
    }
}

fn failure(error: FileError) -> Failure {
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
fn lack(error: &FileError) -> String {
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
fn open(path: &Path) -> Result<SnapshotFile, FileError> {
    image::open_file(path).map(|(file, _)| file)
}

/// Tells of one failure of several; its code.
fn tell(failure: &Failure) -> u8 {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "pagetide: {failure}");
    failure.exit.code()
}

/// That stdout cannot be written has the code of any other file: 1 would say that pages differ.
fn of_stdout(failure: Failure) -> Failure {
    Failure::new(Exit::Store, failure.message)
}

/// Prints to stdout.
fn print(text: &str) -> Result<(), Failure> {
    super::print(text).map_err(of_stdout)
}

/// Prints a value as JSON.
fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    super::print_json(value).map_err(of_stdout)
}

/// A bar on a terminal; nothing elsewhere.
fn progress(total: u64, what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent} % {eta}");
    let bar = ProgressBar::new(total).with_message(what.to_owned());
    style.map_or(bar.clone(), |style| bar.with_style(style))
}
