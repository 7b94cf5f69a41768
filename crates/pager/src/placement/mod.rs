//! Which processor the pager's threads use, and the program's thread with them.
//!
//! Nothing of the pager depends on it: it is told what happens by a few hooks, and a thread whose
//! place is `Anywhere` (the default of every hook) runs where the scheduler puts it. What it is
//! for: where a hypervisor carries each interrupt between processors, a fault between two of them
//! takes 50 us and more, and 9 on one.
//!
//! - [`Placement`] is shared: who faults and where ([`faults`]), which thread is held ([`hold`]).
//! - Each of the pager's threads has a [`Place`] of its own: [`fault_thread`] or [`fn@evictor`].
pub(crate) mod binding;
mod evictor;
pub(crate) mod faults;
mod hold;
mod holder;
mod places;

pub use binding::{CpuBinding, only};
pub use faults::FaultProcessors;
pub(crate) use places::{Moves, Place, Placement, Turn, evictor, fault_thread};
