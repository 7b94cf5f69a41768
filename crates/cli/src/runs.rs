//! The runs there are, in the [base directories](crate::bases) that this user may see, and the
//! living processes in them.
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pagetide_kernel::procfs;
use pagetide_pager::protocol::files;
use rustix::process::geteuid;

use crate::bases::Bases;
use crate::governed::{self, Governed};
use crate::{descendants, held};

/// Every living governed process this user may see and name: processes of other PID namespaces have
/// numbers that mean nothing, or others, here. Directories of runs that are over are removed.
pub fn all(bases: &Bases) -> Vec<Governed> {
    let mut found = Vec::new();
    for base in bases.visible() {
        clean_stale(&base);
        found.extend(runs(&base).iter().flat_map(|run| governed::living(run)));
    }
    found.retain(nameable());
    found.sort_by_key(|governed| governed.pid);
    found
}

/// Tells of which processes the numbers mean something here.
fn nameable() -> impl Fn(&Governed) -> bool {
    let here = procfs::inode_of_self(c"/proc/self/ns/pid").unwrap_or(0);
    move |governed| {
        let theirs = governed.reading.pid_namespace;
        theirs == here || theirs == 0 || here == 0
    }
}

/// The living governed processes of the run that launcher `pid` began, also when it has ended since
/// and they go on; `None` if there is no such run that this user may see.
pub fn of_launcher(pid: u32, bases: &Bases) -> Option<Vec<Governed>> {
    let is_launcher = governed::is_launcher(pid);
    let runs = directories_of(pid, bases).into_iter();
    let mut of_each = runs.map(|run| {
        let mut found = governed::living(&run);
        found.retain(nameable());
        found.sort_by_key(|governed| governed.pid);
        found
    });
    of_each.find(|found| is_launcher || !found.is_empty())
}

/// The processes of the run that launcher `pid` began that are governed, and not known in its
/// directory.
pub fn apart(pid: u32, bases: &Bases) -> Vec<u32> {
    let runs = directories_of(pid, bases).into_iter();
    runs.flat_map(|run| descendants::apart(&run)).collect()
}

/// A budget that the processes of a run have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Common {
    /// The process ID of the run's launcher.
    pub run: u32,
    /// The file that says who has how much of it.
    pub tree: PathBuf,
    /// A process of the run, or its launcher.
    pub pid: u32,
}

/// The common budget of the run that launcher `pid` began, or became the program of with `--exec`;
/// none where each process has its own. A launcher that has ended stands for what goes on of its
/// run, unless another governed process has its number by now.
pub fn common_of(pid: u32, bases: &Bases) -> Option<Common> {
    let runs = directories_of(pid, bases).into_iter();
    let mut runs = runs.filter(|run| files::tree(run).is_file());
    runs.find_map(|run| {
        let tree = files::tree(&run);
        let living = governed::living(&run);
        if governed::is_launcher(pid) || living.iter().any(|process| process.pid == pid) {
            return Some(Common {
                run: pid,
                tree,
                pid,
            });
        }
        let goes_on = living.into_iter().find(nameable())?;
        let is_another = || all(bases).iter().any(|process| process.pid == pid);
        (!is_another()).then_some(Common {
            run: pid,
            tree,
            pid: goes_on.pid,
        })
    })
}

/// The common budget that `process` has a part of; none if it has one of its own.
pub fn common_with(process: &Governed) -> Option<Common> {
    let has_part = process.reading.statistics.run_budget_bytes > 0;
    let directory = process.socket.parent().filter(|_| has_part)?;
    Some(Common {
        run: process.run()?,
        tree: files::tree(directory),
        pid: process.pid,
    })
}

/// The directories that runs of launcher `pid` have, or would have.
fn directories_of(pid: u32, bases: &Bases) -> Vec<PathBuf> {
    let name = format!("{}{pid}", files::RUN_PREFIX);
    let runs = bases.visible().into_iter().map(|base| base.join(&name));
    runs.filter(|run| run.is_dir()).collect()
}

/// Run directories in `base`.
pub fn runs(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(files::RUN_PREFIX))
        })
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Removes this user's run directories in which neither the launcher nor any governed process
/// lives. What only looks like one stays: the base may be any directory that the user names.
pub fn clean_stale(base: &Path) {
    // A directory with this process's own number that nobody holds is an earlier process's: in a
    // container started again, each launcher may be process 1.
    let here = std::process::id();
    for run in runs(base) {
        let Some(pid) = files::launcher_of(&run) else {
            continue;
        };
        let ours = fs::symlink_metadata(&run)
            .is_ok_and(|meta| meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0);
        // By its number as well: it may not have come to holding the directory yet.
        let launcher_alive = || {
            File::open(&run).is_ok_and(|directory| held::is_held(directory) == Some(true))
                || pid != here && governed::is_launcher(pid)
        };
        if ours && !launcher_alive() && !governed::any_alive(&run) {
            let _ = remove(&run);
        }
    }
}

/// Removes a run's directory with the files that are made in such a one; where anything else is in
/// it, nothing.
fn remove(run: &Path) -> io::Result<()> {
    let entries = fs::read_dir(run)?.collect::<io::Result<Vec<_>>>()?;
    let is_of_a_run = |entry: &DirEntry| {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        !is_directory && entry.file_name().to_str().is_some_and(files::is_of_a_run)
    };
    if !entries.iter().all(is_of_a_run) {
        return Ok(());
    }
    for entry in entries {
        fs::remove_file(entry.path())?;
    }
    fs::remove_dir(run)
}
