//! Any bytes as a snapshot file. The first two say what is made of the rest: 0, nothing, it is the
//! file; 0xffff, changes to a real file, a place and a byte each; another number, a file whose
//! directory begins there and whose checksums are right.
#![no_main]
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use pagetide::track::snapshot::format::{HEADER_BYTES, TRAILER_BYTES};
use pagetide_fuzz::exercise::{directory_of, exercise, real_file, seal};

fuzz_target!(|data: &[u8]| {
    let Some((head, rest)) = data.split_at_checked(2) else {
        return;
    };
    let bytes = match u16::from_le_bytes([head[0], head[1]]) {
        0 => rest.to_vec(),
        u16::MAX => changed(rest),
        directory_at => {
            let mut bytes = rest.to_vec();
            seal(&mut bytes, directory_at as usize);
            bytes
        }
    };
    exercise(&bytes);
});

/// The real file with `changes` between its header and its trailer.
fn changed(changes: &[u8]) -> Vec<u8> {
    static REAL: OnceLock<Vec<u8>> = OnceLock::new();
    let real = REAL.get_or_init(|| {
        let mut bytes = (0u32..).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8);
        real_file(|| bytes.next().unwrap_or(0), None)
    });
    let (mut bytes, directory) = (real.clone(), directory_of(real));
    let inside = HEADER_BYTES..real.len() - TRAILER_BYTES;
    for change in changes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
        bytes[inside.start + place % inside.len()] = change[2];
    }
    seal(&mut bytes, directory - HEADER_BYTES);
    bytes
}
