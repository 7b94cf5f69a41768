//! Any bytes as a snapshot file. The first two bytes say where the directory of a sealed file
//! begins; 0: the rest is taken as it is.
#![no_main]
use libfuzzer_sys::fuzz_target;
use pagetide_fuzz::exercise::{exercise, seal};

fuzz_target!(|data: &[u8]| {
    let Some((head, rest)) = data.split_at_checked(2) else {
        return;
    };
    let mut bytes = rest.to_vec();
    match u16::from_le_bytes([head[0], head[1]]) {
        0 => {}
        directory_at => seal(&mut bytes, directory_at as usize),
    }
    exercise(&bytes);
});
