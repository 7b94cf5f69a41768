//! A real store that can be made to stall, and who waits for it seen from outside.
use super::servers::{Valkey, free_port};

/// A store at a TCP port, whose receive queues the system shows.
pub struct HeldStore {
    server: Valkey,
    port: u16,
}

impl HeldStore {
    /// `None`: no such store is here.
    pub fn start() -> Option<HeldStore> {
        let port = free_port();
        let server = Valkey::start(&["--port", &port.to_string()])?;
        Some(HeldStore { server, port })
    }

    /// Its URI, for a client that is patient.
    pub fn uri(&self) -> String {
        format!("valkey://127.0.0.1:{}?timeout=50s", self.port)
    }

    pub fn stall(&self) {
        self.server.signal("STOP");
    }

    pub fn go_on(&self) {
        self.server.signal("CONT");
    }

    /// Whether somebody has asked it since it stalled: it has not read what was sent to it.
    pub fn is_asked(&self) -> bool {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let local_port = format!(":{:04X}", self.port);
        let is_asked = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (local, queues) = (words.get(1)?, words.get(4)?);
            let (_sent, received) = queues.split_once(':')?;
            let received = u32::from_str_radix(received, 16).ok()?;
            Some(local.ends_with(&local_port) && received > 0)
        };
        sockets.lines().any(|line| is_asked(line) == Some(true))
    }
}
