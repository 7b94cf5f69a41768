//! `policy`: which eviction policy misses least, on recorded traces and on generated ones.
//! `record-accesses` records them.
//!
//! Every policy sees every access of the trace. FIFO, LRU, CLOCK, S3-FIFO and SIEVE are told of
//! hits, which no pager is on today's kernels; `pager` is the pager's own code, which is told of
//! misses, and of accesses to pages that it holds aside; MIN knows the future and is the bound.
pub mod accesses;
mod cache;
mod classic;
pub mod generate;
mod pager;
pub mod record;
mod s3fifo;
mod sieve;
mod simulate;
pub mod trace;

pub use simulate::{Plan, Row, run};
