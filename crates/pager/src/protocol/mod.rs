//! What the launcher, the agent inside a program, and the tools say to each other.
//!
//! | what | from | to | by |
//! |---|---|---|---|
//! | [`Wishes`](environment::Wishes) | launcher | agent | environment variables |
//! | [`Cause`](refusal::Cause) | agent that cannot start | launcher | the process's exit status |
//! | [`Note`](files::Note) | agent | launcher | a text file in the run directory |
//! | [`Ledger`](ledger::Ledger), with [`Loss`](loss::Loss) | pager | anyone | a mapped file |
//! | [`Request`](report::Request), [`Reply`](report::Reply) | tools and agent | | a socket |
//!
//! Where the files of a run are is in [`files`], and how others than the agent open them in
//! [`outside`].
pub mod environment;
pub mod files;
pub mod histogram;
pub mod ledger;
pub mod loss;
pub mod measured;
pub mod outside;
pub mod refusal;
pub mod report;
pub mod ungoverned;
