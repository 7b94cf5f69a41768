//! `pagetide metrics`: what is exported, in each of the ways, and what is refused.
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

mod support;
use rustix::fs::inotify;
use support::pagetide::able;
use support::skip::skipped;

const PAGETIDE: &str = env!("CARGO_BIN_EXE_pagetide");

/// A command with run directories of its own.
fn pagetide(runtime: &std::path::Path) -> Command {
    let mut command = Command::new(PAGETIDE);
    command.env("XDG_RUNTIME_DIR", runtime);
    command
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A governed program that has touched four times its budget and waits for its stdin to end.
fn governed(runtime: &std::path::Path) -> Ended {
    let script = "my $x = 'x' x (16 << 20); $| = 1; print \"ready\\n\"; <STDIN>; print length $x";
    let mut child = pagetide(runtime)
        .args(["run", "--resident", "4M", "--", "perl", "-e", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    Ended(child)
}

fn once(runtime: &std::path::Path, more: &[&str]) -> String {
    let output = pagetide(runtime)
        .args(["metrics", "--once"])
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Values by name and labels; checks what each line has to be.
fn samples(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with("# EOF\n"), "{text}");
    let mut found = BTreeMap::new();
    let mut family = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            assert!(
                ["HELP", "TYPE", "UNIT"].contains(&words.next().unwrap()),
                "{line}"
            );
            family = words.next().unwrap().to_owned();
            continue;
        }
        let (key, value) = line.rsplit_once(' ').expect(line);
        assert!(key.starts_with(&family), "{line} is not of {family}");
        let value: f64 = value.parse().expect(line);
        assert!(
            found.insert(key.to_owned(), value).is_none(),
            "twice: {line}"
        );
    }
    found
}

fn of<'a>(
    samples: &'a BTreeMap<String, f64>,
    name: &'a str,
) -> impl Iterator<Item = (&'a str, f64)> {
    let start = format!("{name}{{");
    samples
        .iter()
        .filter(move |(key, _)| key.starts_with(&start))
        .map(|(key, value)| (key.as_str(), *value))
}

fn sum(samples: &BTreeMap<String, f64>, name: &str) -> f64 {
    of(samples, name).map(|(_, value)| value).sum()
}

#[test]
fn counters_are_those_of_the_process() {
    if let Err(why) = able() {
        return skipped("metrics", &why);
    }
    let runtime = tempfile::tempdir().unwrap();
    let mut program = governed(runtime.path());
    let found = samples(&once(runtime.path(), &[]));
    assert_eq!(sum(&found, "pagetide_processes"), 1.0);
    assert_eq!(sum(&found, "pagetide_budget_bytes"), f64::from(4 << 20));
    assert!(sum(&found, "pagetide_resident_bytes") <= f64::from(4 << 20));
    assert!(sum(&found, "pagetide_managed_bytes") >= f64::from(16 << 20));
    assert!(sum(&found, "pagetide_evicted_pages_total") >= 3072.0);
    assert_eq!(sum(&found, "pagetide_lost_processes_total"), 0.0);
    let run = format!("run=\"{}\",name=\"perl\"", program.0.id());
    let (key, faults) = of(&found, "pagetide_faults_total").next().unwrap();
    assert!(key.contains(&run), "{key} is not of {run}");
    let all = of(&found, "pagetide_fault_latency_seconds_bucket");
    let infinite: Vec<_> = all.filter(|(key, _)| key.contains("le=\"+Inf\"")).collect();
    assert_eq!(infinite.iter().map(|(_, count)| count).sum::<f64>(), faults);
    assert_eq!(sum(&found, "pagetide_fault_latency_seconds_count"), faults);
    let classes: Vec<f64> = of(&found, "pagetide_fault_latency_seconds_bucket")
        .map(|(_, count)| count)
        .collect();
    assert!(classes.iter().all(|count| *count <= faults), "{classes:?}");
    let by_pid = once(runtime.path(), &["--pids"]);
    assert!(by_pid.contains(",pid=\""), "{by_pid}");
    drop(program.0.stdin.take());
    assert!(program.0.wait().unwrap().success());
    assert_eq!(samples(&once(runtime.path(), &[])), BTreeMap::new());
}

/// Names of ledgers that were opened since, one for each time.
fn opened(watch: &OwnedFd) -> Vec<String> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    let mut names = Vec::new();
    while let Ok(event) = events.next() {
        let name = event
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        names.extend(name.filter(|name| name.ends_with(".stats")));
    }
    names.sort();
    names
}

#[test]
fn each_process_is_read_once_for_a_scrape() {
    if let Err(why) = able() {
        return skipped("each_process_is_read_once_for_a_scrape", &why);
    }
    let runtime = tempfile::tempdir().unwrap();
    // Quiet, so that the launcher does not look at them itself.
    let mut child = pagetide(runtime.path())
        .args(["run", "--quiet", "--", "sh", "-c"])
        .arg("for i in 1 2 3 4 5 6; do sleep 60 & done; echo \"$PAGETIDE_RUN_DIR\"; read end; kill $(jobs -p)")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut directory = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut directory).unwrap();
    let mut program = Ended(child);
    // All have executed: who does opens its file itself.
    let sleeping = || -> f64 {
        let found = samples(&once(runtime.path(), &[]));
        let named = of(&found, "pagetide_processes").filter(|(key, _)| key.contains("\"sleep\""));
        named.map(|(_, value)| value).sum()
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while sleeping() < 6.0 {
        assert!(Instant::now() < deadline, "{} processes", sleeping());
        std::thread::sleep(Duration::from_millis(20));
    }
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let flags = inotify::WatchFlags::OPEN;
    inotify::add_watch(&watch, directory.trim_end(), flags).unwrap();
    once(runtime.path(), &["--pids"]);
    let names = opened(&watch);
    let mut each = names.clone();
    each.dedup();
    assert!(each.len() >= 7, "{names:?}");
    assert_eq!(names, each);
    drop(program.0.stdin.take());
    program.0.wait().unwrap();
}

/// The text as others read it.
#[test]
fn a_parser_that_others_wrote_takes_it() {
    if let Err(why) = able() {
        return skipped("metrics", &why);
    }
    let parser = "import sys; from prometheus_client.openmetrics.parser import \
                  text_string_to_metric_families as parse; print(len(list(parse(sys.stdin.read()))))";
    let has = Command::new("python3")
        .args(["-c", "import prometheus_client.openmetrics.parser"])
        .output();
    if !has.is_ok_and(|output| output.status.success()) {
        return eprintln!("SKIPPED: Python's prometheus_client is not here");
    }
    let runtime = tempfile::tempdir().unwrap();
    let _program = governed(runtime.path());
    let text = once(runtime.path(), &["--pids"]);
    let mut python = Command::new("python3")
        .args(["-c", parser])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = python.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "21\n");
}

#[test]
fn a_textfile_is_written_whole() {
    let runtime = tempfile::tempdir().unwrap();
    let file = runtime.path().join("pagetide.prom");
    let mut command = pagetide(runtime.path());
    command
        .args(["metrics", "--every", "0.01", "--textfile"])
        .arg(&file);
    let exporter = Ended(command.spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(30);
    while !file.exists() {
        assert!(Instant::now() < deadline, "there is no file");
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..200 {
        samples(&std::fs::read_to_string(&file).unwrap());
    }
    drop(exporter);
    let nowhere = pagetide(runtime.path())
        .args(["metrics", "--textfile", "/no/such/directory/x.prom"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&nowhere.stderr);
    assert_eq!(nowhere.status.code(), Some(1), "{text}");
    assert!(text.contains("/no/such/directory/x.prom"), "{text}");
}

/// Root may put a file in the place of a device, and everybody else would miss that.
#[test]
fn a_textfile_takes_the_place_of_files_alone() {
    let runtime = tempfile::tempdir().unwrap();
    let there = runtime.path().join("there");
    let _listener = UnixListener::bind(&there).unwrap();
    let mut command = pagetide(runtime.path());
    command.args(["metrics", "--textfile"]).arg(&there);
    let mut exporter = Ended(command.stderr(Stdio::piped()).spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = loop {
        if let Some(status) = exporter.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it goes on");
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut said = String::new();
    let stderr = exporter.0.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("it is no regular file"), "{said}");
    let kind = there.symlink_metadata().unwrap().file_type();
    assert!(kind.is_socket(), "{kind:?}");
}

/// Sends `request` to the exporter at `address`; what it answers.
fn ask(address: &str, request: &[u8]) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(request).unwrap();
    let _ = connection.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// An exporter, and the address at which it answers.
fn exporter(runtime: &std::path::Path) -> (Ended, String) {
    let mut exporter = Ended(
        pagetide(runtime)
            .args(["metrics", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut line = String::new();
    BufReader::new(exporter.0.stderr.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line.trim().split("http://").nth(1).expect(&line);
    let address = address.trim_end_matches("/metrics").to_owned();
    (exporter, address)
}

/// Connections at a time, as the exporter has it.
const CONNECTIONS_MAX: usize = 64;
/// Idle connections are ended after a while, which may pass between two lines of a test.
const ATTEMPTS: usize = 20;

/// Whether the exporter still waits for what this connection asks.
fn is_open(idle: &TcpStream) -> bool {
    idle.set_nonblocking(true).unwrap();
    let read = (&*idle).read(&mut [0]);
    matches!(read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn a_scrape_does_not_wait_for_connections_that_ask_nothing() {
    let runtime = tempfile::tempdir().unwrap();
    let (_exporter, address) = exporter(runtime.path());
    let is_answered_beside_them = |_| {
        let idle: Vec<TcpStream> = (0..3)
            .map(|_| TcpStream::connect(&address).unwrap())
            .collect();
        let answer = ask(&address, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        idle.iter().all(is_open)
    };
    assert!((0..ATTEMPTS).any(is_answered_beside_them));
}

#[test]
fn connections_beyond_the_most_are_refused_and_then_taken_again() {
    let runtime = tempfile::tempdir().unwrap();
    let (_exporter, address) = exporter(runtime.path());
    let is_refused = |_| {
        let idle: Vec<TcpStream> = (0..CONNECTIONS_MAX)
            .map(|_| TcpStream::connect(&address).unwrap())
            .collect();
        let mut answer = String::new();
        let mut beyond = TcpStream::connect(&address).unwrap();
        let _ = beyond.read_to_string(&mut answer);
        drop(idle);
        answer.starts_with("HTTP/1.1 503 ")
    };
    assert!((0..ATTEMPTS).any(is_refused));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !ask(&address, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK") {
        assert!(Instant::now() < deadline, "it refuses for ever");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn scrapes_are_answered_and_nonsense_is_refused() {
    let runtime = tempfile::tempdir().unwrap();
    let (_exporter, address) = exporter(runtime.path());
    let address = address.as_str();
    let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    samples(body);
    let long = [
        b"GET /metrics HTTP/1.1\r\nX: ".to_vec(),
        vec![b'x'; 64 << 10],
    ]
    .concat();
    for (request, status) in [
        (b"GET / HTTP/1.1\r\n\r\n".as_slice(), "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00", "400"),
        (b"", "400"),
        (long.as_slice(), ""),
    ] {
        let answer = ask(address, request);
        assert!(answer.is_empty() || answer.contains(status), "{answer}");
    }
    assert!(ask(address, b"GET /metrics HTTP/1.0\r\n\r\n").contains("# EOF"));
    // What load balancers ask with: all but the body.
    let head = ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    assert!(!head.contains("Content-Length: 0\r"), "{head}");
    let taken = pagetide(runtime.path())
        .args(["metrics", "--listen", address])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&taken.stderr);
    assert_eq!(taken.status.code(), Some(1), "{text}");
    assert!(text.contains(address), "{text}");
}

#[test]
fn one_way_is_to_be_named() {
    for arguments in [
        &["metrics"][..],
        &["metrics", "--once", "--listen", "127.0.0.1:1"],
        &["metrics", "--listen", "localhost"],
        &["metrics", "--once", "--every", "0"],
    ] {
        let output = Command::new(PAGETIDE).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
}

/// What the dashboard and the alerts ask for is exported.
#[test]
fn dashboard_and_alerts_name_what_is_exported() {
    let runtime = tempfile::tempdir().unwrap();
    let text = once(runtime.path(), &[]);
    let exported: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let monitoring = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/monitoring");
    let budget_of_run = "pagetide_run_budget_bytes";
    for (file, needed) in [
        ("dashboard.json", ["pagetide_memory_bytes", budget_of_run]),
        (
            "alerts.yml",
            ["pagetide_over_memory_budget_bytes", budget_of_run],
        ),
    ] {
        let text = std::fs::read_to_string(format!("{monitoring}/{file}")).unwrap();
        for name in needed {
            assert!(text.contains(name), "{file}: {name}");
        }
        // The budget is the run's.
        assert!(!text.contains("limit PID"), "{file}");
        let mut named = 0;
        for (at, _) in text.match_indices("pagetide_") {
            let name = text[at..].split(|c: char| !(c == '_' || c.is_ascii_lowercase()));
            let name = name.into_iter().next().unwrap();
            let family = ["_total", "_sum", "_bucket"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            assert!(exported.contains(&family), "{file}: {name}");
            named += 1;
        }
        assert!(named > 5, "{file} names {named}");
    }
}

/// What raises an alert and what does not, by Prometheus's own tool where it is.
#[test]
fn alerts_are_raised_when_they_should_be() {
    let promtool = std::env::var_os("PAGETIDE_PROMTOOL").unwrap_or_else(|| "promtool".into());
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/alerts.test.yml");
    match Command::new(&promtool)
        .args(["test", "rules", cases])
        .output()
    {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => skipped("alerts", &format!("{}: {error}", promtool.display())),
    }
}
