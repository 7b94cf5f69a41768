//! Measurements of tracking: write-protecting memory ([`wp`]), dirty tracking ([`dirty`]),
//! snapshots beside `fork` ([`snapshot`]), and bringing them back ([`restore`]).
pub mod dirty;
pub mod fork;
pub mod restore;
pub(crate) mod scratch;
pub mod snapshot;
mod snapshot_report;
pub mod wp;
pub mod writers;
