//! What one budget for all processes of a run is worth, beside a part of it for each, and what it
//! costs to start a process in such a run.
//!
//! | file | what |
//! |---|---|
//! | [`task`] | what the processes of a run are to do |
//! | [`worker`] | the processes: one leads, and times the others |
//! | [`experiment`] | each scenario both ways, in turns, and what is printed |
pub mod experiment;
pub mod task;
pub mod worker;
