//! The program's address space, as far as it is under the pager: which ranges are managed, how
//! memory comes under it, and what follows when the program changes its mappings.
pub(crate) mod after_fork;
pub(crate) mod attach;
pub(crate) mod events;
pub(crate) mod managed;
pub mod mapping_lock;
pub(crate) mod own_drops;
pub(crate) mod space;
pub(crate) mod throttle;
