//! The options that every remote store has.

use super::address::{Place, Server, resolve};
use super::socket::Spin;
use crate::StoreError;
use crate::scheme::Scheme;
use crate::uri::{Parts, config, parse_duration};
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(24 * 3600);
const PREFIX: &str = "pagetide";
/// A prefix, an owner of 32 digits and two colons stay below what [`Key`](super::engine::Key) has
/// room for.
const PREFIX_BYTES_MAX: usize = 90;
/// See [`Settings::spin`].
const SPIN: Duration = Duration::from_micros(50);

/// The options of every remote store.
pub(crate) const COMMON: [&str; 12] = [
    "addr",
    "compress",
    "encrypt",
    "gc",
    "lease",
    "max",
    "patience",
    "password-file",
    "prefix",
    "server-cpu",
    "spin",
    "timeout",
];

/// Where a remote store is and how it is to behave.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) servers: Vec<Server>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// What all keys begin with.
    pub(crate) prefix: String,
    pub(crate) compress: bool,
    pub(crate) encrypt: bool,
    /// How long one answer may take.
    pub(crate) timeout: Duration,
    /// How long a call is tried again while the server is away.
    pub(crate) patience: Duration,
    /// How long an owner counts as alive after its last sign of life, for those who cannot look.
    pub(crate) lease: Duration,
    /// Before sleeping, an answer is looked for: waking up costs more than a server nearby takes.
    /// On the processor of this machine that the server keeps to, who asks sleeps at once.
    pub(crate) spin: Spin,
    /// Whether what dead runs left is removed when the store is first opened.
    pub(crate) gc: bool,
    /// Parts of the URI for stores with options of their own.
    pub(crate) replicas: u32,
    pub(crate) ca: Option<String>,
    pub(crate) cert: Option<String>,
    pub(crate) key: Option<String>,
}

impl Settings {
    /// From the URI `scheme:parts`; `port` is the default.
    pub(crate) fn new(
        scheme: Scheme,
        name: &str,
        parts: &Parts<'_>,
        port: u16,
    ) -> Result<Settings, StoreError> {
        let place = Place::parse(name, parts.place)?;
        let (servers, path) = if scheme.unix {
            (vec![socket_file(name, &place, parts)?], String::new())
        } else if place.hosts.is_empty() {
            return Err(config(format!(
                "`{name}:{}` names no server: write {name}://HOST or {name}://HOST:PORT",
                parts.place
            )));
        } else {
            let servers = resolve(&place.hosts, port, parts.option("addr"))?;
            (servers, place.path)
        };
        // What goes through a socket file stays on this machine; of a port nobody knows where it
        // leads.
        let leaves = !scheme.unix;
        let said = |name| parts.option(name).map(|_| parts.flag(name)).transpose();
        let compress = match parts.option("compress") {
            Some("lz4") => Some(true),
            Some("none") => Some(false),
            _ => said("compress")?,
        };
        let text = |name| parts.option(name).map(str::to_owned);
        Ok(Settings {
            servers,
            user: place.user,
            password: password(parts)?.or(place.password),
            prefix: prefix(parts, path)?,
            compress: compress.unwrap_or(leaves),
            encrypt: said("encrypt")?.unwrap_or(leaves),
            timeout: duration(parts, "timeout", TIMEOUT, Duration::from_millis(1))?,
            patience: duration(parts, "patience", PATIENCE, Duration::ZERO)?,
            lease: duration(parts, "lease", LEASE, Duration::from_secs(1))?,
            spin: Spin {
                time: duration(parts, "spin", SPIN, Duration::ZERO)?,
                server_cpu: parts.option("server-cpu").map(processor).transpose()?,
            },
            gc: said("gc")?.unwrap_or(true),
            replicas: replicas(parts)?,
            ca: text("ca"),
            cert: text("cert"),
            key: text("key"),
        })
    }

    /// What the keys of one owner begin with.
    pub(crate) fn base(&self, owner: &str) -> String {
        format!("{}:{owner}:", self.prefix)
    }
}

fn socket_file(name: &str, place: &Place, parts: &Parts<'_>) -> Result<Server, StoreError> {
    if !place.hosts.is_empty() || place.path.is_empty() {
        return Err(config(format!(
            "`{name}:{}` names no socket: write {name}:///PATH, with three slashes",
            parts.place
        )));
    }
    Ok(Server::Unix(format!("/{}", place.path)))
}

fn prefix(parts: &Parts<'_>, path: String) -> Result<String, StoreError> {
    let mut prefix = parts.option("prefix").map_or(path, str::to_owned);
    if prefix.is_empty() {
        prefix = PREFIX.to_owned();
    }
    if prefix.len() > PREFIX_BYTES_MAX || prefix.contains(|c: char| !c.is_ascii_graphic()) {
        return Err(config(format!(
            "prefix `{prefix}`: expected at most {PREFIX_BYTES_MAX} letters, digits and signs"
        )));
    }
    Ok(prefix)
}

fn password(parts: &Parts<'_>) -> Result<Option<String>, StoreError> {
    let Some(path) = parts.option("password-file") else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path).map_err(|error| {
        config(format!("option `password-file`: {path} cannot be read")).with_cause(error)
    })?;
    Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
}

fn duration(
    parts: &Parts<'_>,
    name: &str,
    default: Duration,
    least: Duration,
) -> Result<Duration, StoreError> {
    let Some(text) = parts.option(name) else {
        return Ok(default);
    };
    parse_duration(text)
        .filter(|found| *found >= least)
        .ok_or_else(|| {
            config(format!(
                "option `{name}`: `{text}` is not a time of {} ms or more; write 500ms, 5s, 10m \
                 or 24h",
                least.as_millis()
            ))
        })
}

fn replicas(parts: &Parts<'_>) -> Result<u32, StoreError> {
    let Some(text) = parts.option("replicas") else {
        return Ok(0);
    };
    text.parse().map_err(|_| {
        config(format!(
            "option `replicas`: `{text}` is not a number of replicas"
        ))
    })
}

/// The processor that `text` names.
fn processor(text: &str) -> Result<u32, StoreError> {
    let machine = Path::new("/sys/devices/system/cpu");
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let problem = match text.parse::<u32>() {
        Ok(cpu) if digits && (!machine.exists() || machine.join(format!("cpu{cpu}")).exists()) => {
            return Ok(cpu);
        }
        Ok(_) if digits => "no processor of this machine",
        _ => "not a number",
    };
    let present = std::fs::read_to_string(machine.join("present")).unwrap_or_default();
    Err(config(format!(
        "option `server-cpu`: `{text}` is {problem}; expected the one processor that the server \
         keeps to (`taskset -cp PID` shows it), of {}",
        present.trim()
    )))
}
