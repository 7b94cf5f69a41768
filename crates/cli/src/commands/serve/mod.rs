//! `pagetide serve`: pages for other processes, which hand over a userfaultfd.
mod criu;
pub mod names;
mod observed;
mod shared;

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use pagetide_serve::keeper::Keeper;
use pagetide_serve::manager::{self, Manager};
use pagetide_serve::moment::Moment;
use pagetide_serve::packed::open_image;
use pagetide_serve::plan::{self, Plan};
use pagetide_serve::server::{ENDING, Failed, Server, Setup};
use pagetide_serve::source::Source;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::bases::Bases;
use crate::commands::told;
use crate::exit::{Exit, Failure};
use crate::size::Bytes;
use observed::Observed;
use shared::{
    Removed, about, listening, listening_again, recorder_at, replay_of, told_in_one_line,
};

/// Clients at a time: each has a thread and three descriptors.
const CLIENTS_MAX: usize = 1024;

/// Whom to serve.
#[derive(Debug, Subcommand)]
pub enum ServeCommand {
    /// Give microVMs that Firecracker resumes from a snapshot their memory, as they touch it
    #[command(long_about = FIRECRACKER_ABOUT, after_help = crate::exit::OF_SERVE)]
    Firecracker(Firecracker),
    /// Give processes that CRIU restores lazily their memory: in place of `criu lazy-pages`
    #[command(long_about = criu::ABOUT, after_help = crate::exit::OF_SERVE_CRIU)]
    Criu(Box<criu::Criu>),
}

const FIRECRACKER_ABOUT: &str = "\
Give microVMs that Firecracker resumes from a snapshot their memory, as they touch it.

SOCKET is what Firecracker is given as the path of a Uffd memory backend. Any number of microVMs \
resume from one image at a time. What a guest gives up (a balloon) reads as zeros afterwards.

The command serves until SIGTERM or SIGINT. MicroVMs that miss pages then are ended, or left to \
wait for ever, as --on-loss says; those that have all their pages go on. Where a store does not \
answer, that may take a minute, and the exit code is 5.";

/// Options of `serve firecracker`.
#[derive(Debug, Args)]
pub struct Firecracker {
    /// Where to listen: a Unix socket. One that nobody listens on any more is replaced
    pub socket: PathBuf,
    /// The memory to resume from: Firecracker's memory file, a snapshot of Pagetide's, or the index
    /// (IMAGE.pages) of either whose pages `pagetide pack` put into a store
    pub source: PathBuf,
    /// The store that the pages were packed into, if it is elsewhere than where it was then
    #[arg(long, value_name = "URI")]
    pub store: Option<String>,
    /// Bring the pages that nobody waits for as well: so many bytes a second for each microVM
    /// (64M), or as fast as can be (max). Without it they come when they are touched
    #[arg(long, value_name = "RATE|max", value_parser = rate)]
    pub prefetch_rate: Option<plan::Rate>,
    /// What to do with a microVM of which a page cannot be had: it is ended with SIGKILL, or the
    /// processor that waits for the page is left waiting
    #[arg(long, value_enum, value_name = "WHAT", default_value = "kill")]
    pub on_loss: OnLoss,
    /// Record which pages are waited for, and in which order, to FILE. Pages come one by one then
    #[arg(long, value_name = "FILE", conflicts_with_all = ["replay", "prefetch_rate"])]
    pub record: Option<PathBuf>,
    /// Bring the pages in FILE, which --record wrote for this image, as soon as a microVM connects
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Say what is done to everyone who connects to this Unix socket, as a JSON object
    #[arg(long, value_name = "SOCKET")]
    pub status: Option<PathBuf>,
    /// Have the service manager keep the microVMs' descriptors, so that the command takes them over
    /// when it is started again. Needs systemd, or who speaks its protocol (NOTIFY_SOCKET), and
    /// room there (FileDescriptorStoreMax=). SIGTERM leaves them to the next start then, and
    /// SIGINT ends the service of them
    #[arg(long, conflicts_with = "record")]
    pub takeover: bool,
    /// Where runs are: `ps`, `stat`, `top` and `metrics` look there
    #[command(flatten)]
    pub bases: Bases,
}

/// What to do with a client of which a page cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLoss {
    /// End it with SIGKILL
    Kill,
    /// Leave the thread waiting that touched the page
    Leave,
}

impl From<OnLoss> for plan::OnLost {
    fn from(on_loss: OnLoss) -> plan::OnLost {
        match on_loss {
            OnLoss::Kill => plan::OnLost::Kill,
            OnLoss::Leave => plan::OnLost::Leave,
        }
    }
}

fn rate(text: &str) -> Result<plan::Rate, String> {
    if text == "max" {
        return Ok(plan::Rate::Unlimited);
    }
    match pagetide_store::parse_size(text) {
        Ok(0) => Err("a rate of 0 brings nothing; leave the option out for that".to_owned()),
        Ok(bytes) => Ok(plan::Rate::BytesPerSecond(bytes)),
        Err(error) => Err(format!("{error}, for bytes a second; or max")),
    }
}

/// Serves until it is told to end.
pub fn serve(command: &ServeCommand) -> Result<u8, Failure> {
    match command {
        ServeCommand::Firecracker(options) => firecracker(options),
        ServeCommand::Criu(options) => criu::criu(options),
    }
}

fn firecracker(options: &Firecracker) -> Result<u8, Failure> {
    super::raise_descriptor_limit();
    let failed = |error: std::io::Error| Failure::new(Exit::Failed, format!("signals: {error}"));
    let ending = Arc::new(Moment::new().map_err(|errno| failed(errno.into()))?);
    // What was passed to this process, before anything else takes the numbers.
    let inherited = manager::inherited();
    let keeper = options.takeover.then(keeper).transpose()?;
    end_at_signals(&ending, keeper.clone()).map_err(failed)?;
    let store = |message: String| Failure::new(Exit::Store, message);
    let source = open_image(&options.source, options.store.as_deref());
    let source = source.map_err(|error| store(error.to_string()))?;
    let setup = setup(options, &source)?;
    let say = Arc::clone(&setup.say);
    let (listener, kept) = match &keeper {
        Some(keeper) => {
            let (listener, kept) = listening_again(&options.socket, keeper, inherited)?;
            (listener, Some(kept))
        }
        None => (listening(&options.socket)?, None),
    };
    let mut socket_file = Some(Removed::at(&options.socket));
    let failed = |error: std::io::Error| Failure::new(Exit::Failed, error.to_string());
    let mut server = Server::new(listener, setup, ending).map_err(failed)?;
    let named = options.status.as_deref();
    let _observed = Observed::begin(&server.status(), named, &options.bases, &say)?;
    let (image, socket) = (options.source.display(), options.socket.display());
    let size = Bytes(source.pages() * pagetide_kernel::PAGE_SIZE as u64);
    if let (Some(keeper), Some(kept)) = (&keeper, kept) {
        server.keep(keeper, kept).map_err(failed)?;
        keeper.ready().map_err(failed)?;
    }
    told(&format!("{image} ({size}) is served at {socket}"));
    let result = server.run();
    if keeper.is_some_and(|keeper| keeper.is_handing_over()) {
        // Who connects meanwhile waits there.
        socket_file.take().into_iter().for_each(Removed::stays);
    }
    result.map_err(failure)?;
    Ok(Exit::Ok.code())
}

fn failure(failed: Failed) -> Failure {
    let exit = match failed {
        Failed::GivenUp(_) => Exit::DataLost,
        Failed::Recorded(_) => Exit::Store,
    };
    Failure::new(exit, failed.to_string())
}

fn setup(options: &Firecracker, source: &Arc<dyn Source>) -> Result<Setup, Failure> {
    let replay = options.replay.as_ref();
    let replay = replay.map(|path| replay_of(path, &**source)).transpose()?;
    let recorder = options.record.as_ref();
    let recorder = recorder
        .map(|path| recorder_at(path, &**source))
        .transpose()?;
    Ok(Setup {
        source: Arc::clone(source),
        plan: Plan {
            rate: options.prefetch_rate.unwrap_or_default(),
            on_lost: options.on_loss.into(),
            replay,
            ..Plan::default()
        },
        recorder,
        clients_max: CLIENTS_MAX,
        patience: ENDING,
        say: Arc::new(told_in_one_line),
        about: about("firecracker", &options.source, &options.socket),
    })
}

/// What keeps clients for the next start.
fn keeper() -> Result<Arc<Keeper>, Failure> {
    let failed = |why: String| Failure::new(Exit::Failed, format!("--takeover: {why}"));
    let manager = Manager::of_environment().ok_or_else(|| {
        failed("there is no service manager (NOTIFY_SOCKET); start it as a service".to_owned())
    })?;
    let manager = manager.map_err(|error| failed(format!("the service manager: {error}")))?;
    if manager.room() == Some(0) {
        let text = "the service manager keeps no descriptors; set FileDescriptorStoreMax=";
        return Err(failed(text.to_owned()));
    }
    Ok(Arc::new(Keeper::new(manager)))
}

/// Has SIGINT, SIGTERM and SIGHUP bring the end; the clients that `keeper` has outlive it at
/// SIGTERM.
fn end_at_signals(ending: &Arc<Moment>, keeper: Option<Arc<Keeper>>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let ending = Arc::clone(ending);
    let body = move || {
        for signal in signals.forever() {
            if let Some(keeper) = keeper.as_ref().filter(|_| signal == SIGTERM) {
                keeper.hand_over();
            }
            ending.come();
        }
    };
    std::thread::Builder::new().spawn(body).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_were_given_up_are_told_by_the_exit_code() {
        let failure = failure(Failed::GivenUp(1));
        assert_eq!(failure.exit, Exit::DataLost);
        assert!(failure.to_string().contains("1 client,"), "{failure}");
    }

    #[test]
    fn rates_are_sizes_or_max() {
        assert_eq!(rate("64M"), Ok(plan::Rate::BytesPerSecond(64 << 20)));
        assert_eq!(rate("max"), Ok(plan::Rate::Unlimited));
        assert!(rate("0").unwrap_err().contains("leave the option out"));
        assert!(rate("fast").unwrap_err().contains("or max"));
    }
}
