//! Servers for the tests: started on private sockets and ports, ended by their process ID.

// The tests of the command have it a second time.
#[allow(clippy::duplicate_mod)]
#[path = "../../../cli/tests/support/patience.rs"]
mod patience;

use patience::up_to;
use std::fs::{OpenOptions, create_dir_all};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Says loudly that a test was skipped, and notes it where the test command counts.
pub fn skipped(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test").to_owned();
    let line = format!("SKIPPED {}::{test}: {reason}\n", env!("CARGO_CRATE_NAME"));
    std::io::stderr().write_all(line.as_bytes()).ok();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("it is inside the target directory")
        .to_owned();
    create_dir_all(&directory).ok();
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("skipped-tests.txt"))
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the list of skipped tests can be written");
}

/// Whether `program` can be started; if not the test is skipped.
pub fn is_here(program: &str) -> bool {
    let here = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !here {
        skipped(&format!(
            "{program} is not installed here; `make test` installs it on Debian"
        ));
    }
    here
}

/// A TCP port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A running `redis-server`, in a directory of its own.
pub struct Valkey {
    child: Option<Child>,
    arguments: Vec<String>,
    pub directory: TempDir,
}

impl Valkey {
    /// With `arguments` besides those that keep it private; on a Unix socket alone unless they say
    /// `--port`. `None`: not here.
    pub fn start(arguments: &[&str]) -> Option<Valkey> {
        if !is_here("redis-server") {
            return None;
        }
        let mut server = Valkey {
            child: None,
            arguments: arguments.iter().map(|word| word.to_string()).collect(),
            directory: tempfile::tempdir().unwrap(),
        };
        server.restart();
        Some(server)
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("sock")
    }

    /// The URI by its socket, with `options` after the question mark.
    pub fn uri(&self, options: &str) -> String {
        format!("valkey+unix://{}?{options}", self.socket().display())
    }

    /// Starts it again on the same directory.
    pub fn restart(&mut self) {
        assert!(self.child.is_none());
        let _ = std::fs::remove_file(self.socket());
        let mut command = Command::new("redis-server");
        if !self.arguments.iter().any(|word| word == "--port") {
            command.args(["--port", "0"]);
        }
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(self.directory.path())
            .arg("--unixsocket")
            .arg(self.socket())
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            assert!(begun.elapsed() < up_to(20), "the server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", signal, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// What its own command line tool says to `words`: an opinion other than our client's.
    pub fn cli(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .arg("-s")
            .arg(self.socket())
            .args(words)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub fn keys(&self) -> u64 {
        self.cli(&["DBSIZE"]).parse().unwrap()
    }
}

impl Drop for Valkey {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// A running `memcached` on a port of its own.
pub struct Memcached {
    child: Child,
    pub port: u16,
}

impl Memcached {
    pub fn start(arguments: &[&str]) -> Option<Memcached> {
        if !is_here("memcached") {
            return None;
        }
        let port = free_port();
        let child = Command::new("memcached")
            .args([
                "-u",
                "root",
                "-l",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "-U",
                "0",
            ])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < up_to(20), "the server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Memcached { child, port })
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A cluster of three masters and three replicas on loopback.
pub struct Cluster {
    /// Masters first, as long as nothing failed over.
    pub nodes: Vec<Valkey>,
    pub ports: Vec<u16>,
}

impl Cluster {
    pub fn start() -> Option<Cluster> {
        let ports: Vec<u16> = (0..6).map(|_| free_port()).collect();
        let nodes: Vec<Valkey> = ports
            .iter()
            .map(|port| {
                // The port of the cluster's own talk is the port plus 10000 unless said otherwise.
                let (port, bus) = (port.to_string(), free_port().to_string());
                Valkey::start(&[
                    "--port",
                    &port,
                    "--cluster-enabled",
                    "yes",
                    "--cluster-port",
                    &bus,
                    "--cluster-node-timeout",
                    "1000",
                    "--appendonly",
                    "yes",
                ])
            })
            .collect::<Option<_>>()?;
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]);
        create.args(ports.iter().map(|port| format!("127.0.0.1:{port}")));
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let created = create.output().unwrap();
        assert!(
            created.status.success(),
            "{}",
            String::from_utf8_lossy(&created.stdout)
        );
        let cluster = Cluster { nodes, ports };
        cluster.wait(|info| {
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:6")
        });
        let begun = Instant::now();
        while !(3..6).all(|node| {
            cluster.nodes[node]
                .cli(&["INFO", "replication"])
                .contains("master_link_status:up")
        }) {
            assert!(begun.elapsed() < up_to(30), "the replicas do not follow");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(cluster)
    }

    /// Waits until all nodes that run say so.
    pub fn wait(&self, ready: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        while !self
            .nodes
            .iter()
            .filter(|node| node.child.is_some())
            .all(|node| ready(&node.cli(&["CLUSTER", "INFO"])))
        {
            assert!(begun.elapsed() < up_to(30), "the cluster does not form");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The URI, naming two of the nodes.
    pub fn uri(&self, options: &str) -> String {
        format!(
            "valkey-cluster://127.0.0.1:{},127.0.0.1:{}?{options}",
            self.ports[5], self.ports[0]
        )
    }

    /// Keys of all masters among the first three nodes.
    pub fn keys(&self) -> Vec<u64> {
        self.nodes[..3].iter().map(Valkey::keys).collect()
    }
}
