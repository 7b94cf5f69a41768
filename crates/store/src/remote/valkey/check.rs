//! What a server must be before it is trusted with pages.

use super::resp::{self, Answer, Head, head, request};
use crate::remote::address::Server;
use crate::remote::link::{Greet, Link};
use crate::{ErrorKind, StoreError};

/// What is said first on every connection.
pub(crate) fn greeting(user: Option<String>, password: Option<String>) -> Box<Greet> {
    Box::new(move |link| {
        if let Some(password) = &password {
            match &user {
                Some(user) => request(
                    &mut link.output,
                    &[b"AUTH", user.as_bytes(), password.as_bytes()],
                ),
                None => request(&mut link.output, &[b"AUTH", password.as_bytes()]),
            }
            link.send()?;
            if let Head::Error(error) = head(link)? {
                return Err(refused(error, user.as_deref()));
            }
        }
        request(&mut link.output, &[b"PING"]);
        link.send()?;
        let answer = head(link).map_err(|mut error| {
            if error.kind == ErrorKind::Temporary {
                error.context += " to the first request (does this port speak TLS? one that does \
                    is named with an s: valkeys://)";
            }
            error
        });
        match answer? {
            Head::Simple => Ok(()),
            Head::Error(error) => Err(refused(error, user.as_deref())),
            _ => Err(resp::out_of_step()),
        }
    })
}

#[cold]
fn refused(mut error: StoreError, user: Option<&str>) -> StoreError {
    if error.kind == ErrorKind::Io && error.context.contains("AUTH") {
        error.kind = ErrorKind::Config;
    }
    if error.kind == ErrorKind::Config {
        let who = user.map_or(String::new(), |user| format!(" of user `{user}`"));
        error.context = format!(
            "log in{who}: {}; {}",
            error.context,
            match error.context.contains("WRONGPASS") {
                true =>
                    "check user and password, in the URI or in the file that `password-file` names",
                false =>
                    "put user and password before the host (valkey://USER:PASSWORD@HOST, \
                     valkey+unix://USER:PASSWORD@/PATH), or the \
                     password in a file and write `?password-file=FILE`",
            }
        );
    }
    error
}

/// The value of `name` in what INFO says.
fn value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim_end)
}

fn info(link: &mut Link) -> Result<String, StoreError> {
    request(&mut link.output, &[b"INFO"]);
    link.send()?;
    match resp::answer(link)? {
        Answer::Error(words) if words.starts_with("NOPERM") => Err(StoreError::new(
            ErrorKind::Config,
            format!(
                "the user may not ask INFO, which tells whether pages are safe there (`{words}`)"
            ),
        )),
        answer => Ok(answer.good()?.text().unwrap_or_default()),
    }
}

/// Refuses servers that drop pages, are of another mode, or have fewer than `replicas`.
pub(crate) fn server(
    link: &mut Link,
    server: &Server,
    cluster: bool,
    replicas: u32,
) -> Result<(), StoreError> {
    let info = info(link)?;
    let refuse = |context: String| Err(StoreError::new(ErrorKind::Config, context));
    match (value(&info, "redis_mode"), cluster) {
        (Some("sentinel"), _) => {
            return refuse(format!(
                "{} is a sentinel, which keeps no keys: name the servers it watches",
                server.name()
            ));
        }
        (Some("cluster"), false) => {
            return refuse(format!(
                "{} is a node of a cluster: write valkey-cluster:// for it",
                server.name()
            ));
        }
        _ => {}
    }
    let has = value(&info, "connected_slaves").and_then(|count| count.parse().ok());
    if replicas > 0 && has.unwrap_or(0) < replicas {
        return refuse(format!(
            "option `replicas`: {replicas} are asked for, and {} has {}: have them follow it \
             (REPLICAOF) before the start, or ask for fewer",
            server.name(),
            has.unwrap_or(0)
        ));
    }
    match value(&info, "maxmemory_policy") {
        Some("noeviction") => {}
        Some(policy) => {
            return refuse(format!(
                "{} evicts keys when it is full (maxmemory-policy {policy}), and would lose \
                 pages; to mend it: {} CONFIG SET \
                 maxmemory-policy noeviction",
                server.name(),
                server.cli()
            ));
        }
        None => {
            return refuse(format!(
                "{} does not say its maxmemory-policy, so it is not known to keep pages",
                server.name()
            ));
        }
    }
    Ok(())
}

/// What operators want to know of it.
pub(crate) fn describe(
    link: &mut Link,
    server: &Server,
) -> Result<Vec<(&'static str, String)>, StoreError> {
    let info = info(link)?;
    let said = |name| value(&info, name).unwrap_or("?").to_owned();
    let version = value(&info, "valkey_version").map_or_else(
        || format!("redis protocol {}", said("redis_version")),
        |version| format!("valkey {version}"),
    );
    let persistence = match value(&info, "aof_enabled") {
        Some("1") => "append-only file",
        _ => "none that survives a kill (appendonly no)",
    };
    let limit = match value(&info, "maxmemory") {
        Some("0") | None => {
            "no maxmemory: bounded by the machine (set it by CONFIG SET maxmemory SIZE)".to_owned()
        }
        Some(bytes) => format!("maxmemory {bytes} B"),
    };
    Ok(vec![
        ("server", server.name()),
        ("version", version),
        ("role", said("role")),
        ("replicas", said("connected_slaves")),
        (
            "memory",
            format!(
                "{} B used, {limit}, {}",
                said("used_memory"),
                said("maxmemory_policy")
            ),
        ),
        ("persistence", persistence.to_owned()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let info = "# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(value(info, "maxmemory"), Some("0"));
        assert_eq!(value(info, "maxmemory_policy"), Some("noeviction"));
        assert_eq!(value(info, "role"), None);
    }
}
