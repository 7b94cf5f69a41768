//! From a URI to a store with its layers.

use crate::device::Device;
use crate::file::FileStore;
use crate::layer::checksum::Checked;
use crate::layer::fault::Faulty;
use crate::layer::freeze::Freezing;
use crate::layer::retry::{Patience, Retry};
use crate::ram::RamStore;
use crate::remote::operate::{self, is_remote, redact};
use crate::remote::store::RemoteStore;
use crate::tier::Tier;
use crate::uri::{Parts, config};
use crate::{ErrorKind, Store, StoreError};

/// The least a store may be limited to: room for its tables and a few hundred pages.
const MAX_LEAST: u64 = 2 << 20;

/// Opens the store a URI names.
///
/// | URI | store |
/// |---|---|
/// | `ram:` | pages compressed in shared memory |
/// | `file:DIRECTORY` | a file in an existing directory, which vanishes with the process |
/// | `file:PATH` | the same at this path; if another process uses that, at `PATH.PID` |
/// | `valkey://HOST[:PORT][/PREFIX]` | a Valkey or Redis server; also `valkey+unix:///SOCKET`, `valkeys://` (TLS), `valkey-cluster://H1,H2` |
/// | `memcached://H1,H2` | memcached servers |
/// | `ram:?max=SIZE&then=URI` | `ram:` in front of another store, which takes what does not fit |
/// | `fault:RULES:URI` | for tests: another store, made to fail by `RULES` such as `get-fail-after=100,get-fail-count=1` |
///
/// Options follow a question mark and are joined by `&`. `max=SIZE` bounds
/// [`Usage::bytes`](crate::Usage::bytes); see
/// [`parse_size`](crate::parse_size) for sizes. `keep=1` leaves the file of a `file:` store in
/// place.
///
/// The rules of `fault:` count pages over the life of the store: `put-fail`, `put-full`,
/// `get-fail`, `get-corrupt` and `get-short`, each with `-after=N` (how many go well first) and
/// `-count=N` (how many then fail; all, if not said); `fail-kind=io` or `temporary`;
/// `put-delay-us=N` and `get-delay-us=N`. Wrong bytes come from below the checksums.
pub fn open(uri: &str) -> Result<Box<dyn Store>, StoreError> {
    // Known stores keep their own type, so that the calls of the layers are direct ones.
    match device(uri)? {
        Opened::Ram(device) => layered(device, Patience::LOCAL),
        Opened::File(device) => layered(device, Patience::LOCAL),
        Opened::Remote(device, patience) => layered(*device, patience),
        Opened::Faulty(device, patience) => layered(device, patience),
        Opened::Tier(device, patience) => layered(device, patience),
    }
}

enum Opened {
    Ram(RamStore),
    File(FileStore),
    Remote(Box<RemoteStore>, Patience),
    Faulty(Faulty<Box<dyn Device>>, Patience),
    Tier(Tier, Patience),
}

impl Opened {
    fn boxed(self) -> (Box<dyn Device>, Patience) {
        match self {
            Opened::Ram(device) => (Box::new(device), Patience::LOCAL),
            Opened::File(device) => (Box::new(device), Patience::LOCAL),
            Opened::Remote(device, patience) => (device, patience),
            Opened::Faulty(device, patience) => (Box::new(device), patience),
            Opened::Tier(device, patience) => (Box::new(device), patience),
        }
    }
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

/// Freezes outermost, so that nothing below ever sees the deletion of a slot that is still read;
/// then checksums, which hold for whatever happens below them; retries nearest to what fails.
fn layered<D: Device + 'static>(
    device: D,
    patience: Patience,
) -> Result<Box<dyn Store>, StoreError> {
    let retrying = Retry::new(device, patience);
    Ok(Box::new(Freezing::new(Checked::new(retrying)?)?))
}

/// What the options of a `ram:` store say: its limit, and what is behind it.
fn ram_options<'u>(uri: &str, rest: &'u str) -> Result<(Option<u64>, Option<&'u str>), StoreError> {
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
    let (scheme, rest) = uri.split_once(':').unwrap_or((uri, ""));
    if scheme == "ram" {
        ram_options(uri, rest)?;
    }
    match behind(uri) {
        Some((_, behind)) => check(behind),
        None if is_remote(uri) => remote_max(rest).map(|_| ()),
        None => Ok(()),
    }
}

fn device(uri: &str) -> Result<Opened, StoreError> {
    let (scheme, rest) = uri.split_once(':').unwrap_or((uri, ""));
    match scheme {
        "ram" => {
            let (max, behind) = ram_options(uri, rest)?;
            let Some(behind) = behind else {
                return Ok(Opened::Ram(RamStore::new(max)?));
            };
            let (behind, patience) = device(behind)?.boxed();
            let tier = Tier::new(Box::new(RamStore::new(max)?), behind)?;
            Ok(Opened::Tier(tier, patience))
        }
        "file" => {
            let parts = Parts::parse(scheme, rest, &["keep", "max"])?;
            // `file:///path` is the same as `file:/path`: an empty host.
            let place = parts
                .place
                .strip_prefix("//")
                .filter(|path| path.starts_with('/'))
                .unwrap_or(parts.place);
            Ok(Opened::File(FileStore::new(
                place,
                parts.flag("keep")?,
                max(&parts)?,
            )?))
        }
        "fault" => {
            let (rules, inner) = rest.split_once(':').ok_or_else(|| {
                config(format!(
                    "`{uri}`: write `fault:RULES:URI`, as in `fault:get-fail-after=9:ram:`"
                ))
            })?;
            let (inner, patience) = device(inner)?.boxed();
            Ok(Opened::Faulty(Faulty::new(rules, inner)?, patience))
        }
        _ => remote(uri, scheme, rest),
    }
}

fn remote(uri: &str, scheme: &str, rest: &str) -> Result<Opened, StoreError> {
    let remote = operate::connect(scheme, rest).map_err(|mut error| {
        // Nothing has been put yet, so whatever is wrong now is for a person to mend.
        error.kind = ErrorKind::Config;
        error
    })?;
    let Some(remote) = remote else {
        return Err(config(format!(
            "`{uri}` names no known store; known are: ram:, file:PATH, valkey://HOST, \
             valkey+unix:///SOCKET, valkeys://HOST, \
             valkey-cluster://HOST,HOST, memcached://HOST,HOST, fault:RULES:URI (redis is another \
             name for valkey)"
        )));
    };
    let patience = Patience::remote(remote.patience());
    Ok(Opened::Remote(
        Box::new(remote.into_store(remote_max(rest)?)?),
        patience,
    ))
}

fn remote_max(rest: &str) -> Result<Option<u64>, StoreError> {
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let mut options = query.split('&');
    let max = options.rfind(|option| option.starts_with("max="));
    let size = |option: &str| crate::parse_size(&option["max=".len()..]);
    checked_max(max.map(size).transpose()?)
}

fn max(parts: &Parts<'_>) -> Result<Option<u64>, StoreError> {
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
