//! `--plot`: resident memory against the budget over time, with the fault rate under it; and what
//! is expected with less memory, where that was measured.
pub mod curve;
pub mod samples;
pub mod svg;
