//! What the ways of serving have in common.
use std::os::unix::net::UnixListener;
use std::path::Path;

use pagetide_serve::record::Recorder;
use pagetide_serve::server::listen;
use pagetide_serve::source::Source;

use crate::exit::{Exit, Failure};

/// A recorder of `source` to `path`, where a file can be written.
pub(super) fn recorder_at(path: &Path, source: &dyn Source) -> Result<Recorder, Failure> {
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    if !directory.unwrap_or(Path::new(".")).is_dir() || path.is_dir() {
        let text = format!("--record: {} cannot be written there", path.display());
        return Err(Failure::new(Exit::Store, text));
    }
    Ok(Recorder::new(path, source.id(), source.pages()))
}

/// A socket at `path`.
pub(super) fn listening(path: &Path) -> Result<UnixListener, Failure> {
    listen(path).map_err(|error| {
        let next = match error.kind() {
            std::io::ErrorKind::AddrInUse => "; somebody listens there, or it is another file",
            _ => "",
        };
        Failure::new(Exit::Failed, format!("{}: {error}{next}", path.display()))
    })
}
