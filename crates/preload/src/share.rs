//! This process's part in the budget that the processes of its run have in common.
use std::os::fd::{AsFd as _, IntoRawFd as _, RawFd};

use pagetide_kernel::procfs;
use pagetide_pager::protocol::environment::weight;
use pagetide_pager::protocol::files;
use pagetide_pager::tree::file::WEIGHT_DEFAULT;
use pagetide_pager::tree::member::Member;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::config::Config;

/// A part, and the number of the run's file in the agent's table, from which forked children open
/// it. A lock lasts as long as any process has its descriptor open or mapped, so the one that locks
/// this process's slot is neither handed over nor mapped.
pub struct Share {
    /// The part.
    pub member: Member,
    /// The file.
    pub file: RawFd,
}

/// On the scanner: the part of this process, if the run has one budget.
pub fn open_own(config: &Config) -> Result<Option<Share>, Errno> {
    if !config.wishes.per_run {
        return Ok(None);
    }
    let path = files::tree(&config.wishes.run_dir);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let open = || open(&path, flags, Mode::empty());
    let file = open()?;
    let weight = weight().unwrap_or(WEIGHT_DEFAULT);
    let member = Member::new(open()?, file.as_fd(), weight)?;
    let file = file.into_raw_fd();
    Ok(Some(Share { member, file }))
}

/// What is to be said where the weight that this process asks for is none.
pub fn warning() -> Option<String> {
    let why = weight().err()?;
    Some(format!("{why}; it counts as {WEIGHT_DEFAULT}"))
}

/// In a forked child, on the scanner: its part begins anew, by way of the file that was handed
/// over. Without one it has the whole budget, by itself; that is what an error says.
pub fn begin_again(member: &Member, file: Option<RawFd>) -> Result<(), Errno> {
    let opened = file.map(|file| procfs::reopen(file, OFlags::RDWR));
    let (file, result) = match opened {
        None => (None, Ok(())),
        Some(Ok(file)) => (Some(file), Ok(())),
        Some(Err(errno)) => (None, Err(errno)),
    };
    member.begin_again(file);
    result
}

/// What is said where a process has no part: it has the whole budget by itself.
pub fn told(errno: Errno) -> String {
    format!(
        "the run's common budget cannot be reached ({errno}): this process has one of that size by \
         itself"
    )
}
