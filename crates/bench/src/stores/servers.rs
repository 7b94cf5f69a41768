//! Servers of the benchmark's own, ended by their process ID whatever happens.
use std::io::{Error, Result};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity};

use super::raw::{Client, How};
use crate::undo;

/// A directory for this run in `parent`, removed at the end.
pub(super) fn directory(parent: &Path) -> Result<PathBuf> {
    let path = parent.join(format!("pagetide-bench-stores-{}", std::process::id()));
    let removed = path.clone();
    if !parent.is_dir() {
        let text = format!("--directory: {} is no directory", parent.display());
        return Err(Error::new(std::io::ErrorKind::NotFound, text));
    }
    undo::change(
        &format!("directory {}", path.display()),
        || std::fs::create_dir(&path),
        move || std::fs::remove_dir_all(&removed),
    )?;
    Ok(path)
}

/// What was started, or why not on stderr.
pub(super) fn had<T>(what: &str, started: Result<T>) -> Option<T> {
    started
        .inspect_err(|error| eprintln!("NOT MEASURED: {what}: {error}"))
        .ok()
}

fn start(program: &'static str, words: &[&str], ready: impl Fn() -> bool) -> Result<()> {
    let started = std::sync::Arc::new(std::sync::Mutex::new(None));
    let ended = std::sync::Arc::clone(&started);
    let lock = |child: &std::sync::Mutex<Option<std::process::Child>>| {
        child.lock().map_or(None, |mut child| child.take())
    };
    undo::change(
        program,
        || {
            use std::os::unix::process::CommandExt;
            let child = Command::new(program)
                .args(words)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                // A Ctrl-C is for us: the server goes last.
                .process_group(0)
                .spawn()
                .map_err(|error| Error::new(error.kind(), format!("{program}: {error}")))?;
            if let Ok(mut started) = started.lock() {
                *started = Some(child);
            }
            Ok(())
        },
        move || match lock(&ended) {
            None => Ok(()),
            Some(mut child) => child.kill().and_then(|()| child.wait()).map(|_| ()),
        },
    )?;
    let begun = Instant::now();
    while !ready() {
        if begun.elapsed() > Duration::from_secs(20) {
            return Err(Error::other(format!("{program} does not start")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// `redis-server`, by socket and by port.
pub(super) struct Valkey {
    socket: PathBuf,
    port: u16,
    /// The processor it keeps to.
    cpu: Option<usize>,
}

/// The last processor that this process may use.
pub(super) fn last_processor() -> Result<usize> {
    let may = sched_getaffinity(None)?;
    (0..CpuSet::MAX_CPU)
        .rfind(|cpu| may.is_set(*cpu))
        .ok_or_else(|| Error::other("this process may use no processor"))
}

impl Valkey {
    /// Without persistence: it would write what it is measured with to a disk. Everything else at
    /// its default is its best for requests of one client, but for the processor it keeps to, which
    /// is `cpu` if there is one.
    pub(super) fn start(directory: &Path, cpu: Option<usize>) -> Result<Valkey> {
        let name = cpu.map_or("socket".to_owned(), |cpu| format!("socket-{cpu}"));
        let socket = directory.join(name);
        let port = free_port()?;
        let mut settings = vec![
            ("--port", port.to_string()),
            ("--bind", "127.0.0.1".to_owned()),
            ("--save", String::new()),
            ("--appendonly", "no".to_owned()),
            ("--maxmemory-policy", "noeviction".to_owned()),
            ("--unixsocket", socket.display().to_string()),
            ("--dir", directory.display().to_string()),
        ];
        settings.extend(cpu.map(|cpu| ("--server_cpulist", cpu.to_string())));
        let words: Vec<&str> = settings
            .iter()
            .flat_map(|(name, value)| [*name, value.as_str()])
            .collect();
        start("redis-server", &words, || {
            UnixStream::connect(&socket).is_ok()
        })?;
        Ok(Valkey { socket, port, cpu })
    }

    /// Its URI, which says what processor it keeps to.
    pub(super) fn by_socket(&self, options: &str) -> String {
        let cpu = self.cpu.map(|cpu| format!("server-cpu={cpu}"));
        let options: Vec<&str> = [options, cpu.as_deref().unwrap_or_default()]
            .into_iter()
            .filter(|option| !option.is_empty())
            .collect();
        let mark = if options.is_empty() { "" } else { "?" };
        let path = self.socket.display();
        format!("valkey+unix://{path}{mark}{}", options.join("&"))
    }

    pub(super) fn by_port(&self) -> String {
        format!("valkey://127.0.0.1:{}", self.port)
    }

    pub(super) fn client(&self, how: How) -> Client {
        Client {
            how,
            socket: self.socket.clone(),
            uri: self.by_socket(""),
            port: self.port,
            cpu: self.cpu,
        }
    }
}

/// `memcached`, by port.
pub(super) struct Memcached {
    port: u16,
}

impl Memcached {
    /// With room for `bytes` of values.
    pub(super) fn start(bytes: u64) -> Result<Memcached> {
        let port = free_port()?;
        let megabytes = (bytes >> 20).max(64).to_string();
        let port_word = port.to_string();
        let words = [
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
            &port_word,
        ];
        start("memcached", &words, || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        })?;
        Ok(Memcached { port })
    }

    pub(super) fn uri(&self) -> String {
        format!("memcached://127.0.0.1:{}", self.port)
    }
}
