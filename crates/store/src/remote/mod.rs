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

pub(crate) mod address;
pub(crate) mod engine;
pub(crate) mod envelope;
pub(crate) mod link;
pub(crate) mod memcached;
pub(crate) mod operate;
pub(crate) mod owner;
pub(crate) mod settings;
pub(crate) mod store;
pub(crate) mod stream;
pub(crate) mod tls;
pub(crate) mod valkey;
