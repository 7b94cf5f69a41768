//! Behaviour that every store needs, each a layer around a [`Device`](crate::device::Device).

pub(crate) mod checksum;
pub(crate) mod fault;
pub(crate) mod freeze;
pub(crate) mod retry;
