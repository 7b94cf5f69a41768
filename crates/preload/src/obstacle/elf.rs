//! What an ELF file's headers say of whether the dynamic linker loads the agent into it.
use pagetide_pager::ungoverned::Obstacle;

use super::file::Opened;

/// `len` bytes of a program at `at`: of its `head`, or read into `buffer`.
fn bytes<'b>(file: &Opened, head: &'b [u8], at: u64, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let from = usize::try_from(at).ok()?;
    if let Some(known) = head.get(from..from.checked_add(buffer.len())?) {
        return Some(known);
    }
    (file.read(at, buffer) == buffer.len()).then_some(buffer)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(word)
}

/// What a program is to the agent.
pub enum Elf {
    /// Its dynamic linker loads the agent.
    Dynamic,
    /// Nothing does.
    Refuses(Obstacle),
    /// That cannot be told.
    Unknown,
}

/// What the headers of an ELF file say; `head` begins with its mark.
pub fn read(file: &Opened, head: &[u8]) -> Elf {
    const CLASS_64: u8 = 2;
    const LITTLE: u8 = 1;
    const SEGMENT_BYTES: u64 = 56;
    const PT_INTERP: u64 = 3;
    /// More than any linker writes.
    const SEGMENTS_MAX: u64 = 256;
    let machine = if cfg!(target_arch = "x86_64") {
        libc::EM_X86_64
    } else {
        libc::EM_AARCH64
    };
    if head.len() < 64 {
        return Elf::Unknown;
    }
    if head[4] != CLASS_64 {
        return Elf::Refuses(Obstacle::Narrow);
    }
    if head[5] != LITTLE || number::<2>(head, 18) != u64::from(machine) {
        return Elf::Refuses(Obstacle::Foreign);
    }
    let (table, size, count) = (
        number::<8>(head, 32),
        number::<2>(head, 54),
        number::<2>(head, 56),
    );
    if size != SEGMENT_BYTES {
        return Elf::Unknown;
    }
    let mut buffer = [0; SEGMENT_BYTES as usize];
    for index in 0..count.min(SEGMENTS_MAX) {
        let at = table.saturating_add(index * SEGMENT_BYTES);
        let Some(segment) = bytes(file, head, at, &mut buffer) else {
            return Elf::Unknown;
        };
        if number::<4>(segment, 0) != PT_INTERP {
            continue;
        }
        let (offset, len) = (number::<8>(segment, 8), number::<8>(segment, 32));
        let mut linker = [0; 64];
        let len = linker.len().min(len as usize);
        let Some(linker) = bytes(file, head, offset, &mut linker[..len]) else {
            return Elf::Unknown;
        };
        if linker.windows(7).any(|part| part == b"ld-musl") {
            return Elf::Refuses(Obstacle::Musl);
        }
        return Elf::Dynamic;
    }
    if is_linker(file) {
        return Elf::Dynamic;
    }
    Elf::Refuses(Obstacle::Static)
}

/// `ld-linux-x86-64.so.2 PROGRAM` has no linker above it, but loads the agent all the same.
fn is_linker(file: &Opened) -> bool {
    let mut buffer = [0; 512];
    let path = file.path(&mut buffer);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"ld-") || name == b"ld.so"
}
