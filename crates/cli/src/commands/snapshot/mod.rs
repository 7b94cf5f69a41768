//! `pagetide snapshot`: looking at snapshot files, checking them, comparing and merging them. A
//! file for each, and [`shared`] for what they share.
mod diff;
mod inspect;
mod merge;
mod pages;
mod shared;
mod verify;

use std::path::PathBuf;

use clap::Subcommand;

use crate::exit::Failure;

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
        /// Print a JSON array, an object a file
        #[arg(long)]
        json: bool,
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
        SnapshotCommand::Verify { files, json } => verify::verify(files, *json),
        SnapshotCommand::Diff { old, new, json } => diff::diff(old, new, *json),
        SnapshotCommand::Merge { files, output } => merge::merge(files, output),
    }
}
