//! A page: its word and the word's transitions, the table of all words, the eviction queues and the
//! policy that chooses from them.
pub(crate) mod backing;
pub mod policy;
pub mod queue;
pub(crate) mod second_chance;
pub mod table;
pub mod transitions;
pub(crate) mod victims;
pub mod word;
