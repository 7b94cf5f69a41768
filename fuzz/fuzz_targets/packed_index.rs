//! Any bytes as the index of a packed dump.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| pagetide_fuzz::packed_index::exercise(data));
