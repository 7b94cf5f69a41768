//! What a URI says of stores in front of each other, read before anything is opened: a tier and a
//! fault store name another store as their last part.

use crate::StoreError;
use crate::scheme::Scheme;
use crate::uri::{Parts, config, parse_size};

/// The least a store may be limited to: room for its tables and a few hundred pages.
const MAX_LEAST: u64 = 2 << 20;

/// A URI's scheme and the rest.
pub(crate) fn split(uri: &str) -> (&str, &str) {
    uri.split_once(':').unwrap_or((uri, ""))
}

/// The part of `uri` up to the store behind it, and that store's URI, if it has one.
pub(crate) fn behind(uri: &str) -> Option<(&str, &str)> {
    let inner = match uri.split_once(':')? {
        ("fault", rest) => rest.split_once(':')?.1,
        // The last option: all that follows is the other URI, with options of its own.
        ("ram", rest) => then(rest)?.1,
        _ => return None,
    };
    Some(uri.split_at(uri.len() - inner.len()))
}

/// `OPTIONS` and `URI` of `?OPTIONS&then=URI`.
fn then(rest: &str) -> Option<(&str, &str)> {
    rest.split_once("&then=")
        .or_else(|| Some(("", rest.strip_prefix("?then=")?)))
}

/// Whether `uri` names a remote store, or one in front of it.
pub fn is_remote(uri: &str) -> bool {
    match behind(uri) {
        Some((_, behind)) => is_remote(behind),
        None => Scheme::of(split(uri).0).is_some(),
    }
}

/// What the options of a `ram:` store say: its limit, and what is behind it.
pub(crate) fn ram_options<'u>(
    uri: &str,
    rest: &'u str,
) -> Result<(Option<u64>, Option<&'u str>), StoreError> {
    let (rest, behind) = match then(rest) {
        Some((rest, behind)) => (rest, Some(behind)),
        None => (rest, None),
    };
    let parts = Parts::parse("ram", rest, &["max", "then"])?;
    if !parts.place.is_empty() {
        return Err(config(format!(
            "`{uri}`: nothing may follow `ram:` but options, as in `ram:?max=2G`"
        )));
    }
    match (max(&parts)?, behind) {
        (None, Some(behind)) => Err(config(format!(
            "`{}`: a tier needs a limit, as in `ram:?max=1G&then={}`",
            redact(uri),
            redact(behind)
        ))),
        options => Ok(options),
    }
}

/// Checks those options of a remote store, and of what is in front of it, that concern a run only:
/// before anything is asked of a server.
pub(crate) fn check(uri: &str) -> Result<(), StoreError> {
    let (scheme, rest) = split(uri);
    if scheme == "ram" {
        ram_options(uri, rest)?;
    }
    match behind(uri) {
        Some((_, behind)) => check(behind),
        None if is_remote(uri) => remote_max(rest).map(|_| ()),
        None => Ok(()),
    }
}

/// The limit of a remote store, whose other options its engine knows.
pub(crate) fn remote_max(rest: &str) -> Result<Option<u64>, StoreError> {
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let mut options = query.split('&');
    let max = options.rfind(|option| option.starts_with("max="));
    let size = |option: &str| parse_size(&option["max=".len()..]);
    checked_max(max.map(size).transpose()?)
}

/// The limit of a store on this machine.
pub(crate) fn max(parts: &Parts<'_>) -> Result<Option<u64>, StoreError> {
    checked_max(parts.size("max")?)
}

fn checked_max(max: Option<u64>) -> Result<Option<u64>, StoreError> {
    match max {
        Some(max) if max < MAX_LEAST => Err(config(format!(
            "option `max`: {max} bytes are too few; the least is 2M"
        ))),
        max => Ok(max),
    }
}

/// `uri` without its password, for people's eyes.
pub fn redact(uri: &str) -> String {
    let Some((front, rest)) = uri.split_once("//") else {
        return uri.to_owned();
    };
    let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    match authority.rsplit_once('@') {
        Some((credentials, _)) => {
            let user = credentials.split(':').next().unwrap_or_default();
            format!("{front}//{user}:***{}", &rest[credentials.len()..])
        }
        None => uri.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(
            redact("valkey://me:secret@h:1/p?x=1"),
            "valkey://me:***@h:1/p?x=1"
        );
        assert_eq!(redact("valkey://:se@cret@h"), "valkey://:***@h");
        assert_eq!(redact("valkey://h"), "valkey://h");
        assert_eq!(redact("ram:"), "ram:");
    }
}
