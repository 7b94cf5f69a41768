//! Stands for TLS in a build without it: there are no values of these types.

use super::socket::Socket;
use crate::StoreError;
use crate::uri::config;

/// See `tls.rs`.
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn new(
        _ca: Option<&str>,
        _cert: Option<&str>,
        _key: Option<&str>,
    ) -> Result<Tls, StoreError> {
        Err(config(
            "this build has no TLS: build it with the Cargo feature `tls`",
        ))
    }

    pub(crate) fn session(&self, _host: &str, _socket: &mut Socket) -> Result<Session, StoreError> {
        match *self {}
    }
}

/// See `tls.rs`.
pub(crate) enum Session {}

impl Session {
    pub(crate) fn send_all(&mut self, _: &[u8], _: &mut Socket) -> Result<(), StoreError> {
        match *self {}
    }

    pub(crate) fn receive(&mut self, _: &mut [u8], _: &mut Socket) -> Result<usize, StoreError> {
        match *self {}
    }
}
