//! Any bytes as the handshake of a client of `pagetide serve`.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| pagetide_fuzz::handshake::exercise(data));
