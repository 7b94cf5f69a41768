//! The schemes of remote stores. They are known to a build without remote stores as well, so that
//! it can say what it lacks.

/// How the servers of a remote store are spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scheme {
    /// For messages and statistics.
    pub(crate) name: &'static str,
    pub(crate) protocol: Protocol,
    /// By a socket file of this machine.
    pub(crate) unix: bool,
    pub(crate) tls: bool,
    pub(crate) cluster: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Memcached,
    Valkey,
}

impl Scheme {
    /// The scheme that a URI begins with, if it is one of a remote store.
    pub(crate) fn of(name: &str) -> Option<Scheme> {
        let (name, protocol) = match name {
            "memcached" => ("memcached", Protocol::Memcached),
            "valkey" | "redis" => ("valkey", Protocol::Valkey),
            "valkeys" | "rediss" => ("valkeys", Protocol::Valkey),
            "valkey+unix" | "redis+unix" => ("valkey+unix", Protocol::Valkey),
            "valkey-cluster" | "redis-cluster" => ("valkey-cluster", Protocol::Valkey),
            "valkeys-cluster" | "rediss-cluster" => ("valkeys-cluster", Protocol::Valkey),
            _ => return None,
        };
        Some(Scheme {
            name,
            protocol,
            unix: name.ends_with("+unix"),
            tls: name.starts_with("valkeys"),
            cluster: name.ends_with("-cluster"),
        })
    }
}
