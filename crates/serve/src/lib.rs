//! Pages for other processes: whoever hands over a userfaultfd is served from an image.
//!
//! A client is a process whose memory is registered with a userfaultfd that it sent here, with the
//! places of its memory in an image ([`source`]): Firecracker, when it resumes a microVM
//! ([`firecracker`]; [`server::Server`] takes connections), or a process that CRIU restores
//! ([`criu`]), whose pages may be [`packed`]. Each client has a thread ([`client::Client`],
//! [`crew`]) and shares nothing with others but the image, so what one does, or how it ends, is
//! nothing to another.
//!
//! The command is `pagetide serve`.
// Inner documentation, read with the source: it names what is private.
#![allow(rustdoc::private_intra_doc_links)]
#![deny(unsafe_code)]
#![warn(missing_docs)]
mod area;
mod bits;
mod bounded;
pub mod client;
pub mod counters;
mod crew;
pub mod criu;
mod discard;
mod fill;
pub mod firecracker;
mod inbox;
mod install;
pub mod keeper;
mod kept;
pub mod manager;
pub mod memory;
pub mod moment;
pub mod packed;
pub mod plan;
pub mod record;
pub mod said;
mod second;
pub mod server;
pub mod source;
pub mod status;
mod takeover;
mod words;
