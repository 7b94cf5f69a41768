//! A short run of what the fuzz target does, with near misses of an index.
#[path = "../../../fuzz/src/packed_index.rs"]
mod packed_index;

use pagetide_serve::packed::{File, Index, Place};
use pagetide_track::SnapshotId;
use proptest::prelude::*;

fn at(volume: u32, page: u32) -> Place {
    Place::Volume { volume, page }
}

fn index() -> Vec<u8> {
    let mut file = File::new(0, 3);
    for place in [at(1, 7), at(1, 8), Place::Zeros, Place::Zeros, at(0, 9)] {
        file.push(place);
    }
    let index = Index {
        images: 77 << 99,
        store: "file:/somewhere".to_owned(),
        volumes: vec![SnapshotId([1; 16]), SnapshotId([2; 16])],
        files: vec![file, File::new(1, 3)],
    };
    index.encode().unwrap()
}

#[test]
fn an_index_is_read_as_it_was_written() {
    packed_index::exercise(&[&[0], &index()[..]].concat());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_do_no_harm(
        how in 0u8..4,
        at in any::<prop::sample::Index>(),
        bytes in proptest::collection::vec(any::<u8>(), 1..40),
        fresh in any::<bool>(),
    ) {
        let mut all = if fresh { bytes.clone() } else { index() };
        let at = at.index(all.len());
        let end = (at + bytes.len()).min(all.len());
        all[at..end].copy_from_slice(&bytes[..end - at]);
        packed_index::exercise(&[&[how], &all[..]].concat());
    }
}
