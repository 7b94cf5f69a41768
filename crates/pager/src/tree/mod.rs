//! One budget for all processes of a run.
//!
//! | file | what |
//! |---|---|
//! | [`mod@file`] | the memory they share: the budget, and a slot for each process |
//! | [`division`] | who is to give up how much, and who may have it; knows no kernel |
//! | `slot` | what the file says of one process |
//! | [`member`] | a process's own part: its slot, what it asks for, how it gives up |
//! | [`deferred`] | the same while the kernel fills the process's memory unasked |
//!
//! There is no server and no count of free pages. What is free is the budget less the sum of what
//! the slots have been granted, found anew by whoever asks, under a lock that the kernel takes from
//! a process that ends. A slot is its owner's alone to raise and to lower: a process that is to
//! give up evicts first and lowers its grant then, so the sum exceeds the budget at no time, but
//! for the floors ([`file::FLOOR_PAGES`]).
pub mod deferred;
pub mod division;
pub mod file;
pub mod member;
mod slot;
