//! The agent: loaded into an unmodified program by `LD_PRELOAD`, it puts the program's anonymous
//! memory under a pager.
//!
//! It is its own small world. Its allocations come from memory no pager takes ([`alloc`]); its
//! threads are raw threads with descriptors of their own ([`threads`]); the program's memory is
//! found by looking ([`scanner`]), not by replacing `malloc` or `mmap`, and registered when the
//! budget is nearly used up ([`deferral`]).
//!
//! The functions it stands in for
//! - make processes and threads ([`forking`], [`exec`], [`stacks`]), or say where they may run
//!   ([`processors`]);
//! - change what memory is where, which has to happen one at a time ([`mapping`], [`remapping`],
//!   [`advice`]);
//! - lock memory, which counts against the budget ([`locking`]).
// Inner documentation, read with the source: it names what is private.
#![allow(rustdoc::private_intra_doc_links)]
#![warn(missing_docs)]

mod advice;
mod agent;
mod alloc;
mod birth;
mod child;
mod config;
mod control;
mod counters;
mod credentials;
mod deferral;
mod exec;
mod executing;
mod forking;
mod grown;
mod handover;
mod leases;
mod lines;
mod lock_all;
mod locking;
mod mapping;
mod next;
mod obstacle;
mod pressure;
mod processors;
mod program;
mod refuse;
mod remapping;
mod requests;
mod retry;
mod ripening;
mod scanner;
mod scratch_stack;
mod share;
mod stacks;
mod standard_error;
mod start;
mod threads;

/// Runs before the program's `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    match lock_all::at_load() {
        true => exec::prepare(),
        false => start::at_load(),
    }
}
