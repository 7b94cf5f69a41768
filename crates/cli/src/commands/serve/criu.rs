//! `pagetide serve criu`: the pages of processes that CRIU restores, in place of `criu lazy-pages`.
//!
//! It takes the arguments of that, as those who start it (runc, zdtm, people's scripts) give them.
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use clap::Args;
use pagetide_serve::criu::{Counting, Failed, Others, Remote, Session, Tree, index_of};
use pagetide_serve::moment::Moment;
use pagetide_serve::packed::{INDEX_NAME, Packed, Shelf};
use pagetide_serve::plan::{Beyond, OnLost, Plan, Rate};
use pagetide_serve::said::counted;
use pagetide_serve::server::{ENDING, Say, Setup};
use pagetide_serve::source::Source as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::bases::Bases;
use crate::commands::background;
use crate::exit::{Exit, Failure};
use crate::size::Bytes;
use crate::text::printable;

use super::observed::Observed;
use super::shared::{Removed, about, listening, recorder_at, replay_of, told_in_one_line};

pub(super) const ABOUT: &str = "\
Give processes that CRIU restores lazily their memory: in place of `criu lazy-pages`.

Start it in the directory of the images, or with --images-dir, then `criu restore --lazy-pages`. \
Pages come when a task touches them, with their neighbours, and all others in the background. The \
command ends by itself when every task has all its pages. At the first SIGTERM or SIGINT it goes \
on to that end; at the second, what has not come is lost: whoever touches it gets SIGBUS.

With --page-server, --address and --port pages come from `criu page-server --lazy-pages` or `criu \
dump --lazy-pages` on another machine; then the images here need no pages. Nor where \
`pagetide pack` has put them into a store: pages come from there.";

/// Options of `serve criu`: those of `criu lazy-pages`, and some more.
#[derive(Debug, Args)]
pub struct Criu {
    /// Where the images are
    #[arg(short = 'D', long, value_name = "DIR", default_value = ".")]
    pub images_dir: PathBuf,
    /// Where the socket and the log are; by default where the images are
    #[arg(short = 'W', long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    /// The socket, in the work directory
    #[arg(long, value_name = "PATH", default_value = "lazy-pages.socket")]
    pub socket: PathBuf,
    /// Fetch pages from a page server: at HOST:PORT, or where --address and --port say
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = "")]
    pub page_server: Option<String>,
    /// The page server's name or address
    #[arg(long, value_name = "HOST", requires = "page_server")]
    pub address: Option<String>,
    /// The page server's port
    #[arg(long, requires = "page_server")]
    pub port: Option<u16>,
    /// The store that the pages were packed into, if it is elsewhere than where it was then
    #[arg(long, value_name = "URI", conflicts_with = "page_server")]
    pub store: Option<String>,
    /// How the page server counts pages: with 32 bits up to CRIU 4.1, with 64 from 4.2 on; by
    /// default as the images do
    #[arg(long, value_name = "32|64", value_parser = counting)]
    pub page_count_bits: Option<Counting>,
    /// Write one byte to this descriptor, and close it, once a restore can begin
    #[arg(long, value_name = "N")]
    pub status_fd: Option<RawFd>,
    /// Write messages to this file, in the work directory, rather than to stderr
    #[arg(short = 'o', long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Go on in the background once a restore can begin
    #[arg(short = 'd', long)]
    pub daemon: bool,
    /// Write the background process's ID to this file, in the work directory
    #[arg(long, value_name = "FILE", requires = "daemon")]
    pub pidfile: Option<PathBuf>,
    /// Bring the pages in FILE, which --record wrote for these images, before all others
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Record which pages are waited for, and in which order, to FILE. Pages come one by one, and
    /// no others, until SIGTERM
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub record: Option<PathBuf>,
    /// Say what is done to everyone who connects to this Unix socket, as a JSON object
    #[arg(long, value_name = "SOCKET")]
    pub status: Option<PathBuf>,
    /// Where runs are: `ps`, `stat`, `top` and `metrics` look there
    #[command(flatten)]
    pub bases: Bases,
    #[command(flatten)]
    pub unused: Unused,
    /// This is the background process.
    #[arg(long, hide = true)]
    pub in_background: bool,
}

/// Options of CRIU's that change nothing here.
#[derive(Debug, Args)]
pub struct Unused {
    #[arg(short = 'v', long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "")]
    #[arg(hide = true, action = clap::ArgAction::Append)]
    pub verbosity: Vec<String>,
    #[arg(long, hide = true)]
    pub no_default_config: bool,
    #[arg(long, hide = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[arg(long, hide = true)]
    pub lazy_pages: bool,
    #[arg(long, hide = true)]
    pub display_stats: bool,
    #[arg(short = 'L', long, hide = true, value_name = "DIR")]
    pub libdir: Option<PathBuf>,
    #[arg(long, hide = true)]
    pub log_pid: bool,
    #[arg(long, hide = true)]
    pub unprivileged: bool,
}

fn counting(text: &str) -> Result<Counting, String> {
    match text {
        "32" => Ok(Counting::Bits32),
        "64" => Ok(Counting::Bits64),
        _ => Err("32 or 64 was expected".to_owned()),
    }
}

/// Serves one restore.
pub(super) fn criu(options: &Criu) -> Result<u8, Failure> {
    if options.daemon && !options.in_background {
        return start_in_background(options);
    }
    if options.in_background {
        // A terminal that closes does not end it.
        let _ = rustix::process::setsid();
    }
    crate::commands::raise_descriptor_limit();
    let failed = |error: io::Error| Failure::new(Exit::Failed, error.to_string());
    let places = Places::of(options)?;
    let say = places.log(options.log_file.as_deref())?;
    // What CRIU reads itself of a packed dump is there until the end.
    let (tree, _others) = dump(options, &places.images)?;
    let setup = setup(options, &places, &tree, Arc::clone(&say))?;
    // The socket's name is short in the work directory, as a socket's must be.
    std::env::set_current_dir(&places.work).map_err(failed)?;
    let listener = listening(&options.socket)?;
    let socket = places.work.join(&options.socket);
    let _socket = Removed::at(&socket);
    let ending = Arc::new(Moment::new().map_err(|errno| failed(errno.into()))?);
    let session = Session::new(listener, Arc::clone(&tree), setup, Arc::clone(&ending));
    let session = session.map_err(failed)?;
    end_at_signals(ending, &session, Arc::clone(&say)).map_err(failed)?;
    let (counts, named) = (session.status(), places.status.as_deref());
    let _observed = Observed::begin(&counts, named, &options.bases, &say)?;
    let size = Bytes(tree.pages() * pagetide_kernel::PAGE_SIZE as u64);
    let tasks = counted(tree.tasks() as u64, "task");
    say(&format!("{tasks} ({size}) can be restored"));
    tell_ready(options)?;
    let result = session.run();
    let total = counts.report().total;
    say(&format!(
        "{} faults brought {} pages, {} came with them, {} before anybody asked",
        total.faults,
        total.fault_pages,
        total.block_pages,
        total.working_set_pages + total.background_pages
    ));
    result.map_err(|failure| {
        say(&failure.to_string());
        let exit = match failure {
            Failed::Lost(_) | Failed::Broken(_) => Exit::DataLost,
            Failed::Source(_) | Failed::Recorded(_) => Exit::Store,
            _ => Exit::Failed,
        };
        Failure::new(exit, failure.to_string())
    })?;
    Ok(Exit::Ok.code())
}

/// The directories, whichever is the current one.
struct Places {
    images: PathBuf,
    work: PathBuf,
    status: Option<PathBuf>,
    record: Option<PathBuf>,
}

impl Places {
    fn of(options: &Criu) -> Result<Places, Failure> {
        let real = |path: &Path| {
            std::fs::canonicalize(path)
                .map_err(|error| Failure::new(Exit::Store, format!("{}: {error}", path.display())))
        };
        let images = real(&options.images_dir)?;
        let work = options.work_dir.as_deref().map(real).transpose()?;
        let here = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Ok(Places {
            status: options.status.as_ref().map(here),
            record: options.record.as_ref().map(here),
            work: work.unwrap_or_else(|| images.clone()),
            images,
        })
    }

    /// Where messages go.
    fn log(&self, file: Option<&Path>) -> Result<Say, Failure> {
        let Some(file) = file else {
            return Ok(Arc::new(told_in_one_line));
        };
        let path = self.work.join(file);
        let log = File::create(&path)
            .map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", path.display())))?;
        let log = Mutex::new(log);
        Ok(Arc::new(move |text: &str| {
            let mut log = log.lock().unwrap_or_else(|held| held.into_inner());
            // A full disk leaves nobody to tell.
            let _ = writeln!(log, "pagetide: {}", printable(text));
        }))
    }
}

/// The dump that is restored.
fn dump(options: &Criu, images: &Path) -> Result<(Arc<Tree>, Others), Failure> {
    let failed = |error: &dyn ToString| Failure::new(Exit::Store, error.to_string());
    let remote = remote(options)?;
    let index = match remote {
        None => index_of(images).map_err(|error| failed(&error))?,
        Some(_) => None,
    };
    let Some(index) = index else {
        if options.store.is_some() {
            let text = format!("--store: {} has no {INDEX_NAME}", images.display());
            return Err(Failure::new(Exit::Store, text));
        }
        let tree = Tree::open(images, remote).map_err(|error| failed(&error))?;
        return Ok((Arc::new(tree), Others::default()));
    };
    let uri = options.store.as_ref().unwrap_or(&index.store);
    let shelf = Shelf::open(uri).map_err(|error| {
        let text = format!("the store of the pages: {error}; --store names another place");
        Failure::new(Exit::Store, text)
    })?;
    let packed = Arc::new(Packed::open(index, &shelf).map_err(|error| failed(&error))?);
    let tree = Tree::packed(images, Arc::clone(&packed)).map_err(|error| failed(&error))?;
    let others = Others::make(images, &packed).map_err(|error| failed(&error))?;
    Ok((Arc::new(tree), others))
}

fn remote(options: &Criu) -> Result<Option<Remote>, Failure> {
    let Some(told) = options.page_server.as_deref() else {
        return Ok(None);
    };
    let address = match (told.rsplit_once(':'), &options.address, options.port) {
        (Some((host, port)), None, None) => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            port.parse().ok().map(|port| (host.to_owned(), port))
        }
        (None, Some(host), Some(port)) if told.is_empty() => Some((host.clone(), port)),
        _ => None,
    };
    let address = address.ok_or_else(|| {
        let text = "--page-server: HOST:PORT was expected, or --address HOST and --port PORT";
        Failure::new(Exit::Usage, text.to_owned())
    })?;
    Ok(Some(Remote {
        address,
        counting: options.page_count_bits,
    }))
}

fn setup(options: &Criu, places: &Places, tree: &Arc<Tree>, say: Say) -> Result<Setup, Failure> {
    let replay = options.replay.as_ref();
    let replay = replay.map(|path| replay_of(path, &**tree)).transpose()?;
    let recorder = places.record.as_ref();
    let recorder = recorder
        .map(|path| recorder_at(path, &**tree))
        .transpose()?;
    Ok(Setup {
        source: Arc::clone(tree) as _,
        plan: Plan {
            rate: Rate::Unlimited,
            on_lost: OnLost::Poison,
            beyond: Beyond::Zeros,
            until_whole: true,
            replay,
            ..Plan::default()
        },
        recorder,
        clients_max: usize::MAX,
        patience: ENDING,
        say,
        about: about("criu", &places.images, &places.work.join(&options.socket)),
    })
}

/// Tells whoever waits that a restore can begin.
fn tell_ready(options: &Criu) -> Result<(), Failure> {
    if let Some(number) = options.status_fd {
        let path = format!("/proc/self/fd/{number}");
        let opened = File::options().write(true).open(&path);
        opened
            .and_then(|mut fd| fd.write_all(&[0]))
            .map_err(|error| {
                Failure::new(Exit::Failed, format!("--status-fd {number}: {error}"))
            })?;
        // Whoever waits for its end has it.
        let _ = nix::unistd::close(number);
    }
    match options.in_background {
        true => background::ready("the pages are served in the background"),
        false => Ok(()),
    }
}

fn start_in_background(options: &Criu) -> Result<u8, Failure> {
    let started = match background::start(&["serve", "criu"])? {
        Ok(started) => started,
        Err(code) => return Ok(code),
    };
    if let Some(file) = &options.pidfile {
        let work = options.work_dir.as_ref().unwrap_or(&options.images_dir);
        let path = work.join(file);
        if let Err(error) = std::fs::write(&path, started.line.trim_end()) {
            started.end();
            return Err(Failure::new(
                Exit::Failed,
                format!("{}: {error}", path.display()),
            ));
        }
    }
    Ok(Exit::Ok.code())
}

/// The first signal lets what is under way come to its end, which is near; the second ends it.
fn end_at_signals(ending: Arc<Moment>, session: &Session, say: Say) -> io::Result<()> {
    let (status, recorder) = (session.status(), session.recorder());
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let body = move || {
        let mut heard = false;
        for _ in signals.forever() {
            if heard || status.served() == 0 {
                ending.come();
                continue;
            }
            heard = true;
            if let Some(recorder) = &recorder {
                recorder.end();
            }
            say("it ends once every task has all its pages; another signal ends it now");
        }
    };
    std::thread::Builder::new().spawn(body).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        options: Criu,
    }

    fn parsed(line: &str) -> Criu {
        let words = std::iter::once("criu").chain(line.split(' '));
        Command::try_parse_from(words).unwrap().options
    }

    #[test]
    fn the_arguments_of_crius_daemon_are_understood() {
        let line =
            "--no-default-config --log-file f.log --images-dir /d --verbosity=4 --status-fd 9";
        let options = parsed(line);
        assert_eq!(
            (options.images_dir, options.status_fd),
            ("/d".into(), Some(9))
        );
        for line in [
            "-v4 -D /d",
            "-v -D /d",
            "-vvv -D /d",
            "-D /d -v4 -o log -W /w",
        ] {
            assert_eq!(parsed(line).images_dir, Path::new("/d"), "{line}");
        }
        let options = parsed("-d --pidfile p -D /d --lazy-pages");
        assert_eq!((options.daemon, options.pidfile), (true, Some("p".into())));
    }

    #[test]
    fn a_page_server_is_told_of_in_both_ways() {
        let address = |line: &str| remote(&parsed(line)).map(|remote| remote.map(|r| r.address));
        let expected = Some(("10.0.0.1".to_owned(), 7));
        for line in [
            "--page-server --address 10.0.0.1 --port 7 -D x",
            "--page-server 10.0.0.1:7",
            "--address 10.0.0.1 --page-server --port 7",
        ] {
            assert_eq!(address(line).unwrap(), expected, "{line}");
        }
        assert_eq!(
            address("--page-server [::1]:7").unwrap(),
            Some(("::1".to_owned(), 7))
        );
        assert_eq!(address("-D x").unwrap(), None);
        for line in [
            "--page-server here",
            "--page-server a:7 --port 8",
            "--page-server a:b",
        ] {
            let failure = address(line).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{line}");
        }
    }
}
