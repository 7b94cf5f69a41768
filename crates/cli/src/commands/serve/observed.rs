//! Saying what is done to whoever asks: at the control socket in a run directory, where `ps`,
//! `stat`, `top` and `metrics` look, and at the socket that the user has named.
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use pagetide_pager::protocol::files;
use pagetide_serve::server::{Say, listen};
use pagetide_serve::status::Status;

use crate::bases::Bases;
use crate::exit::Failure;
use crate::rundir::RunDir;

use super::shared::{Removed, listening};

/// Sockets at which it is said; they are gone when this is dropped.
pub(super) struct Observed {
    named: Option<Removed>,
    run: Option<RunDir>,
}

impl Observed {
    /// Says what `status` is from now on, also at the socket `named`. Without a run directory pages
    /// are served all the same, and `say` is told.
    ///
    /// # Errors
    /// The socket that the user has named cannot be had.
    pub fn begin(
        status: &Arc<Status>,
        named: Option<&Path>,
        bases: &Bases,
        say: &Say,
    ) -> Result<Observed, Failure> {
        let mut observed = Observed {
            run: None,
            named: None,
        };
        if let Some(path) = named {
            answer(status, listening(path)?);
            observed.named = Some(Removed::at(path));
        }
        let run = RunDir::create(bases).map_err(|failure| failure.to_string());
        let opened = run.and_then(|run| {
            let socket = files::serving(run.path());
            let listener = listen(&socket);
            let listener = listener.map_err(|error| format!("{}: {error}", socket.display()))?;
            Ok((run, listener))
        });
        match opened {
            Ok((run, listener)) => {
                answer(status, listener);
                observed.run = Some(run);
            }
            Err(why) => say(&format!("ps, stat, top and metrics do not show it: {why}")),
        }
        Ok(observed)
    }
}

/// Has everyone answered who connects, as long as this process lives.
fn answer(status: &Arc<Status>, listener: UnixListener) {
    let status = Arc::clone(status);
    std::thread::spawn(move || status.answer(&listener));
}
