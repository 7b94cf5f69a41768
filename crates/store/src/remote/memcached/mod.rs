//! `memcached://`: keys spread over servers by consistent hashing, the text protocol, pipelined.
//!
//! A server of this kind keeps everything in memory and may be told to drop what it likes: it is
//! used only if told not to (`-M`), and what it held is lost when it restarts.

mod client;
mod engine;
pub(super) mod protocol;
mod records;
mod ring;

pub(super) use client::{Memcached, settings};
