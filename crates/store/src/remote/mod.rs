//! Stores on other machines, or in another process of this one: pages sealed here, kept under keys
//! by an engine.
//!
//! [`store`] does what is alike for all engines: slots, compression, encryption, batches, the
//! owner's record. An [`engine`] puts blobs under keys and gets them back: [`valkey`] for servers
//! of that family, [`memcached`].
//!
//! Everything here runs on threads inside the paged program, so it speaks the protocols itself, by
//! bare system calls on preallocated buffers: client crates allocate for each reply and look names
//! up through the C library, which keeps both in memory that may be paged (`docs/decisions/0040`).

mod address;
pub(crate) mod archive;
mod engine;
mod envelope;
pub(crate) mod exercise;
mod link;
mod memcached;
pub(crate) mod operate;
pub(crate) mod owner;
mod settings;
mod signature;
mod socket;
pub(crate) mod store;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
#[cfg(feature = "tls")]
mod tls;
mod valkey;
