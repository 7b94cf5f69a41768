//! What the ways of serving have in common.
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagetide::track::WorkingSet;
use pagetide_serve::keeper::Keeper;
use pagetide_serve::plan::Replay;
use pagetide_serve::record::Recorder;
use pagetide_serve::server::{KeptBefore, listen, listen_again};
use pagetide_serve::source::Source;
use pagetide_serve::status::About;

use crate::commands::told;
use crate::exit::{Exit, Failure};
use crate::text::printable;

/// The working set at `path`, which was recorded of `source`.
pub(super) fn replay_of(path: &Path, source: &dyn Source) -> Result<Arc<Replay>, Failure> {
    let set = WorkingSet::load(path, source.id());
    let set = set.map_err(|error| Failure::new(Exit::Store, format!("--replay: {error}")))?;
    Ok(Arc::new(Replay::new(set, source.pages())))
}

/// A recorder of `source` to `path`, where a file can be written.
pub(super) fn recorder_at(path: &Path, source: &dyn Source) -> Result<Recorder, Failure> {
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    let refused = |what: &str| {
        let text = format!("--record: {} {what}", path.display());
        Err(Failure::new(Exit::Store, text))
    };
    if !directory.unwrap_or(Path::new(".")).is_dir() || path.is_dir() {
        return refused("cannot be written there");
    }
    if path.exists() && !WorkingSet::may_replace(path) {
        return refused("is there, and no working set: it is not replaced");
    }
    Ok(Recorder::new(path, source.id(), source.pages()))
}

/// A socket at `path`.
pub(super) fn listening(path: &Path) -> Result<UnixListener, Failure> {
    listen(path).map_err(|error| cannot_listen(path, &error))
}

/// A socket at `path`, with what was kept by the process before.
pub(super) fn listening_again(
    path: &Path,
    keeper: &Keeper,
    inherited: Vec<(String, OwnedFd)>,
) -> Result<(UnixListener, KeptBefore), Failure> {
    listen_again(path, keeper, inherited).map_err(|error| cannot_listen(path, &error))
}

fn cannot_listen(path: &Path, error: &std::io::Error) -> Failure {
    let next = match error.kind() {
        std::io::ErrorKind::AddrInUse => "; somebody listens there, or it is another file",
        _ => "",
    };
    Failure::new(Exit::Failed, format!("{}: {error}{next}", path.display()))
}

/// A socket that is removed when this is dropped, unless another has taken its place.
pub(super) struct Removed {
    path: PathBuf,
    /// Its device and inode, as it is now.
    is: Option<(u64, u64)>,
}

impl Removed {
    /// The one at `path`.
    pub fn at(path: &Path) -> Removed {
        Removed {
            path: path.to_owned(),
            is: inode(path),
        }
    }

    /// It is not removed after all.
    pub fn stays(mut self) {
        self.is = None;
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        if self.is.is_some() && inode(&self.path) == self.is {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Says something to whoever watches, in one line whatever it quotes of others.
pub(super) fn told_in_one_line(text: &str) {
    told(&printable(text));
}

/// What whoever asks is told of this process.
pub(super) fn about(serves: &str, source: &Path, socket: &Path) -> About {
    let shown = |path: &Path| {
        let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        full.display().to_string()
    };
    About {
        pid: std::process::id(),
        serves: serves.to_owned(),
        source: shown(source),
        socket: shown(socket),
    }
}
