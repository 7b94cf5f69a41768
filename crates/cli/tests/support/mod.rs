//! What the tests of the command share: running programs with a time limit, finding the command,
//! counting what was skipped.
#![allow(dead_code)] // each test file uses its own part of this

pub mod compile;
pub mod pagetide;
pub mod patience;
pub mod process;
pub mod resident;
pub mod skip;
mod stuck;
pub mod tree;
