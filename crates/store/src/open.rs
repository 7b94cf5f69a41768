//! From a URI to a store with its layers.

#[cfg(feature = "remote")]
use crate::ErrorKind;
use crate::chain;
use crate::device::Device;
use crate::file::FileStore;
use crate::layer::checksum::Checked;
use crate::layer::fault::Faulty;
use crate::layer::freeze::Freezing;
use crate::layer::retry::{Patience, Retry};
use crate::ram::RamStore;
#[cfg(feature = "remote")]
use crate::remote::{operate::Remote, store::RemoteStore};
use crate::scheme::Scheme;
use crate::tier::Tier;
use crate::uri::{Parts, config, file_place};
use crate::{Store, StoreError};

/// Opens the store a URI names.
///
/// | URI | store |
/// |---|---|
/// | `ram:` | pages compressed in shared memory |
/// | `file:DIRECTORY` | a file in an existing directory, which vanishes with the process |
/// | `file:PATH` | the same at this path; if another process uses that, at `PATH.PID` |
/// | `valkey://HOST[:PORT][/PREFIX]` | a Valkey or Redis server |
/// | `valkey+unix:///SOCKET` | the same by its socket; `valkeys://HOST` under TLS |
/// | `valkey-cluster://H1,H2` | a cluster of them; `valkeys-cluster://` under TLS |
/// | `memcached://H1,H2` | memcached servers |
/// | `ram:?max=SIZE&then=URI` | `ram:` in front of another store, which takes what does not fit |
/// | `fault:RULES:URI` | for tests: another store, made to fail by `RULES`, see below |
///
/// Options follow a question mark and are joined by `&`. `max=SIZE` bounds
/// [`Usage::bytes`](crate::Usage::bytes); see
/// [`parse_size`](crate::parse_size) for sizes. `keep=1` leaves the file of a `file:` store in
/// place.
///
/// The rules of `fault:`, such as `get-fail-after=100,get-fail-count=1`, count pages over the life
/// of the store: `put-fail`, `put-full`, `get-fail`, `get-corrupt` and `get-short`, each with
/// `-after=N` (how many go well first) and `-count=N` (how many then fail; all, if not said);
/// `fail-kind=io` or `temporary`; `put-delay-us=N` and `get-delay-us=N`. Wrong bytes come from
/// below the checksums.
pub fn open(uri: &str) -> Result<Box<dyn Store>, StoreError> {
    // Known stores keep their own type, so that the calls of the layers are direct ones.
    match device(uri)? {
        Opened::Ram(device) => layered(device, Patience::LOCAL),
        Opened::File(device) => layered(device, Patience::LOCAL),
        #[cfg(feature = "remote")]
        Opened::Remote(device, patience) => layered(*device, patience),
        Opened::Faulty(device, patience) => layered(device, patience),
        Opened::Tier(device, patience) => layered(device, patience),
    }
}

enum Opened {
    Ram(RamStore),
    File(FileStore),
    #[cfg(feature = "remote")]
    Remote(Box<RemoteStore>, Patience),
    Faulty(Faulty<Box<dyn Device>>, Patience),
    Tier(Tier, Patience),
}

impl Opened {
    fn boxed(self) -> (Box<dyn Device>, Patience) {
        match self {
            Opened::Ram(device) => (Box::new(device), Patience::LOCAL),
            Opened::File(device) => (Box::new(device), Patience::LOCAL),
            #[cfg(feature = "remote")]
            Opened::Remote(device, patience) => (device, patience),
            Opened::Faulty(device, patience) => (Box::new(device), patience),
            Opened::Tier(device, patience) => (Box::new(device), patience),
        }
    }
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

fn device(uri: &str) -> Result<Opened, StoreError> {
    let (scheme, rest) = chain::split(uri);
    match scheme {
        "ram" => {
            let (max, behind) = chain::ram_options(uri, rest)?;
            let Some(behind) = behind else {
                return Ok(Opened::Ram(RamStore::new(max)?));
            };
            let (behind, patience) = device(behind)?.boxed();
            let tier = Tier::new(Box::new(RamStore::new(max)?), behind)?;
            Ok(Opened::Tier(tier, patience))
        }
        "file" => {
            let parts = Parts::parse(scheme, rest, &["keep", "max"])?;
            Ok(Opened::File(FileStore::new(
                file_place(parts.place),
                parts.flag("keep")?,
                chain::max(&parts)?,
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
        name => match Scheme::of(name) {
            Some(scheme) => remote(scheme, name, rest),
            None => Err(config(format!(
                "`{uri}` names no known store; known are: ram:, file:PATH, valkey://HOST, \
                 valkey+unix:///SOCKET, valkeys://HOST, valkey-cluster://HOST,HOST, \
                 memcached://HOST,HOST, fault:RULES:URI (redis is another name for valkey)"
            ))),
        },
    }
}

#[cfg(feature = "remote")]
fn remote(scheme: Scheme, name: &str, rest: &str) -> Result<Opened, StoreError> {
    let remote = Remote::connect(scheme, name, rest).map_err(|mut error| {
        // Nothing has been put yet, so whatever is wrong now is for a person to mend.
        error.kind = ErrorKind::Config;
        error
    })?;
    let patience = Patience::remote(remote.patience());
    let store = remote.into_store(chain::remote_max(rest)?)?;
    Ok(Opened::Remote(Box::new(store), patience))
}

#[cfg(not(feature = "remote"))]
fn remote(scheme: Scheme, _name: &str, _rest: &str) -> Result<Opened, StoreError> {
    Err(config(format!(
        "{}: this build has no stores on servers: build it with the Cargo feature `remote`",
        scheme.name
    )))
}
