//! The C interface. `include/pagetide.h` says what each function does; here is how.
//!
//! Every function goes through [`status::guard`]: it returns a code, keeps the message for
//! `pagetide_last_error`, and lets no panic out. Handles are boxes that the caller owns; a null
//! pointer is an error, or nothing to free.
#![deny(unsafe_code)]
// The safety of each function is what the header says of its arguments.
#![allow(clippy::missing_safety_doc, missing_docs)]

#[allow(unsafe_code)]
mod arguments;
#[allow(unsafe_code)]
mod file;
#[allow(unsafe_code)]
mod here;
#[allow(unsafe_code)]
mod lock;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod region;
#[allow(unsafe_code)]
mod restore;
#[allow(unsafe_code)]
mod secret;
#[allow(unsafe_code)]
mod snapshot;
#[allow(unsafe_code)]
mod status;
#[allow(unsafe_code)]
mod tracker;
