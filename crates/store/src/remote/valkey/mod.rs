//! `valkey://` and its kin: servers that speak Redis's protocol, one or a cluster of them.
//!
//! Reads are pipelined GETs, writes pipelined SETs, one request and one wait for each node that a
//! batch concerns.

mod check;
mod client;
mod engine;
mod entries;
mod records;
pub(super) mod resp;
pub(super) mod route;

pub(super) use client::{Valkey, settings};
