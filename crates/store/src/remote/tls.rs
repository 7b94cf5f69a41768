//! TLS over a [`Socket`], by rustls.

use super::socket::{Socket, closed};
use crate::uri::config;
use crate::{ErrorKind, StoreError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// What is trusted, and what is shown.
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Trusts the certificates in the file `ca`, or without it those the system trusts. `cert` and
    /// `key` are files with this client's own certificate and key, for servers that ask for one.
    pub(crate) fn new(
        ca: Option<&str>,
        cert: Option<&str>,
        key: Option<&str>,
    ) -> Result<Tls, StoreError> {
        let mut roots = RootCertStore::empty();
        match ca {
            Some(path) => {
                for certificate in certificates("ca", path)? {
                    roots
                        .add(certificate)
                        .map_err(|error| unusable("ca", path, error))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            return Err(config(match ca {
                Some(path) => format!("option `ca`: {path}: there is no certificate in it"),
                None => "no certificates to trust: name a file with `ca=FILE`, or install \
                    ca-certificates"
                    .to_owned(),
            }));
        }
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|error| config("set up TLS").with_cause(error))?
                .with_root_certificates(roots);
        let config = match (cert, key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let secret = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| unusable("key", key, error))?;
                builder
                    .with_client_auth_cert(certificates("cert", cert)?, secret)
                    .map_err(|error| unusable("cert", cert, error))?
            }
            _ => return Err(config("options `cert` and `key` go together")),
        };
        Ok(Tls {
            config: Arc::new(config),
        })
    }

    /// Shakes hands with the server called `host`.
    pub(crate) fn session(&self, host: &str, socket: &mut Socket) -> Result<Session, StoreError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| config(format!("`{host}` is no name for TLS")).with_cause(error))?;
        let connection = ClientConnection::new(Arc::clone(&self.config), name)
            .map_err(|error| config("set up TLS").with_cause(error))?;
        let mut session = Session {
            connection: Box::new(connection),
        };
        while session.connection.is_handshaking() {
            session.flush(socket)?;
            if session.connection.is_handshaking() {
                session.pull(socket).map_err(|mut error| {
                    error.context = format!(
                        "shake hands (TLS) with {host} (does this port speak TLS? one that does \
                         not is named without the s: \
                         valkey://): {}",
                        error.context
                    );
                    error
                })?;
            }
        }
        session.flush(socket)?;
        Ok(session)
    }
}

fn certificates(option: &str, path: &str) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(option, path, error))
}

fn unusable(option: &str, path: &str, error: impl ToString) -> StoreError {
    config(format!(
        "option `{option}`: {path}: expected a readable PEM file"
    ))
    .with_cause(error)
}

/// The state of one encrypted connection.
pub(crate) struct Session {
    connection: Box<ClientConnection>,
}

impl Session {
    pub(crate) fn send_all(
        &mut self,
        mut bytes: &[u8],
        socket: &mut Socket,
    ) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            // Takes as much as its buffer bound allows; what it took is on its way before it is
            // given more.
            let taken = self.connection.writer().write(bytes).map_err(failed)?;
            bytes = &bytes[taken..];
            self.flush(socket)?;
        }
        Ok(())
    }

    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        socket: &mut Socket,
    ) -> Result<usize, StoreError> {
        loop {
            match self.connection.reader().read(bytes) {
                Ok(0) => return Err(closed()),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.pull(socket)?,
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn pull(&mut self, socket: &mut Socket) -> Result<(), StoreError> {
        let mut failure = None;
        let pulled = self.connection.read_tls(&mut Plain {
            socket,
            failure: &mut failure,
        });
        if let Some(error) = failure {
            return Err(error);
        }
        pulled.map_err(failed)?;
        let processed = self.connection.process_new_packets();
        if let Err(error) = processed {
            // The alert that says why is worth sending; that this fails as well is not worth
            // saying.
            let _ = self.flush(socket);
            return Err(StoreError::new(
                ErrorKind::Config,
                "TLS (is the server's certificate signed by one that `ca=FILE` names, or the \
                 system trusts?)",
            )
            .with_cause(error));
        }
        Ok(())
    }

    fn flush(&mut self, socket: &mut Socket) -> Result<(), StoreError> {
        while self.connection.wants_write() {
            let mut failure = None;
            let written = self.connection.write_tls(&mut Plain {
                socket,
                failure: &mut failure,
            });
            if let Some(error) = failure {
                return Err(error);
            }
            written.map_err(failed)?;
        }
        Ok(())
    }
}

#[cold]
fn failed(error: io::Error) -> StoreError {
    StoreError::new(ErrorKind::Temporary, "TLS").with_cause(error)
}

/// The socket below, for rustls, which knows only `io::Error`: the error itself goes past it.
struct Plain<'a> {
    socket: &'a mut Socket,
    failure: &'a mut Option<StoreError>,
}

impl Read for Plain<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.receive(bytes).map_err(|error| {
            *self.failure = Some(error);
            io::ErrorKind::Other.into()
        })
    }
}

impl Write for Plain<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.send_all(bytes).map_err(|error| {
            *self.failure = Some(error);
            io::Error::from(io::ErrorKind::Other)
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
