//! The table of 2019 made again: random reads of a set four times its local memory, over each store
//! and over kernel swap.
//!
//! One worker for each system, in turns, and beside them clients without a pager that read the same
//! number of values from the same server: no pager can read a page faster than that. The servers
//! are started here, with the settings that serve them best, on private sockets and ports. They,
//! the swap devices and the files go away at the end, on an error and on a signal.
mod cost;
mod experiment;
mod plan;
mod raw;
mod report;
mod servers;
mod systems;

pub use experiment::run;
pub use plan::Plan;
