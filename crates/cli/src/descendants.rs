//! The processes that a run's programs started, as their environments tell, whether they have made
//! themselves known or not.
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pagetide_kernel::procfs::stat::Stat;
use pagetide_pager::protocol::environment::RUN_DIR;

use crate::governed::living;
use crate::text::printable;

/// The agent's name, as `/proc/PID/maps` has it.
const AGENT: &[u8] = b"libpagetide_preload.so";

/// The processes among `these` that have `run` in their environment, of those this user may ask for
/// it.
pub fn of(run: &Path, these: impl Fn(&u32) -> bool) -> impl Iterator<Item = u32> {
    let mut wanted = format!("{RUN_DIR}=").into_bytes();
    wanted.extend(run.as_os_str().as_bytes());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(these).filter(move |pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable == wanted) && is_here(*pid)
    })
}

/// Of them, those of another user with an agent that is not known in the run's directory: they may
/// not write there, so that each is governed by itself. (One of the same user may be starting.)
pub fn apart(run: &Path) -> Vec<u32> {
    let user = |path: &Path| fs::metadata(path).map(|found| found.uid()).ok();
    let owner = user(run);
    let is_another = |pid: &u32| {
        let theirs = user(&Path::new("/proc").join(pid.to_string()));
        theirs != owner && theirs.is_some_and(|uid| uid != 0)
    };
    let known = living(run);
    let is_unknown = |pid: &u32| known.iter().all(|process| process.pid != *pid);
    of(run, |pid| is_another(pid) && is_unknown(pid))
        .filter(|pid| has_agent(*pid))
        .collect()
}

/// What is said of them.
pub fn told(apart: &[u32]) -> String {
    let named = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{pid} ({})", printable(name.trim_end()))
    };
    let (first, more) = match apart {
        [] => return String::new(),
        [first] => (named(first), String::new()),
        [first, others @ ..] => (named(first), format!(" and {} more", others.len())),
    };
    format!(
        "process {first}{more} could not write to the run's directory when it started, being \
         another user's: it is governed with a budget of its own, which cannot be changed"
    )
}

fn has_agent(pid: u32) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.windows(AGENT.len()).any(|part| part == AGENT)
}

/// Whether `pid` lives, in this process's own PID namespace: elsewhere it goes by another number.
fn is_here(pid: u32) -> bool {
    let namespace = |pid: &str| fs::read_link(Path::new("/proc").join(pid).join("ns/pid"));
    let is_same = |here: PathBuf| namespace(&pid.to_string()).is_ok_and(|there| there == here);
    namespace("self").is_ok_and(is_same) && Stat::of(pid).is_some_and(|stat| stat.state != 'Z')
}
