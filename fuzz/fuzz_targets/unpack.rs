//! Any bytes as a packed page of the `ram:` store.
#![no_main]
use libfuzzer_sys::fuzz_target;
use pagetide_store::exercise;

fuzz_target!(|data: &[u8]| exercise::unpack(data));
