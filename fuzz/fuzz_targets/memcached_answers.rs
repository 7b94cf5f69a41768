//! Any bytes as the answers of a memcached server.
#![no_main]
use libfuzzer_sys::fuzz_target;
use pagetide_store::exercise;

fuzz_target!(|data: &[u8]| exercise::memcached(data));
