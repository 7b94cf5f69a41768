//! `programs`: real programs that know nothing of paging, alone, under `pagetide run` and under the
//! kernel's swap, in turns, in a share of the memory each of them takes alone.
//!
//! Nothing is tuned to a program: `pagetide run` gets a budget and no other option that matters.
//! What a program would choose by the memory it finds (the heap of Java, the sort buffer) is said
//! to it in its [`catalogue`], so that it is the same program everywhere.
pub mod catalogue;
mod expectation;
pub mod experiment;
mod findings;
mod inputs;
mod kernel_swap;
pub mod plan;
mod process;
mod relief;
mod report;
mod results;
mod run;
mod services;
mod tools;
mod watch;
