//! `lock`: the experiment of 2015 made again. A large file, of which a part is used in random
//! order, and must stay in memory once it is: what the ways to get that cost in setup and in
//! processing. `overhead`: whether locking costs a program anything.
pub mod data;
pub mod experiment;
mod handler;
pub mod overhead;
pub mod plan;
pub mod programs;
mod registry;
mod report;
mod results;
pub mod strategy;
pub mod task;
pub mod worker;
