//! Which page goes next.
//!
//! A policy here sees little: that a page came in, and that one it gave up is wanted again. There
//! is no accessed bit on anonymous memory before Linux 7.3, so a page that is used every
//! microsecond and one that is never used look the same until they are evicted; one policy,
//! [`accessed`], has such bits. What a policy remembers of a page stands in the
//! page's own word ([`Word::with_history`](crate::page::word::Word::with_history)), so it costs no
//! memory, no lock and no allocation, and survives the page's eviction.
//!
//! The pager keeps the queues of [`Queue`]; a policy says which one a page enters, which one is
//! taken from, and what becomes of the page taken. Decisions are pure
//! arithmetic on words and a few atomics: the simulator of `bench policy` runs the same code.
pub mod accessed;
mod contract;
pub mod fifo;
mod kind;
pub mod s3fifo;

pub use contract::{Policy, Queue, Verdict, Waiting};
pub use kind::Kind;
