//! Answering scrapes over HTTP.
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::exposition;
use crate::args::Metrics;
use crate::commands::told;
use crate::exit::{Exit, Failure};

/// A request's head is read in this time and has at most so many bytes and fields.
const PATIENCE: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 16 << 10;
const FIELDS_MAX: usize = 64;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers at `address`, one request at a time: a scrape takes milliseconds.
pub fn serve(address: SocketAddr, options: &Metrics) -> Result<(), Failure> {
    let failure = |error: std::io::Error| {
        let text = format!(
            "--listen: {address}: {error}; give an address of this machine and a \
                            port that is free, such as 127.0.0.1:9753"
        );
        Failure::new(Exit::Failed, text)
    };
    let listener = TcpListener::bind(address).map_err(failure)?;
    let bound = listener.local_addr().map_err(failure)?;
    told(&format!("metrics at http://{bound}/metrics"));
    for connection in listener.incoming() {
        // What a client does wrong is its own affair. Descriptors may be had again in a moment.
        match connection {
            Ok(connection) => drop(answer(connection, options)),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(())
}

fn answer(mut connection: TcpStream, options: &Metrics) -> std::io::Result<()> {
    connection.set_write_timeout(Some(PATIENCE))?;
    let asked = request(&mut connection)?;
    let (status, kind, body) = match asked.path {
        Path::Metrics => match exposition::now(options) {
            Ok(text) => ("200 OK", OPENMETRICS, text),
            Err(failure) => (
                "500 Internal Server Error",
                "text/plain",
                failure.to_string(),
            ),
        },
        Path::Other => (
            "404 Not Found",
            "text/plain",
            "the metrics are at /metrics\n".to_owned(),
        ),
        Path::None => (
            "400 Bad Request",
            "text/plain",
            "expected GET /metrics\n".to_owned(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes())?;
    match asked.only_head {
        true => Ok(()),
        false => connection.write_all(body.as_bytes()),
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
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        connection.set_read_timeout(Some(left))?;
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
