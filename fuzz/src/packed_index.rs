//! The index of a packed dump, given any bytes: they are refused, or what is read from them is what
//! would be written, and every page has one place.
use pagetide_serve::packed::{Index, Place};
use xxhash_rust::xxh3::xxh3_64;

/// Magic, version and size of pages, as they are in an index.
const HEAD: &[u8] = b"PTPACK\r\n\x01\0\0\0\0\x10\0\0";
/// Of a long run this many pages are looked up.
const LOOKED_UP: u64 = 64;

/// Reads the bytes after the first as an index. That says what is made of them before: with its bit
/// 0 their beginning is as it has to be, with bit 1 their checksum.
pub fn exercise(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if how & 1 == 1 && bytes.len() >= HEAD.len() {
        bytes[..HEAD.len()].copy_from_slice(HEAD);
    }
    if how & 2 == 2 {
        seal(&mut bytes);
    }
    let Ok(index) = Index::decode(&bytes) else {
        return;
    };
    assert_eq!(index.encode().expect("it was read"), bytes);
    for file in &index.files {
        let mut first = 0;
        for run in file.runs() {
            assert_eq!(run.first, first);
            assert_eq!(file.find(first), Some((run.place, run.pages.into())));
            let most = LOOKED_UP.min(run.pages.into());
            for offset in 1..most {
                let (place, left) = file.find(first + offset).expect("it is in the run");
                assert_eq!(left, u64::from(run.pages) - offset);
                assert_eq!(place, behind(run.place, offset));
            }
            first += u64::from(run.pages);
        }
        assert_eq!((file.pages(), file.find(first)), (first, None));
    }
}

/// The place so many pages behind `place`.
fn behind(place: Place, offset: u64) -> Place {
    match place {
        Place::Zeros => Place::Zeros,
        Place::Volume { volume, page } => Place::Volume {
            volume,
            page: page + offset as u32,
        },
    }
}

/// Makes the last eight bytes the checksum of the others.
fn seal(bytes: &mut [u8]) {
    if let Some((rest, sum)) = bytes.split_last_chunk_mut::<8>() {
        *sum = xxh3_64(rest).to_le_bytes();
    }
}
