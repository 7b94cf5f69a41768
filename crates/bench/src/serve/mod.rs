//! `serve`: how long `pagetide serve firecracker` takes for a fault, beside a handler that copies a
//! page and does nothing else; what a recorded working set saves; and how much memory it has for
//! many clients of one image.
mod client;

use std::io::{Error, Read as _, Result};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arguments::{at_least_one, size};
use crate::content::{Content, PAGE_BYTES, PAGE_WORDS, Random};
use crate::launch::{find_command, worker};
use crate::machine::Machine;
use crate::report::{print, progress};
use crate::statistics::{Spread, histogram, medians};
use crate::sysfs::status_bytes;
use crate::track::scratch::scratch_file;
use crate::undo;

use client::Client;
pub use client::{Bare, bare};

/// The name of the bare handler's task.
pub const BARE: &str = "serve-bare-worker";
/// Pages that come with the one that was waited for: of each so many, one is touched, so that every
/// touch is a fault.
const BLOCK: usize = 16;

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// The image
    #[arg(long, default_value = "1G", value_parser = size)]
    pub size: usize,
    /// Pages in the working set: at random places, touched in random order
    #[arg(long, default_value_t = 20_000, value_parser = at_least_one())]
    pub working_set: usize,
    /// How long a client waits before it touches its first page, in milliseconds: a microVM's
    /// devices are restored meanwhile
    #[arg(long, default_value_t = 0)]
    pub resume: u64,
    /// Clients of one image, each of which touches a tenth of it
    #[arg(long, default_value_t = 64, value_parser = at_least_one())]
    pub clients: usize,
    /// The image of these clients
    #[arg(long, default_value = "512M", value_parser = size)]
    pub clients_size: usize,
    /// Times the first two are measured, in turns; medians count
    #[arg(long, default_value_t = 5, value_parser = at_least_one())]
    pub runs: usize,
    /// Where the images are written, and removed again
    #[arg(long, default_value = ".")]
    pub directory: PathBuf,
    /// The `pagetide` command [default: the one beside this]
    #[arg(long)]
    pub pagetide: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Run {
    /// As the client sees it, in ns.
    bare: Spread,
    ours: Spread,
    faults_without_working_set: f64,
    faults_with_working_set: f64,
    touch_without_us: f64,
    touch_with_us: f64,
}

#[derive(Debug, Serialize)]
struct Findings {
    size_bytes: usize,
    working_set_pages: usize,
    runs: Run,
    clients: usize,
    clients_size_bytes: usize,
    /// Of the handler, when all clients have touched all of theirs.
    clients_rss_bytes: u64,
    clients_anonymous_bytes: u64,
}

/// Measures and prints. Files stay: call [`crate::undo::all`] afterwards, whatever came out.
pub fn run(plan: &Plan) -> Result<()> {
    let pagetide = find_command(plan.pagetide.as_deref())?;
    let image = image(plan, plan.size)?;
    let pages = plan.size / PAGE_BYTES;
    let mut random = Random::new(99);
    let place = |_| random.below(pages as u64) as usize;
    let places: Vec<usize> = (0..plan.working_set.min(pages)).map(place).collect();
    let set = image.with_extension("set");
    let record = ["--record".as_ref(), set.as_os_str()];
    let server = Server::start(&pagetide, &image, &record)?;
    server.touch(plan, &places)?;
    server.end()?;
    let mut runs = Vec::new();
    for turn in 0..plan.runs {
        progress(&format!("run {} of {}", turn + 1, plan.runs));
        runs.push(once(plan, &pagetide, &image, &places)?);
    }
    progress("many clients");
    let (rss, anonymous) = many(plan, &pagetide)?;
    progress("");
    let findings = Findings {
        size_bytes: plan.size,
        working_set_pages: places.len(),
        runs: medians(&runs),
        clients: plan.clients,
        clients_size_bytes: plan.clients_size,
        clients_rss_bytes: rss,
        clients_anonymous_bytes: anonymous,
    };
    print(plan.json, &findings, text)
}

/// A raw image of `len` bytes, in the page cache.
fn image(plan: &Plan, len: usize) -> Result<PathBuf> {
    use std::io::Write as _;
    let path = scratch_file(&plan.directory)?;
    let mut file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(&path)?);
    let (content, mut words) = (Content::half(7), [0; PAGE_WORDS]);
    for page in 0..len / PAGE_BYTES {
        content.fill(page, &mut words);
        for word in words {
            file.write_all(&word.to_le_bytes())?;
        }
    }
    file.flush()?;
    Ok(path)
}

/// Every way once.
fn once(plan: &Plan, pagetide: &Path, image: &Path, places: &[usize]) -> Result<Run> {
    let bare = Server::start_bare(image)?;
    let bare_times = bare.times(plan.size)?;
    bare.end()?;
    let ours = Server::start(pagetide, image, &[])?;
    let our_times = ours.times(plan.size)?;
    ours.end()?;
    let touched = |options: &[&std::ffi::OsStr]| {
        let server = Server::start(pagetide, image, options)?;
        let us = server.touch(plan, places)?;
        let faults = server.faults()?;
        server.end()?;
        Ok::<_, Error>((us, faults))
    };
    let set = image.with_extension("set");
    let (touch_without_us, faults_without_working_set) = touched(&[])?;
    let replay = ["--replay".as_ref(), set.as_os_str()];
    let (touch_with_us, faults_with_working_set) = touched(&replay)?;
    Ok(Run {
        bare: bare_times,
        ours: our_times,
        faults_without_working_set,
        faults_with_working_set,
        touch_without_us,
        touch_with_us,
    })
}

/// The handler's memory once many clients have touched a tenth of their image each: in all, and
/// without pages of the image's file.
fn many(plan: &Plan, pagetide: &Path) -> Result<(u64, u64)> {
    let len = plan.clients_size;
    let image = image(plan, len)?;
    let server = Server::start(pagetide, &image, &[])?;
    let mut random = Random::new(5);
    let mut clients = Vec::new();
    for number in 0..plan.clients {
        progress(&format!("client {} of {}", number + 1, plan.clients));
        let client = Client::connect(&server.socket, len)?;
        let blocks = len / PAGE_BYTES / BLOCK;
        for _ in 0..blocks / 10 {
            client.touch(random.below(blocks as u64) as usize * BLOCK);
        }
        clients.push(client);
    }
    let of = |field| {
        let bytes = status_bytes(server.child.id(), field);
        bytes.ok_or_else(|| Error::other(format!("the handler has no {field}")))
    };
    let found = (of("VmRSS")?, of("RssAnon")?);
    drop(clients);
    server.end()?;
    Ok(found)
}

/// A handler that is measured.
struct Server {
    child: Child,
    socket: PathBuf,
    status: PathBuf,
}

impl Server {
    fn start(pagetide: &Path, image: &Path, options: &[&std::ffi::OsStr]) -> Result<Server> {
        let status = image.with_extension("status");
        let mut command = Command::new(pagetide);
        command
            .args(["serve", "firecracker", "--on-loss", "leave"])
            .arg(image.with_extension("socket"))
            .arg(image)
            .arg("--status")
            .arg(&status)
            .args(options);
        Server::run(command, image)
    }

    fn start_bare(image: &Path) -> Result<Server> {
        let socket = image.with_extension("socket");
        let image_path = image.to_owned();
        let task = Bare {
            socket,
            image: image_path,
        };
        Server::run(worker(BARE, &task)?, image)
    }

    fn run(mut command: Command, image: &Path) -> Result<Server> {
        let socket = image.with_extension("socket");
        // Who was before has ended.
        let _ = std::fs::remove_file(&socket);
        let output = command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = undo::spawn(output.stderr(Stdio::null()))?;
        Ok(Server {
            child,
            socket,
            status: image.with_extension("status"),
        })
    }

    fn end(mut self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        self.child.wait()?;
        undo::forget_process();
        Ok(())
    }

    /// How long each touch of a client took, one in each block of `len` bytes, in random order.
    fn times(&self, len: usize) -> Result<Spread> {
        let client = Client::connect(&self.socket, len)?;
        let blocks = len / PAGE_BYTES / BLOCK;
        let mut order: Vec<usize> = (0..blocks).collect();
        let mut random = Random::new(3);
        for last in (1..blocks).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut times = histogram();
        for block in order {
            let begun = Instant::now();
            client.touch(block * BLOCK + block % BLOCK);
            times.saturating_record(begun.elapsed().as_nanos() as u64);
        }
        Ok(Spread::of(&times))
    }

    /// How long a client takes to touch these pages, in microseconds.
    fn touch(&self, plan: &Plan, places: &[usize]) -> Result<f64> {
        let client = Client::connect(&self.socket, plan.size)?;
        let begun = Instant::now();
        std::thread::sleep(Duration::from_millis(plan.resume));
        places.iter().for_each(|page| client.touch(*page));
        Ok(begun.elapsed().as_nanos() as f64 / 1e3)
    }

    /// Faults of all clients so far.
    fn faults(&self) -> Result<f64> {
        let mut text = String::new();
        UnixStream::connect(&self.status)?.read_to_string(&mut text)?;
        let status: Value = serde_json::from_str(&text)?;
        let faults = status["total"]["faults"].as_f64();
        faults.ok_or_else(|| Error::other(format!("the handler says {text}")))
    }
}

fn text(findings: &Findings) -> String {
    let (runs, us) = (&findings.runs, |ns: f64| ns / 1e3);
    let (bare, ours) = (&runs.bare, &runs.ours);
    format!(
        "an image of {} bytes in the page cache, medians of runs; {}\n\
         a fault, bare handler: p50 {:.2} us, p99 {:.2} us, mean {:.2} us\n\
         a fault, pagetide: p50 {:.2} us ({:.2}), p99 {:.2} us ({:.2}), mean {:.2} us ({:.2})\n\
         {} pages: {:.0} faults in {:.1} ms; with the recorded working set {:.0} ({:.4}) in {:.1} \
         ms ({:.2})\n\
         {} clients of {} bytes, a tenth touched by each: {} bytes resident ({:.2} images), {} of \
         them no file's\n",
        findings.size_bytes,
        Machine::here(),
        us(bare.p50),
        us(bare.p99),
        us(bare.mean),
        us(ours.p50),
        ours.p50 / bare.p50,
        us(ours.p99),
        ours.p99 / bare.p99,
        us(ours.mean),
        ours.mean / bare.mean,
        findings.working_set_pages,
        runs.faults_without_working_set,
        runs.touch_without_us / 1e3,
        runs.faults_with_working_set,
        runs.faults_with_working_set / runs.faults_without_working_set,
        runs.touch_with_us / 1e3,
        runs.touch_with_us / runs.touch_without_us,
        findings.clients,
        findings.clients_size_bytes,
        findings.clients_rss_bytes,
        findings.clients_rss_bytes as f64 / findings.clients_size_bytes as f64,
        findings.clients_anonymous_bytes,
    )
}
