//! The file of `run --trace`: made before the program starts, cut to what was recorded after it has
//! ended.
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use pagetide_pager::recorder;

use super::destination::open_at_once;
use crate::exit::{Exit, Failure};

fn failure(path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        Exit::Usage,
        format!(
            "--trace {}: cannot be written ({error}); expected a file you may write, on a file \
             system",
            path.display()
        ),
    )
}

/// Makes the file, if there is none; returns its absolute path.
pub fn prepare(path: &Path) -> Result<PathBuf, Failure> {
    if path == Path::new("-") {
        return Err(Failure::new(
            Exit::Usage,
            "--trace -: a trace is mapped and cannot go to stdout; expected the name of a file",
        ));
    }
    open_at_once(path)
        .and_then(|_| path.canonicalize())
        .map_err(|error| failure(path, &error))
}

/// Discards what is in the file, before the program starts.
pub fn empty(path: &Path) -> Result<(), Failure> {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(0))
        .map_err(|error| failure(path, &error))
}

/// Cuts off the room that was not used; returns how many faults there was no room for.
pub fn finish(path: &Path) -> Result<u64, Failure> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.and_then(|file| recorder::cut(&file))
        .map_err(|error| failure(path, &error))
}
