//! GETs of values of a page, one at a time, without a pager: what a miss costs at the least.
use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use hdrhistogram::Histogram;
use pagetide_store::{Page, Slot};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::content::Random;
use crate::paging::task::Findings;
use crate::statistics::{Spread, histogram};

const PAGE: usize = 4096;
/// Values put before they are read, at a time.
const BATCH: u64 = 64;

/// By what the values are read.
#[derive(Debug, Clone, Copy)]
pub(super) enum How {
    /// The plainest client possible: a request written, an answer read, on a blocking socket.
    Plain,
    /// The same by TCP.
    PlainByPort,
    /// The store that regions use, called directly.
    Store,
    /// The maintained client crate of the server's family.
    Crate,
}

/// A client of the benchmark's server.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) how: How,
    pub(super) socket: PathBuf,
    /// The same, for the store.
    pub(super) uri: String,
    pub(super) port: u16,
    /// The processor of the server, on which the client is then to run as well.
    pub(super) cpu: Option<usize>,
}

impl Client {
    /// Puts `values` values of 4 KiB, and times `reads` reads of random ones.
    pub(super) fn measure(&self, values: u64, reads: u64) -> Result<Findings> {
        let measure = || {
            if let Some(cpu) = self.cpu {
                let mut set = CpuSet::new();
                set.set(cpu);
                sched_setaffinity(None, &set)?;
            }
            self.measure_here(values, reads)
        };
        // In a thread of its own, which may stay where it is put.
        std::thread::scope(|scope| scope.spawn(measure).join())
            .map_err(|_| Error::other("the client panicked"))?
    }

    fn measure_here(&self, values: u64, reads: u64) -> Result<Findings> {
        let values = values.max(1);
        let times = match self.how {
            How::Plain => plain(UnixStream::connect(&self.socket)?, values, reads),
            How::PlainByPort => {
                let stream = TcpStream::connect(("127.0.0.1", self.port))?;
                stream.set_nodelay(true)?;
                plain(stream, values, reads)
            }
            How::Store => by_store(&self.uri, values, reads),
            How::Crate => by_crate(
                &format!("redis+unix://{}", self.socket.display()),
                values,
                reads,
            ),
        }?;
        let all = Spread::of(&times);
        Ok(Findings {
            all,
            seconds: all.mean * all.count as f64 / 1e9,
            ..Findings::default()
        })
    }
}

fn key(index: u64) -> String {
    format!("raw:{index:08x}")
}

/// Half of it random, as the pages that are measured; the first word is its number.
fn value(index: u64) -> Vec<u8> {
    let mut random = Random::new(index);
    let words = std::iter::once(index).chain((1..PAGE / 16).map(|_| random.number()));
    let mut value: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    value.resize(PAGE, 0);
    value
}

fn check(index: u64, found: &[u8]) -> Result<()> {
    match found.len() == PAGE && found[..8] == index.to_le_bytes() {
        true => Ok(()),
        false => Err(Error::other("the server gave another value than was put")),
    }
}

fn word(request: &mut Vec<u8>, word: &[u8]) {
    request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
    request.extend_from_slice(word);
    request.extend_from_slice(b"\r\n");
}

fn plain(mut stream: impl Read + Write, values: u64, reads: u64) -> Result<Histogram<u64>> {
    let mut answer = vec![0; PAGE + 64];
    let mut request = vec![];
    for first in (0..values).step_by(BATCH as usize) {
        request.clear();
        let some = first..values.min(first + BATCH);
        for index in some.clone() {
            request.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
            word(&mut request, key(index).as_bytes());
            word(&mut request, &value(index));
        }
        stream.write_all(&request)?;
        for _ in some {
            stream.read_exact(&mut answer[..5])?;
        }
    }
    let head = format!("${PAGE}\r\n").len();
    let mut times = histogram();
    let mut random = Random::new(1);
    for _ in 0..reads {
        let index = random.below(values);
        request.clear();
        request.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
        word(&mut request, key(index).as_bytes());
        let begun = Instant::now();
        stream.write_all(&request)?;
        stream.read_exact(&mut answer[..head + PAGE + 2])?;
        times.saturating_record(begun.elapsed().as_nanos() as u64);
        check(index, &answer[head..head + PAGE])?;
    }
    stream.write_all(b"*1\r\n$8\r\nFLUSHALL\r\n")?;
    stream.read_exact(&mut answer[..5])?;
    Ok(times)
}

fn by_store(uri: &str, values: u64, reads: u64) -> Result<Histogram<u64>> {
    let store = pagetide_store::open(uri).map_err(Error::other)?;
    let mut slots = vec![Slot(0); values as usize];
    for (batch, slots) in slots.chunks_mut(BATCH as usize).enumerate() {
        let pages: Vec<Page> = (0..slots.len())
            .map(|index| {
                let mut page = Page::ZERO;
                page.0
                    .copy_from_slice(&value(batch as u64 * BATCH + index as u64));
                page
            })
            .collect();
        let pages: Vec<&Page> = pages.iter().collect();
        store.put(&pages, slots).map_err(Error::other)?;
    }
    let mut times = histogram();
    let mut random = Random::new(1);
    let mut page = Page::ZERO;
    for _ in 0..reads {
        let index = random.below(values);
        let begun = Instant::now();
        store
            .get(slots[index as usize], &mut page)
            .map_err(Error::other)?;
        times.saturating_record(begun.elapsed().as_nanos() as u64);
        check(index, &page.0)?;
    }
    Ok(times)
}

fn by_crate(uri: &str, values: u64, reads: u64) -> Result<Histogram<u64>> {
    let client = redis::Client::open(uri).map_err(Error::other)?;
    let mut connection = client.get_connection().map_err(Error::other)?;
    for first in (0..values).step_by(BATCH as usize) {
        let mut pipeline = redis::pipe();
        for index in first..values.min(first + BATCH) {
            pipeline.set(key(index), value(index)).ignore();
        }
        pipeline
            .query::<()>(&mut connection)
            .map_err(Error::other)?;
    }
    let mut times = histogram();
    let mut random = Random::new(1);
    for _ in 0..reads {
        let index = random.below(values);
        let key = key(index);
        let begun = Instant::now();
        let found: Vec<u8> = redis::cmd("GET")
            .arg(&key)
            .query(&mut connection)
            .map_err(Error::other)?;
        times.saturating_record(begun.elapsed().as_nanos() as u64);
        check(index, &found)?;
    }
    redis::cmd("FLUSHALL")
        .query::<()>(&mut connection)
        .map_err(Error::other)?;
    Ok(times)
}
