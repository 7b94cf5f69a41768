//! Images as CRIU writes them, of memory of the tests' own.
use std::path::Path;

use super::guest::{Guest, expected};

const COMMON: u32 = 0x5456_4319;
const PSTREE: u32 = 0x5027_3030;
const MM: u32 = 0x5749_2820;
const PAGEMAP: u32 = 0x5608_4025;
/// Flags of a pagemap's entry: it comes when it is touched, and the file of pages has it.
pub const LAZY: u64 = 2;
pub const PRESENT: u64 = 4;

/// A field of a message that is a number.
fn number(field: u64, value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for mut part in [field << 3, value] {
        while part > 0x7f {
            bytes.push(part as u8 | 0x80);
            part >>= 7;
        }
        bytes.push(part as u8);
    }
    bytes
}

/// A field of a message that is a message.
fn message(field: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = number(field, value.len() as u64);
    bytes[0] |= 2;
    bytes.extend(value);
    bytes
}

fn image(place: &Path, name: &str, magic: u32, records: &[Vec<u8>]) {
    let mut bytes = [COMMON.to_le_bytes(), magic.to_le_bytes()].concat();
    for record in records {
        bytes.extend((record.len() as u32).to_le_bytes());
        bytes.extend(record);
    }
    std::fs::write(place.join(name), bytes).unwrap();
}

/// The tasks of a dump.
pub fn tasks(place: &Path, pids: &[u32]) {
    let records: Vec<_> = pids.iter().map(|pid| number(1, u64::from(*pid))).collect();
    image(place, "pstree.img", PSTREE, &records);
}

/// Task `pid` has the memory of `guest`, and in its first `pages` pages those of the image with
/// these numbers, unless they are elsewhere (`flags`).
pub fn task(place: &Path, pid: u32, guest: &Guest, pages: u64, flags: u64) {
    let start = guest.address(0) as u64;
    task_at(place, pid, start, guest.pages(), pages, flags);
}

/// The same for `mapped` pages of memory from address `start` on.
pub fn task_at(place: &Path, pid: u32, start: u64, mapped: u64, pages: u64, flags: u64) {
    let mapping = [number(1, start), number(2, start + mapped * 4096)].concat();
    image(
        place,
        &format!("mm-{pid}.img"),
        MM,
        &[message(14, &mapping)],
    );
    let entry = [number(1, start), number(2, pages), number(4, flags)].concat();
    let records = [number(1, u64::from(pid)), entry];
    image(place, &format!("pagemap-{pid}.img"), PAGEMAP, &records);
    if flags & PRESENT != 0 {
        let bytes: Vec<u8> = (0..pages).flat_map(expected).collect();
        std::fs::write(place.join(format!("pages-{pid}.img")), bytes).unwrap();
    }
}
