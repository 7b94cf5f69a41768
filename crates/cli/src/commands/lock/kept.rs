//! The files of `pagetide lock`, mapped and locked.
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use pagetide::lock::{Access, Keeper, LimitReport, LockError, LockedFile};

use super::files::Listed;
use crate::args::{Lock, LockAccess, LockMode};
use crate::exit::{Exit, Failure};
use crate::size::PAGE_BYTES;

/// A file that is kept.
pub enum Kept {
    /// What comes into the page cache is taken.
    Watched(Keeper),
    /// All of it is locked, and the kernel does not tell this user what becomes of it.
    Whole(LockedFile),
}

impl Kept {
    /// Bytes mapped.
    pub fn bytes(&self) -> u64 {
        match self {
            Kept::Watched(keeper) => keeper.file().len() as u64,
            Kept::Whole(file) => file.len() as u64,
        }
    }

    /// Bytes locked, as of the last step.
    pub fn locked_bytes(&self) -> u64 {
        match self {
            Kept::Watched(keeper) => keeper.locked_bytes(),
            Kept::Whole(file) => (file.len() as u64).next_multiple_of(PAGE_BYTES),
        }
    }

    /// Takes what has come.
    pub fn step(&mut self) -> io::Result<()> {
        match self {
            Kept::Watched(keeper) => keeper.step().map(drop),
            Kept::Whole(_) => Ok(()),
        }
    }
}

/// Maps and locks the files, and returns how many of those below directories end before the range.
pub fn all(options: &Lock, files: &[Listed]) -> Result<(Vec<Kept>, usize), Failure> {
    // Each read of the keeper's own is of pages that are in memory already.
    let mut builder = LockedFile::builder().access(Access::Random);
    if let Some((offset, len)) = options.range {
        builder = builder.range(offset, len);
    }
    let mut opened = Vec::with_capacity(files.len());
    let mut shorter = 0;
    for Listed { path, named } in files {
        let file = File::open(path).map_err(|error| failure(path, "cannot be opened", &error))?;
        let size = file.metadata().map_or(0, |meta| meta.len());
        let (offset, most) = options.range.unwrap_or((0, u64::MAX));
        if !named && offset > 0 && offset >= size {
            shorter += 1;
            continue;
        }
        opened.push((path, file, size.saturating_sub(offset).min(most)));
    }
    if opened.is_empty() {
        let offset = options.range.map_or(0, |(offset, _)| offset);
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "--range: it begins at {offset} bytes, and all {shorter} files end before; \
                 expected at least one that is longer"
            ),
        ));
    }
    let pages = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES);
    let mut to_come: u64 = opened.iter().map(|(_, _, bytes)| pages(*bytes)).sum();
    let mut mapped = Vec::with_capacity(opened.len());
    for (path, file, bytes) in opened {
        let file = builder.map(file).map_err(|error| {
            let limit = error.get_ref().and_then(|e| e.downcast_ref::<LockError>());
            match limit.filter(|limit| limit.report().is_some()) {
                // What would do for this file would not for the next.
                Some(limit) => cannot_lock(path, limit, to_come),
                None => failure(path, "cannot be locked", &error),
            }
        })?;
        to_come -= pages(bytes);
        mapped.push((path, file));
    }
    if options.mode == LockMode::Now {
        fill(&mut mapped)?;
    }
    let kept = mapped
        .into_iter()
        .map(|(path, file)| keep(options, path, file));
    Ok((kept.collect::<Result<_, _>>()?, shorter))
}

fn keep(options: &Lock, path: &Path, file: LockedFile) -> Result<Kept, Failure> {
    let access = match options.access {
        LockAccess::Adaptive => Access::Adaptive,
        LockAccess::Random => Access::Random,
        LockAccess::Sequential => Access::Sequential,
        LockAccess::Normal => Access::Normal,
    };
    if !file.is_told() && options.mode == LockMode::Now {
        return Ok(Kept::Whole(file));
    }
    Keeper::new(file, access)
        .map(Kept::Watched)
        .map_err(|error| {
            let path = path.display();
            Failure::new(
                Exit::CannotPage,
                format!(
                    "{path}: cannot be kept on fault: {error}; run as one of them, or lock all of \
                it: --mode now"
                ),
            )
        })
}

fn cannot_lock(path: &Path, error: &LockError, to_come: u64) -> Failure {
    Failure::new(
        Exit::CannotPage,
        format!(
            "{}: cannot be locked: {}\n{}",
            path.display(),
            error.errno(),
            LimitReport::new(to_come)
        ),
    )
}

fn fill(files: &mut [(&PathBuf, LockedFile)]) -> Result<(), Failure> {
    let total: u64 = files.iter().map(|(_, file)| file.len() as u64).sum();
    let bar = if io::stderr().is_terminal() {
        ProgressBar::new(total)
    } else {
        ProgressBar::hidden()
    };
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} {wide_msg}",
    ) {
        bar.set_style(style);
    }
    let mut before = 0;
    for (path, file) in files {
        bar.set_message(path.display().to_string());
        file.fill(|done| bar.set_position(before + done))
            .map_err(|error| failure(path, "cannot be read and locked", &error))?;
        before += file.len() as u64;
    }
    bar.finish_and_clear();
    Ok(())
}

fn failure(path: &Path, what: &str, error: &io::Error) -> Failure {
    let locking = error
        .get_ref()
        .is_some_and(|inner| inner.downcast_ref::<LockError>().is_some());
    let exit = match error.kind() {
        _ if locking => Exit::CannotPage,
        io::ErrorKind::InvalidInput => Exit::Usage,
        _ => Exit::Store,
    };
    Failure::new(exit, format!("{}: {what}: {error}", path.display()))
}
