//! The table of 2019 made again: random reads of a set four times its local memory, over each store and over kernel swap.
//!
//! One worker for each system, in turn, and beside them the plainest possible client's GET of 4 KiB from the same server: no pager can
//! read a page faster than that. The servers are started here, on private sockets and ports, and ended by their process ID.
use std::io::{Error, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::launch;
use crate::machine::Machine;
use crate::peer::KernelSwap;
use crate::worker::Parameters;

/// Mean access in us of the measurements published in 2019: pmbench in a virtual machine, 4 GB set, 1 GB local.
pub const PUBLISHED: [(&str, f64); 4] = [
    ("2019: user-space pager, RAMCloud", 24.87),
    ("2019: swap on persistent memory", 26.34),
    ("2019: swap on NVMe over Fabrics", 41.73),
    ("2019: swap on SSD", 106.56),
];

/// Round trips of the plain client.
const RAW_GETS: u64 = 20_000;
const PAGE: usize = 4096;

/// What to measure.
#[derive(Debug, Args)]
pub struct Plan {
    /// Bytes of the set
    #[arg(long, default_value = "1G", value_parser = bytes)]
    pub size: u64,
    /// Bytes of it that may be resident
    #[arg(long, default_value = "256M", value_parser = bytes)]
    pub resident: u64,
    /// Timed reads of random pages, for each system
    #[arg(long, default_value_t = 100_000)]
    pub accesses: u64,
    /// Where `file:` keeps its pages: a directory on a disk
    #[arg(long, default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Write one JSON object a system to FILE, or to stdout for -
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Draw the means to FILE, as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

fn bytes(text: &str) -> std::result::Result<u64, String> {
    pagetide_store::parse_size(text).map_err(|error| error.to_string())
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was measured.
    pub system: String,
    /// Mean of one access, hits included.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// One in a hundred takes longer.
    pub p99_us: f64,
    /// Accesses in a second.
    pub pages_per_s: f64,
}

/// A server of the benchmark's own.
struct Server(Child);

impl Server {
    fn start(program: &str, words: &[&str], ready: impl Fn() -> bool) -> Result<Server> {
        let child = Command::new(program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Error::new(error.kind(), format!("{program}: {error}")))?;
        let server = Server(child);
        let begun = Instant::now();
        while !ready() {
            if begun.elapsed() > Duration::from_secs(20) {
                return Err(Error::other(format!("{program} does not start")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Measures every system that can be had here; says on stderr which cannot.
pub fn stores(plan: &Plan) -> Result<()> {
    let directory = plan
        .directory
        .join(format!("pagetide-bench-stores-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let rows = measure(plan, &directory);
    std::fs::remove_dir_all(&directory)?;
    let rows = rows?;
    if let Some(path) = &plan.json {
        let mut text = String::new();
        for row in &rows {
            text += &serde_json::to_string(row)?;
            text.push('\n');
        }
        match path.as_os_str() == "-" {
            true => return std::io::stdout().write_all(text.as_bytes()),
            false => std::fs::write(path, text)?,
        }
    }
    if let Some(path) = &plan.plot {
        std::fs::write(path, draw(&rows))?;
    }
    print(plan, &rows)
}

fn measure(plan: &Plan, directory: &Path) -> Result<Vec<Row>> {
    let mut rows = vec![];
    let mut note = |what: &str, row: Result<Row>| match row {
        Ok(row) => rows.push(row),
        Err(error) => eprintln!("NOT MEASURED: {what}: {error}"),
    };
    let socket = directory.join("socket");
    let (port, cache) = (free_port()?, free_port()?);
    note("ram:", region(plan, "ram:", "ram:"));
    let file = format!("file:{}", directory.display());
    note("file:", region(plan, "file:", &file));
    let valkey = Server::start(
        "redis-server",
        &[
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--unixsocket",
            &socket.display().to_string(),
            "--dir",
            &directory.display().to_string(),
        ],
        || UnixStream::connect(&socket).is_ok(),
    );
    match &valkey {
        Err(error) => eprintln!("NOT MEASURED: valkey: {error}"),
        Ok(_) => {
            note(
                "raw GET by socket",
                UnixStream::connect(&socket)
                    .and_then(|stream| raw("raw GET of 4 KiB, socket", stream)),
            );
            let uri = format!("valkey+unix://{}", socket.display());
            note("valkey by socket", region(plan, "valkey, socket", &uri));
            note(
                "valkey by socket, sealed",
                region(
                    plan,
                    "valkey, socket, encrypted",
                    &format!("{uri}?encrypt=1"),
                ),
            );
            note(
                "raw GET by TCP",
                TcpStream::connect(("127.0.0.1", port)).and_then(|stream| {
                    stream.set_nodelay(true)?;
                    raw("raw GET of 4 KiB, TCP", stream)
                }),
            );
            let uri = format!("valkey://127.0.0.1:{port}");
            note(
                "valkey by TCP",
                region(plan, "valkey, TCP, lz4 and encrypted", &uri),
            );
        }
    }
    drop(valkey);
    let megabytes = ((plan.size * 2) >> 20).max(64).to_string();
    let memcached = Server::start(
        "memcached",
        &[
            "-M",
            "-u",
            "root",
            "-U",
            "0",
            "-l",
            "127.0.0.1",
            "-m",
            &megabytes,
            "-p",
            &cache.to_string(),
        ],
        || TcpStream::connect(("127.0.0.1", cache)).is_ok(),
    );
    match &memcached {
        Err(error) => eprintln!("NOT MEASURED: memcached: {error}"),
        Ok(_) => note(
            "memcached",
            region(
                plan,
                "memcached, TCP, lz4 and encrypted",
                &format!("memcached://127.0.0.1:{cache}"),
            ),
        ),
    }
    drop(memcached);
    note("swap on zram", zram(plan));
    Ok(rows)
}

fn parameters(plan: &Plan) -> Parameters {
    Parameters {
        bytes: plan.size as usize,
        accesses: plan.accesses,
        warmup: plan.accesses / 4,
        seed: 1,
        cgroup: None,
        region: None,
        region_signal: false,
        region_store: "ram:".to_owned(),
    }
}

fn region(plan: &Plan, system: &str, uri: &str) -> Result<Row> {
    let findings = launch::region(&Parameters {
        region: Some(plan.resident),
        region_store: uri.to_owned(),
        ..parameters(plan)
    })?;
    Ok(row(
        system,
        findings.read.mean,
        findings.read.p50,
        findings.read.p99,
    ))
}

fn zram(plan: &Plan) -> Result<Row> {
    let swap = KernelSwap::start(&parameters(plan), plan.resident)?;
    let read = swap.run(&parameters(plan), 0)?.findings.read;
    Ok(row("kernel swap, zram", read.mean, read.p50, read.p99))
}

fn row(system: &str, mean_ns: f64, p50_ns: f64, p99_ns: f64) -> Row {
    Row {
        system: system.to_owned(),
        mean_us: mean_ns / 1000.0,
        p50_us: p50_ns / 1000.0,
        p99_us: p99_ns / 1000.0,
        pages_per_s: 1e9 / mean_ns,
    }
}

/// GETs of one value of a page, one at a time, on a blocking socket.
fn raw(system: &str, mut stream: impl Read + Write) -> Result<Row> {
    let value = [b'v'; PAGE];
    let mut answer = vec![0; PAGE + 64];
    let mut set = format!("*3\r\n$3\r\nSET\r\n$3\r\nraw\r\n${PAGE}\r\n").into_bytes();
    set.extend_from_slice(&value);
    set.extend_from_slice(b"\r\n");
    stream.write_all(&set)?;
    stream.read_exact(&mut answer[..5])?;
    let mut times =
        Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3).map_err(Error::other)?;
    let expected = format!("${PAGE}\r\n").len() + PAGE + 2;
    for _ in 0..RAW_GETS {
        let begun = Instant::now();
        stream.write_all(b"*2\r\n$3\r\nGET\r\n$3\r\nraw\r\n")?;
        stream.read_exact(&mut answer[..expected])?;
        times.saturating_record(begun.elapsed().as_nanos() as u64);
    }
    if !answer[..expected - 2].ends_with(&value) {
        return Err(Error::other("the server gave another value than was set"));
    }
    Ok(row(
        system,
        times.mean(),
        times.value_at_quantile(0.5) as f64,
        times.value_at_quantile(0.99) as f64,
    ))
}

fn print(plan: &Plan, rows: &[Row]) -> Result<()> {
    let machine = Machine::here();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{} MiB set, {} MiB resident, {} random reads of each system, in turn; {machine:?}\n",
        plan.size >> 20,
        plan.resident >> 20,
        plan.accesses
    )?;
    writeln!(
        out,
        "{:<36} {:>9} {:>9} {:>9} {:>10}",
        "system", "mean us", "p50 us", "p99 us", "pages/s"
    )?;
    for row in rows {
        writeln!(
            out,
            "{:<36} {:>9.2} {:>9.2} {:>9.2} {:>10.0}",
            row.system, row.mean_us, row.p50_us, row.p99_us, row.pages_per_s
        )?;
    }
    for (system, mean_us) in PUBLISHED {
        writeln!(out, "{system:<36} {mean_us:>9.2}")?;
    }
    let mean = |system: &str| {
        rows.iter()
            .find(|row| row.system == system)
            .map(|row| row.mean_us)
    };
    if let (Some(ours), Some(raw)) = (mean("valkey, socket"), mean("raw GET of 4 KiB, socket")) {
        let missing = 1.0 - plan.resident as f64 / plan.size as f64;
        writeln!(
            out,
            "\nvalkey by socket over the raw GET times the share of misses ({missing:.2}): {:.2}",
            ours / (raw * missing)
        )?;
    }
    Ok(())
}

/// Bars of the means, those published beside those measured.
fn draw(rows: &[Row]) -> String {
    use svg::node::element::{Rectangle, Text};
    let measured = rows
        .iter()
        .map(|row| (row.system.as_str(), row.mean_us, "#3b6ea5"));
    let published = PUBLISHED
        .iter()
        .map(|(system, mean_us)| (*system, *mean_us, "#b0b0b0"));
    let bars: Vec<_> = measured.chain(published).collect();
    let longest = bars.iter().map(|bar| bar.1).fold(1.0, f64::max);
    let height = 24 * bars.len() + 40;
    let mut picture = svg::Document::new()
        .set("viewBox", (0, 0, 800, height))
        .set("font-family", "sans-serif")
        .set("font-size", 13)
        .add(
            Text::new("Mean access to a random page, us")
                .set("x", 10)
                .set("y", 20),
        );
    for (index, (system, mean_us, colour)) in bars.into_iter().enumerate() {
        let y = 36 + 24 * index;
        let width = mean_us / longest * 420.0;
        picture = picture
            .add(Text::new(system).set("x", 10).set("y", y + 14))
            .add(
                Rectangle::new()
                    .set("x", 280)
                    .set("y", y)
                    .set("width", width)
                    .set("height", 18)
                    .set("fill", colour),
            )
            .add(
                Text::new(format!("{mean_us:.1}"))
                    .set("x", 286.0 + width)
                    .set("y", y + 14),
            );
    }
    picture.to_string()
}
