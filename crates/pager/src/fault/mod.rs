//! Faults: [`handler`] serves one; [`thread`] and [`pool`] bring them to it, as messages or as
//! signals.
pub(crate) mod blocks;
pub(crate) mod claim;
pub(crate) mod filled_ahead;
pub(crate) mod first_write;
pub(crate) mod handler;
pub(crate) mod loads;
pub(crate) mod lost;
mod missing;
pub(crate) mod pointers;
pub mod pool;
mod predict;
mod publish;
mod read_ahead;
mod recent;
pub(crate) mod scans;
mod scattered;
pub mod signal;
mod spin;
pub(crate) mod streams;
pub mod thread;
mod walks;
mod zeros;
