//! Any bytes as what threads do to an address space, and as the order in which it is heard of.
#![no_main]
use libfuzzer_sys::fuzz_target;
use pagetide_kernel::uffd::event_log::model::exercise;

fuzz_target!(|data: &[u8]| exercise(data));
