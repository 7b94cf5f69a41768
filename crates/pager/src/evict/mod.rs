//! Eviction: when and how many pages ([`controller`]), by moving ([`batch`]) or where they are
//! ([`in_place`]).
pub mod adapting;
pub(crate) mod batch;
mod bounding;
mod cold;
pub mod controller;
mod following;
pub(crate) mod health;
pub(crate) mod in_place;
mod measuring;
pub(crate) mod requested;
pub(crate) mod sharing;
pub(crate) mod staging;
mod watching;
