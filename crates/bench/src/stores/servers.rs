//! Servers of the benchmark's own, ended by their process ID whatever happens.
use std::io::{Error, Result};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::raw::{Client, How};
use crate::undo;

/// A directory for this run in `parent`, removed at the end.
pub(super) fn directory(parent: &Path) -> Result<PathBuf> {
    let path = parent.join(format!("pagetide-bench-stores-{}", std::process::id()));
    let removed = path.clone();
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
}

impl Valkey {
    /// Without persistence: it would write what it is measured with to a disk. Everything else at its default is its best for
    /// requests of one client.
    pub(super) fn start(directory: &Path) -> Result<Valkey> {
        let socket = directory.join("socket");
        let port = free_port()?;
        let settings = [
            ("--port", port.to_string()),
            ("--bind", "127.0.0.1".to_owned()),
            ("--save", String::new()),
            ("--appendonly", "no".to_owned()),
            ("--maxmemory-policy", "noeviction".to_owned()),
            ("--unixsocket", socket.display().to_string()),
            ("--dir", directory.display().to_string()),
        ];
        let words: Vec<&str> = settings
            .iter()
            .flat_map(|(name, value)| [*name, value.as_str()])
            .collect();
        start("redis-server", &words, || {
            UnixStream::connect(&socket).is_ok()
        })?;
        Ok(Valkey { socket, port })
    }

    pub(super) fn by_socket(&self, options: &str) -> String {
        format!("valkey+unix://{}{options}", self.socket.display())
    }

    pub(super) fn by_port(&self) -> String {
        format!("valkey://127.0.0.1:{}", self.port)
    }

    pub(super) fn client(&self, how: How) -> Client {
        Client {
            how,
            socket: self.socket.clone(),
            port: self.port,
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
