//! The servers of one URI: connected to, checked, and chosen anew when one fails.

use super::check;
use super::resp::{self, request};
use super::route::Route;
use crate::StoreError;
use crate::error::ErrorKind;
use crate::remote::link::Options;
use crate::remote::settings::{COMMON, Settings};
use crate::remote::tls::Tls;
use crate::scheme::Scheme;
use crate::uri::{Parts, config};
use std::sync::{Arc, PoisonError, RwLock};

/// Options besides the common ones.
const OPTIONS: [&str; 4] = ["replicas", "ca", "cert", "key"];
const PORT: u16 = 6379;

/// One server, or a cluster.
pub(crate) struct Valkey {
    pub(super) scheme: Scheme,
    pub(super) settings: Settings,
    pub(super) options: Options,
    route: RwLock<Arc<Route>>,
}

/// The settings in the URI `name:rest`.
pub(crate) fn settings(scheme: Scheme, name: &str, rest: &str) -> Result<Settings, StoreError> {
    let known: Vec<&str> = COMMON.into_iter().chain(OPTIONS).collect();
    let parts = Parts::parse(name, rest, &known)?;
    let settings = Settings::new(scheme, name, &parts, PORT)?;
    let for_tls = [&settings.ca, &settings.cert, &settings.key];
    if !scheme.tls && for_tls.iter().any(|option| option.is_some()) {
        return Err(config(format!(
            "options `ca`, `cert` and `key` are for valkeys://, not for {name}:"
        )));
    }
    Ok(settings)
}

impl Valkey {
    /// Connects, and refuses servers that would lose pages or are of another kind.
    pub(crate) fn open(scheme: Scheme, settings: Settings) -> Result<Valkey, StoreError> {
        let (ca, cert, key) = (&settings.ca, &settings.cert, &settings.key);
        let tls = match scheme.tls {
            true => Some(Tls::new(ca.as_deref(), cert.as_deref(), key.as_deref())?),
            false => None,
        };
        let options = Options {
            tls,
            timeout: settings.timeout,
            spin: settings.spin,
            greet: check::greeting(settings.user.clone(), settings.password.clone()),
        };
        let route = match scheme.cluster {
            true => Route::of_cluster(&settings.servers, &options, None)?,
            false => Route::of_master(&settings.servers, &options)?,
        };
        let valkey = Valkey {
            scheme,
            settings,
            options,
            route: RwLock::new(Arc::new(route)),
        };
        for node in &valkey.route().nodes {
            node.with(&valkey.options, |link| {
                check::server(link, &node.server, scheme.cluster, valkey.settings.replicas)
            })?;
        }
        Ok(valkey)
    }

    pub(super) fn route(&self) -> Arc<Route> {
        Arc::clone(&self.route.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// After a failure that another choice of server may mend: chooses anew.
    #[cold]
    fn choose_anew(&self, failed: &Route) {
        let mut route = self.route.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have done it meanwhile.
        if !std::ptr::eq(&**route, failed) {
            return;
        }
        let found = match failed.is_cluster() {
            true => Route::of_cluster(&self.settings.servers, &self.options, Some(failed)),
            false if self.settings.servers.len() > 1 => {
                Route::of_master(&self.settings.servers, &self.options)
            }
            false => return,
        };
        if let Ok(found) = found {
            *route = Arc::new(found);
        }
    }

    /// Runs `talk` for each node; which part of the work is that node's is up to `talk`.
    pub(super) fn each_node(
        &self,
        mut talk: impl FnMut(&Route, usize) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let route = self.route();
        for index in 0..route.nodes.len() {
            if let Err(error) = talk(&route, index) {
                if error.kind == ErrorKind::Temporary {
                    self.choose_anew(&route);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sends one request to the node of `key` and returns the whole answer.
    pub(super) fn ask(&self, key: &[u8], words: &[&[u8]]) -> Result<resp::Answer, StoreError> {
        let route = self.route();
        let asked = route.nodes[route.node_of(key)].with(&self.options, |link| {
            request(&mut link.output, words);
            link.send()?;
            resp::answer(link)?.good()
        });
        if asked
            .as_ref()
            .is_err_and(|error| error.kind == ErrorKind::Temporary)
        {
            self.choose_anew(&route);
        }
        asked
    }
}
