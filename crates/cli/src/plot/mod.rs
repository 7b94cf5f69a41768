//! `--plot`: resident memory against the budget over time, with the fault rate under it.
pub mod samples;
pub mod svg;
