//! `paging`: a pattern of accesses to more memory than may be resident, under Pagetide and under
//! the kernel's swap, in turns. Both see the identical sequence; what is timed is every access as
//! the program sees it, hits included. `first-numbers` is a preset of it.
mod counters;
pub mod device;
pub mod experiment;
pub mod figures;
pub mod first_numbers;
pub mod floor;
pub mod graph;
pub mod kernel_swap;
pub mod memory;
pub mod pattern;
pub mod plan;
mod report;
pub mod shape;
pub mod systems;
pub mod task;
pub mod worker;
