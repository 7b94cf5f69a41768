//! What the server does, for those who ask: one JSON object.
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Serialize;

use crate::counters::{Counters, Counts, Histogram, Latencies};

/// How long whoever asks may take to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module's text.
#[derive(Debug, Default)]
pub struct Status {
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

#[derive(Serialize)]
struct Report {
    clients: Vec<Client>,
    clients_ended: u64,
    refused: u64,
    /// Of all clients, those that are gone as well.
    total: Counts,
    fault_latency: Latencies,
}

#[derive(Serialize)]
struct Client {
    client: u64,
    pid: Option<u32>,
    memory_pages: u64,
    #[serde(flatten)]
    counts: Counts,
}

impl Status {
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

    /// What was done for all clients so far.
    pub fn total(&self) -> Counts {
        let all = Counters::default();
        let clients = self.clients();
        all.add(&self.before.read());
        clients
            .values()
            .for_each(|client| all.add(&client.counters.read()));
        all.read()
    }

    /// What there is now, as a JSON object.
    pub fn json(&self) -> String {
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
        let clients = clients.iter().map(client).collect();
        let report = Report {
            clients,
            clients_ended: self.clients_ended.load(Relaxed),
            refused: self.refused.load(Relaxed),
            total: all.read(),
            fault_latency: self.latencies.read(),
        };
        serde_json::to_string(&report).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
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
        let status = Status::default();
        for number in 1..=2 {
            let counters = Arc::new(Counters::default());
            count(&counters.faults, number);
            status.add(number, Some(700 + number as u32), 16, counters);
        }
        status.remove(1);
        status.note_refused();
        let json: serde_json::Value = serde_json::from_str(&status.json()).unwrap();
        assert_eq!(
            (&json["total"]["faults"], &json["clients_ended"]),
            (&3.into(), &1.into())
        );
        assert_eq!(json["clients"].as_array().unwrap().len(), 1);
        assert_eq!(json["clients"][0]["pid"], 702);
        assert_eq!(
            (&json["clients"][0]["faults"], &json["refused"]),
            (&2.into(), &1.into())
        );
    }
}
