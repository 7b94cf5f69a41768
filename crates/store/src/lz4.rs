//! Pages packed and unpacked, in LZ4's block format.
//!
//! Pages of real programs are full of long runs of zeros or of a few repeated bytes. The general
//! decoders at hand copy a match that overlaps itself byte by byte, 3 us for a page that is nearly
//! all zeros; here such a match doubles with each copy. The output is always one page, which makes
//! the rest short. Every length is checked: `None` means that the bytes are not those of a page.

use crate::{PAGE_SIZE, Page};
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

/// Copies of up to this many bytes are made as one fixed-size copy where there is room for it.
const SHORT: usize = 16;

/// What packing a page needs: a table, and room for the output.
pub(crate) struct Packer {
    table: CompressTable,
    output: [u8; get_maximum_output_size(PAGE_SIZE)],
}

impl Packer {
    /// Bytes of heap of a packer, its table of 8 KiB included.
    pub(crate) const BYTES: u64 = (size_of::<Packer>() + 8192) as u64;

    pub(crate) fn new() -> Box<Packer> {
        Box::new(Packer {
            table: CompressTable::small(),
            output: [0; get_maximum_output_size(PAGE_SIZE)],
        })
    }

    /// `page` packed, if that takes at most `bytes_max`.
    pub(crate) fn pack(&mut self, page: &Page, bytes_max: usize) -> Option<&[u8]> {
        // An error means only that the page does not shrink.
        let len = compress_into_with_table(&page.0, &mut self.output, &mut self.table).ok()?;
        (len <= bytes_max).then(|| &self.output[..len])
    }
}

/// Decompresses `packed`, all of it, to exactly one page.
pub(crate) fn unpack(packed: &[u8], page: &mut [u8; PAGE_SIZE]) -> Option<()> {
    let (mut from, mut to) = (0, 0);
    loop {
        let token = usize::from(*packed.get(from)?);
        from += 1;
        let literals = length(token >> 4, packed, &mut from)?;
        match (packed.get(from..from + SHORT), page.get_mut(to..to + SHORT)) {
            (Some(source), Some(target)) if literals <= SHORT => target.copy_from_slice(source),
            _ => page
                .get_mut(to..to + literals)?
                .copy_from_slice(packed.get(from..from + literals)?),
        }
        from += literals;
        to += literals;
        if from == packed.len() {
            return (to == PAGE_SIZE).then_some(());
        }
        let distance = usize::from(u16::from_le_bytes(*packed.get(from..)?.first_chunk()?));
        from += 2;
        let len = 4 + length(token & 15, packed, &mut from)?;
        if distance == 0 || distance > to || len > PAGE_SIZE - to {
            return None;
        }
        repeat(page, to, distance, len);
        to += len;
    }
}

/// A length that starts in four bits of the token and, from 15 on, goes on in further bytes.
#[inline]
fn length(nibble: usize, packed: &[u8], from: &mut usize) -> Option<usize> {
    let mut length = nibble;
    if nibble == 15 {
        loop {
            let more = *packed.get(*from)?;
            *from += 1;
            length += usize::from(more);
            if more != 255 {
                break;
            }
        }
    }
    Some(length)
}

/// Copies `len` bytes to `to` from `distance` before it, each byte as it is by then. All of it lies
/// in the page.
#[inline]
fn repeat(page: &mut [u8; PAGE_SIZE], to: usize, distance: usize, len: usize) {
    let start = to - distance;
    if len <= SHORT && distance >= SHORT && to + SHORT <= PAGE_SIZE {
        page.copy_within(start..start + SHORT, to);
    } else if distance >= len {
        page.copy_within(start..start + len, to);
    } else if distance == 1 {
        let byte = page[start];
        page[to..to + len].fill(byte);
    } else if len <= SHORT {
        for index in 0..len {
            page[to + index] = page[start + index];
        }
    } else {
        // What lies between `start` and `to` repeats with the period `distance`; with each copy it
        // is twice as long.
        let mut done = 0;
        while done < len {
            let step = (distance + done).min(len - done);
            page.copy_within(start..start + step, to + done);
            done += step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz4_flex::block::compress;
    use proptest::prelude::*;

    /// Pages of runs: of random bytes, of one byte, of a short pattern.
    fn page() -> impl Strategy<Value = Vec<u8>> {
        let run = (
            1usize..2000,
            proptest::collection::vec(any::<u8>(), 1..40),
            any::<bool>(),
        );
        proptest::collection::vec(run, 1..60).prop_map(|runs| {
            let mut seed = 1u64;
            let mut page: Vec<u8> = runs
                .into_iter()
                .flat_map(|(len, pattern, random)| {
                    let bytes: Vec<u8> = (0..len / if random { 8 } else { 1 })
                        .map(|index| {
                            seed = seed
                                .wrapping_mul(6364136223846793005)
                                .wrapping_add(1442695040888963407);
                            if random {
                                (seed >> 33) as u8
                            } else {
                                pattern[index % pattern.len()]
                            }
                        })
                        .collect();
                    bytes
                })
                .collect();
            page.resize(PAGE_SIZE, 7);
            page
        })
    }

    proptest! {
        #[test]
        fn undoes_what_lz4_does(page in page()) {
            let mut found = [0; PAGE_SIZE];
            prop_assert!(unpack(&compress(&page), &mut found).is_some());
            prop_assert_eq!(&found[..], &page[..]);
        }

        #[test]
        fn damaged_bytes_do_no_harm(
            page in page(),
            at in any::<prop::sample::Index>(),
            with in any::<u8>(),
            cut in 0usize..64,
        ) {
            let mut packed = compress(&page);
            let at = at.index(packed.len());
            packed[at] = with;
            packed.truncate(packed.len().saturating_sub(cut));
            let mut found = [0; PAGE_SIZE];
            // What matters is that it comes back; if it says that it understood, a reference
            // decoder agrees.
            if unpack(&packed, &mut found).is_some() {
                let expected = lz4_flex::block::decompress(&packed, PAGE_SIZE).unwrap();
                prop_assert_eq!(expected, found.to_vec());
            }
        }

        #[test]
        fn any_bytes_do_no_harm(packed in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = unpack(&packed, &mut [0; PAGE_SIZE]);
        }
    }
}
