//! Answering scrapes over HTTP.
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use super::exposition;
use crate::args::Metrics;
use crate::commands::told;
use crate::exit::{Exit, Failure};

/// Connections at a time, each with a thread of its own; more are refused.
const CONNECTIONS_MAX: usize = 64;
/// A request's head is read in this time and has at most so many bytes and fields. As long may an
/// answer take to be read.
const PATIENCE: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 16 << 10;
const FIELDS_MAX: usize = 64;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers at `address`.
pub fn serve(address: SocketAddr, options: &Metrics) -> Result<(), Failure> {
    let failure = |error: std::io::Error| {
        let text = format!(
            "--listen: {address}: {error}; give an address of this machine, and a port that \
             nobody listens at"
        );
        Failure::new(Exit::Failed, text)
    };
    let listener = TcpListener::bind(address).map_err(failure)?;
    let bound = listener.local_addr().map_err(failure)?;
    told(&format!("metrics at http://{bound}/metrics"));
    let server = Server {
        options,
        scraping: Mutex::new(()),
        open: AtomicUsize::new(0),
    };
    thread::scope(|threads| {
        for connection in listener.incoming() {
            match connection {
                Ok(connection) => server.begin(connection, threads),
                // Descriptors may be had again in a moment.
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    });
    Ok(())
}

struct Server<'a> {
    options: &'a Metrics,
    /// Held while samples are gathered: many scrapes at a time would cost as many processors.
    scraping: Mutex<()>,
    /// Connections that are being answered.
    open: AtomicUsize,
}

/// One of those that may be open; given back when it is dropped.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(open: &'a AtomicUsize) -> Option<Place<'a>> {
        let place = Place(open);
        (open.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server<'_> {
    /// Answers on a thread of its own, or refuses at once. What a client does wrong is its own
    /// affair.
    fn begin<'s>(&'s self, mut connection: TcpStream, threads: &'s Scope<'s, '_>) {
        let Some(place) = Place::take(&self.open) else {
            let text = "too many connections\n".to_owned();
            let refusal = Answer::of("503 Service Unavailable", text);
            return drop(refusal.send(&mut connection, false));
        };
        let answering = move || {
            let _ = self.answer(connection);
            drop(place);
        };
        // Without a thread the connection is dropped.
        let _ = thread::Builder::new().spawn_scoped(threads, answering);
    }

    fn answer(&self, mut connection: TcpStream) -> std::io::Result<()> {
        let asked = request(&mut connection)?;
        let answer = match asked.path {
            Path::Metrics => self.metrics(),
            Path::Other => Answer::of("404 Not Found", "the metrics are at /metrics\n".to_owned()),
            Path::None => Answer::of("400 Bad Request", "expected GET /metrics\n".to_owned()),
        };
        answer.send(&mut connection, asked.only_head)
    }

    fn metrics(&self) -> Answer {
        let _one = (self.scraping.lock()).unwrap_or_else(PoisonError::into_inner);
        match exposition::now(self.options) {
            Ok(body) => Answer {
                status: "200 OK",
                kind: OPENMETRICS,
                body,
            },
            Err(failure) => Answer::of("500 Internal Server Error", failure.to_string()),
        }
    }
}

struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn of(status: &'static str, body: String) -> Answer {
        let kind = "text/plain";
        Answer { status, kind, body }
    }

    fn send(&self, connection: &mut TcpStream, only_head: bool) -> std::io::Result<()> {
        let Answer { status, kind, body } = self;
        let mut text = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: \
             close\r\n\r\n",
            body.len()
        );
        if !only_head {
            text.push_str(body);
        }
        let deadline = Instant::now() + PATIENCE;
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            connection.set_write_timeout(Some(left_until(deadline)?))?;
            match connection.write(rest)? {
                0 => return Err(std::io::ErrorKind::WriteZero.into()),
                count => rest = &rest[count..],
            }
        }
        Ok(())
    }
}

/// The time there is still, which is not none.
fn left_until(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(std::io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// What is asked for.
struct Asked {
    path: Path,
    /// By HEAD: the answer is as to GET, without its body.
    only_head: bool,
}

enum Path {
    Metrics,
    Other,
    /// It is no request, or for what is not done here.
    None,
}

/// Reads the head of a request.
fn request(connection: &mut TcpStream) -> std::io::Result<Asked> {
    let deadline = Instant::now() + PATIENCE;
    let (mut head, mut buffer) = (Vec::new(), [0; 2048]);
    while head.len() < HEAD_BYTES_MAX {
        connection.set_read_timeout(Some(left_until(deadline)?))?;
        let count = connection.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        head.extend_from_slice(&buffer[..count]);
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(&head) {
            Ok(httparse::Status::Partial) => {}
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.unwrap_or_default();
                let path = path.split('?').next().unwrap_or_default();
                let only_head = request.method == Some("HEAD");
                let path = match path {
                    _ if !only_head && request.method != Some("GET") => Path::None,
                    "/metrics" => Path::Metrics,
                    _ => Path::Other,
                };
                return Ok(Asked { path, only_head });
            }
            Err(_) => break,
        }
    }
    Ok(Asked {
        path: Path::None,
        only_head: false,
    })
}
