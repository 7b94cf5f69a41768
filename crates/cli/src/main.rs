//! The `pagetide` command; everything is in the library.
//!
//! The C entry point is used instead of Rust's, because Rust's runtime changes the process before
//! `main`: it ignores SIGPIPE and opens `/dev/null` on closed standard descriptors. `pagetide run`
//! hands on what it inherited, so it must still be there.
#![no_main]
// The entry point's name is an unsafe attribute: it replaces a symbol of the C runtime. This is the
// one place that does.
#![allow(unsafe_code)]
use std::ffi::{c_char, c_int};

/// Called by the C runtime. Arguments come through `std::env`, which glibc fills in before this.
#[unsafe(no_mangle)]
pub extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    c_int::from(pagetide_cli::main())
}
