//! Where servers are: the part of a URI before its options, and names made into addresses.

use crate::StoreError;
use crate::uri::config;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long to wait for one of several addresses of a name.
const LOOK: Duration = Duration::from_secs(2);

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Server {
    /// At a socket of this machine.
    Unix(String),
    /// At a host, as named and as found.
    Tcp { host: String, address: SocketAddr },
}

impl Server {
    /// For messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Server::Unix(path) => path.clone(),
            Server::Tcp { host, address } => match host.parse::<IpAddr>() {
                Ok(_) => address.to_string(),
                Err(_) => format!("{host}:{}", address.port()),
            },
        }
    }

    /// How to call its command line tool, for the line that mends something.
    pub(crate) fn cli(&self) -> String {
        match self {
            Server::Unix(path) => format!("redis-cli -s {path}"),
            Server::Tcp { host, address } => format!("redis-cli -h {host} -p {}", address.port()),
        }
    }
}

/// A URI's authority and path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// `HOST` or `HOST:PORT`, as written.
    pub(crate) hosts: Vec<(String, Option<u16>)>,
    /// After the first slash, without it.
    pub(crate) path: String,
}

impl Place {
    /// Takes `//[[USER]:PASSWORD@][HOST[:PORT],...][/PATH]` apart. `%41` stands for `A` in user,
    /// password and path.
    pub(crate) fn parse(scheme: &str, text: &str) -> Result<Place, StoreError> {
        let rest = text.strip_prefix("//").ok_or_else(|| {
            config(format!(
                "`{scheme}:` needs `//`, as in `{}`",
                example(scheme)
            ))
        })?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        let said = |part: &str| (!part.is_empty()).then(|| unescape(part)).transpose();
        Ok(Place {
            user: said(user)?,
            password: said(password)?,
            hosts: hosts
                .split(',')
                .filter(|host| !host.is_empty())
                .map(host_and_port)
                .collect::<Result<_, _>>()?,
            path: unescape(path)?,
        })
    }
}

fn example(scheme: &str) -> &'static str {
    match scheme {
        "valkey+unix" | "redis+unix" => "valkey+unix:///run/valkey/valkey.sock",
        "memcached" => "memcached://10.0.0.1,10.0.0.2",
        "valkey-cluster" | "redis-cluster" => "valkey-cluster://10.0.0.1,10.0.0.2:6380",
        _ => "valkey://10.0.0.1:6379",
    }
}

fn host_and_port(text: &str) -> Result<(String, Option<u16>), StoreError> {
    let refused = || {
        config(format!(
            "`{text}` is not a host; write HOST, HOST:PORT or [IPV6]:PORT"
        ))
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(refused)?;
            (host, port.strip_prefix(':').filter(|port| !port.is_empty()))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port
        .map(|port| {
            port.parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(refused)
        })
        .transpose()?;
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/') {
        return Err(refused());
    }
    Ok((host.to_owned(), port))
}

fn unescape(text: &str) -> Result<String, StoreError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = (*first == b'%')
            .then(|| std::str::from_utf8(tail.get(..2)?).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, code) {
            (b'%', None) => {
                return Err(config(format!("`{text}`: write a percent sign as %25")));
            }
            (_, Some(code)) => {
                bytes.push(code);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| config(format!("`{text}` is not UTF-8 when unescaped")))
}

/// The addresses of `hosts`. `known` are those found earlier, in the same order: with them no name
/// is looked up, which a process that is paged must not do.
pub(crate) fn resolve(
    hosts: &[(String, Option<u16>)],
    port: u16,
    known: Option<&str>,
) -> Result<Vec<Server>, StoreError> {
    let known: Vec<&str> = known
        .map(|list| list.split(',').collect())
        .unwrap_or_default();
    if !known.is_empty() && known.len() != hosts.len() {
        return Err(config("option `addr`: write one address for each host"));
    }
    hosts
        .iter()
        .enumerate()
        .map(|(index, (host, own))| {
            let port = own.unwrap_or(port);
            let address = match known.get(index).copied().unwrap_or(host).parse::<IpAddr>() {
                Ok(address) => SocketAddr::new(address, port),
                Err(_) if known.is_empty() => look_up(host, port)?,
                Err(_) => {
                    return Err(config(format!(
                        "option `addr`: `{}` is not an address",
                        known[index]
                    )));
                }
            };
            Ok(Server::Tcp {
                host: host.clone(),
                address,
            })
        })
        .collect()
}

/// Of several addresses the first at which somebody answers: a name often has one of each kind, and
/// a server listens at one of them.
fn look_up(host: &str, port: u16) -> Result<SocketAddr, StoreError> {
    let unknown = || {
        config(format!(
            "the name `{host}` has no address; check the host, or write its address"
        ))
    };
    let found: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|error| unknown().with_cause(error))?
        .collect();
    let first = *found.first().ok_or_else(unknown)?;
    if found.iter().all(|address| *address == first) {
        return Ok(first);
    }
    let answers = |address: &&SocketAddr| TcpStream::connect_timeout(address, LOOK).is_ok();
    Ok(found.iter().find(answers).copied().unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place = Place::parse("valkey", "//me:p%40ss@a:1,[::1]:2,c/pre%2Ffix").unwrap();
        assert_eq!(place.user.as_deref(), Some("me"));
        assert_eq!(place.password.as_deref(), Some("p@ss"));
        assert_eq!(
            place.hosts,
            [
                ("a".to_owned(), Some(1)),
                ("::1".to_owned(), Some(2)),
                ("c".to_owned(), None)
            ]
        );
        assert_eq!(place.path, "pre/fix");
        assert_eq!(Place::parse("valkey", "//:secret@h").unwrap().user, None);
        for (text, word) in [
            ("h", "//"),
            ("//h:0", "h:0"),
            ("//h:x", "h:x"),
            ("//h:70000", "70000"),
            ("//u:%zz@h", "%25"),
            ("//[::1", "[::1"),
        ] {
            let error = Place::parse("valkey", text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_found_earlier_are_used() {
        let hosts = [("nowhere.invalid".to_owned(), None)];
        let servers = resolve(&hosts, 6379, Some("127.0.0.1")).unwrap();
        assert_eq!(servers[0].name(), "nowhere.invalid:6379");
        assert!(resolve(&hosts, 6379, Some("127.0.0.1,::1")).is_err());
        assert!(resolve(&hosts, 6379, Some("x")).is_err());
    }
}
