//! Any text as a store's URI.
#![no_main]
use libfuzzer_sys::fuzz_target;
use pagetide_store::exercise;

fuzz_target!(|text: &str| exercise::uri(text));
