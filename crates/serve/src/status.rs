//! What the server does, for those who ask: one JSON object.
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pagetide_pager::protocol::histogram::Histogram;
use pagetide_pager::report::Latency;
use serde::{Deserialize, Serialize};

use crate::counters::{Counters, Counts};

/// How long whoever asks may take to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who serves what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The process ID.
    pub pid: u32,
    /// Which clients: `firecracker` or `criu`.
    pub serves: String,
    /// What they are served from.
    pub source: String,
    /// The socket that they connect to.
    pub socket: String,
}

/// See the module's text.
#[derive(Debug)]
pub struct Status {
    about: About,
    since: Instant,
    clients: Mutex<BTreeMap<u64, Served>>,
    /// Of clients that are gone.
    before: Counters,
    clients_ended: AtomicU64,
    refused: AtomicU64,
    broken: AtomicU64,
    latencies: Arc<Histogram>,
}

#[derive(Debug)]
struct Served {
    pid: Option<u32>,
    pages: u64,
    counters: Arc<Counters>,
}

/// What there was at a moment. Times are in nanoseconds unless the name says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Who serves what.
    #[serde(flatten)]
    pub about: About,
    /// Seconds since it began.
    pub wall_seconds: f64,
    /// Those that are served.
    pub clients: Vec<Client>,
    /// How many were served, and are no more.
    pub clients_ended: u64,
    /// How many of them could not be served to their end.
    pub clients_broken: u64,
    /// How many were refused.
    pub refused: u64,
    /// Of all clients, those that are gone as well.
    pub total: Counts,
    /// How long faults took, from the message to the page.
    pub fault_latency_ns: Latency,
    /// The same as pairs of an upper bound and how many faults took at most that, and longer than
    /// the bound before.
    pub fault_buckets_ns: Vec<(u64, u64)>,
    /// How long all of them took together.
    pub fault_sum_ns: u64,
}

/// A client that is served.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// Its number: the first is 1.
    pub client: u64,
    /// Its process ID, as far as it is known.
    pub pid: Option<u32>,
    /// How many pages its memory had when it came.
    pub memory_pages: u64,
    /// What was done for it.
    #[serde(flatten)]
    pub counts: Counts,
}

impl Status {
    /// Nobody is served yet.
    pub(crate) fn new(about: About) -> Status {
        Status {
            about,
            since: Instant::now(),
            clients: Mutex::default(),
            before: Counters::default(),
            clients_ended: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            latencies: Arc::default(),
        }
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, Served>> {
        self.clients.lock().unwrap_or_else(|held| held.into_inner())
    }

    /// Where all clients note how long faults took.
    pub(crate) fn latencies(&self) -> Arc<Histogram> {
        Arc::clone(&self.latencies)
    }

    /// A client is served.
    pub(crate) fn add(&self, number: u64, pid: Option<u32>, pages: u64, counters: Arc<Counters>) {
        let client = Served {
            pid,
            pages,
            counters,
        };
        self.clients().insert(number, client);
    }

    /// It is served no more.
    pub(crate) fn remove(&self, number: u64) {
        let mut clients = self.clients();
        if let Some(client) = clients.remove(&number) {
            self.before.add(&client.counters.read());
            self.clients_ended.fetch_add(1, Relaxed);
        }
    }

    /// Somebody was refused.
    pub(crate) fn note_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// A client could not be served to its end.
    pub(crate) fn note_broken(&self) {
        self.broken.fetch_add(1, Relaxed);
    }

    /// How many clients could not be served to their end.
    pub fn broken(&self) -> u64 {
        self.broken.load(Relaxed)
    }

    /// How many clients are served now.
    pub fn served(&self) -> usize {
        self.clients().len()
    }

    /// What there is now.
    pub fn report(&self) -> Report {
        let all = Counters::default();
        let clients = self.clients();
        all.add(&self.before.read());
        let client = |(number, served): (&u64, &Served)| {
            let counts = served.counters.read();
            all.add(&counts);
            Client {
                client: *number,
                pid: served.pid,
                memory_pages: served.pages,
                counts,
            }
        };
        Report {
            about: self.about.clone(),
            wall_seconds: self.since.elapsed().as_secs_f64(),
            clients: clients.iter().map(client).collect(),
            clients_ended: self.clients_ended.load(Relaxed),
            clients_broken: self.broken(),
            refused: self.refused.load(Relaxed),
            total: all.read(),
            fault_latency_ns: self.latencies.latency(),
            fault_buckets_ns: self.latencies.buckets().collect(),
            fault_sum_ns: self.latencies.sum_ns(),
        }
    }

    fn json(&self) -> String {
        let text = serde_json::to_string(&self.report());
        text.unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }

    /// Answers everyone who connects to `listener`, one after the other, for as long as the process
    /// lives.
    pub fn answer(&self, listener: &UnixListener) {
        for connection in listener.incoming() {
            let answered = connection.and_then(|mut connection| {
                connection.set_write_timeout(Some(PATIENCE))?;
                writeln!(connection, "{}", self.json())
            });
            // Who asked has gone: its affair. Descriptors may be had again in a moment.
            if answered.is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::count;

    #[test]
    fn those_that_are_gone_are_counted_still() {
        let status = Status::new(About {
            serves: "firecracker".to_owned(),
            ..About::default()
        });
        for number in 1..=2 {
            let counters = Arc::new(Counters::default());
            count(&counters.faults, number);
            status.add(number, Some(700 + number as u32), 16, counters);
        }
        status.remove(1);
        status.note_refused();
        status.latencies().record(1000);
        let report: Report = serde_json::from_str(&status.json()).unwrap();
        assert_eq!((report.total.faults, report.clients_ended), (3, 1));
        assert_eq!(report.clients.len(), 1);
        let client = &report.clients[0];
        assert_eq!((client.pid, client.counts.faults), (Some(702), 2));
        assert_eq!(
            (report.refused, report.about.serves.as_str()),
            (1, "firecracker")
        );
        assert_eq!(report.fault_latency_ns.p99, 1000);
        let buckets = &report.fault_buckets_ns;
        assert_eq!((buckets.len(), buckets[0].1), (1, 1));
        assert!((1000..1063).contains(&buckets[0].0));
    }
}
