//! A page made into a blob that may leave the machine: compressed (LZ4), then encrypted and
//! authenticated (AES-256-GCM).
//!
//! The key is random, made for one store object and kept in its memory alone, so what a server
//! keeps, or a disk of it, is worth nothing once the process is gone. Each put page has a
//! *generation*, a number never used twice under one key: it is the nonce, and together with owner,
//! slot and form it is authenticated. A blob of another slot, or an older one of the same slot,
//! therefore fails to open. Neither nonce nor form are stored with the blob; they are in the slot's
//! word.

use crate::lz4::{Packer, unpack};
use crate::slots::Kind;
use crate::{ErrorKind, PAGE_SIZE, Page, Slot, StoreError};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A page is kept compressed when that saves at least a sixteenth: below it, the decompression
/// costs more than the bytes.
const PACKED_MAX: usize = PAGE_SIZE - PAGE_SIZE / 16;
/// The bits of a slot's word that hold the blob's length; the others hold its generation.
const LEN_BITS: u32 = 13;
const GENERATION_MAX: u64 = u64::MAX >> LEN_BITS;

/// How pages are sealed for one store object.
pub(crate) struct Envelope {
    compress: bool,
    key: Option<LessSafeKey>,
    owner: [u8; 16],
    generation: AtomicU64,
}

impl Envelope {
    /// `owner` names the store object.
    pub(crate) fn new(
        compress: bool,
        encrypt: bool,
        owner: [u8; 16],
    ) -> Result<Envelope, StoreError> {
        let key = encrypt.then(|| {
            let mut secret = [0; 32];
            random(&mut secret)?;
            let key = UnboundKey::new(&AES_256_GCM, &secret)
                .map_err(|_| StoreError::new(ErrorKind::Config, "make a key for AES-256-GCM"));
            secret.fill(0);
            key.map(LessSafeKey::new)
        });
        Ok(Envelope {
            compress,
            key: key.transpose()?,
            owner,
            generation: AtomicU64::new(1),
        })
    }

    /// Appends the blob of `page` to `out` and returns its form and the word that opens it again.
    pub(crate) fn seal(
        &self,
        page: &Page,
        slot: Slot,
        packer: &mut Packer,
        out: &mut Vec<u8>,
    ) -> Result<(Kind, u64), StoreError> {
        let start = out.len();
        let generation = self.generation.fetch_add(1, Relaxed);
        if generation > GENERATION_MAX {
            return Err(StoreError::new(
                ErrorKind::Io,
                "put pages: all nonces of this run's key are used",
            ));
        }
        let packed = match self.compress {
            true => packer.pack(page, PACKED_MAX),
            false => None,
        };
        let kind = packed.map_or(Kind::Plain, |_| Kind::Packed);
        out.extend_from_slice(packed.unwrap_or(&page.0[..]));
        if let Some(key) = &self.key {
            let tag = key
                .seal_in_place_separate_tag(
                    nonce(generation),
                    self.bound(slot, generation, kind),
                    &mut out[start..],
                )
                .map_err(|_| StoreError::new(ErrorKind::Io, "encrypt a page"))?;
            out.extend_from_slice(tag.as_ref());
        }
        Ok((kind, generation << LEN_BITS | (out.len() - start) as u64))
    }

    /// Opens `blob`, which was sealed for `slot` as `kind` and `word`, into `page`. Allocates
    /// nothing.
    pub(crate) fn open(
        &self,
        blob: &mut [u8],
        slot: Slot,
        (kind, word): (Kind, u64),
        page: &mut Page,
    ) -> Result<(), StoreError> {
        if blob.len() != sealed_len(word) {
            return Err(other_bytes(slot, "has another length"));
        }
        let plain = match &self.key {
            None => blob,
            Some(key) => {
                let generation = word >> LEN_BITS;
                key.open_in_place(nonce(generation), self.bound(slot, generation, kind), blob)
                    .map_err(|_| other_bytes(slot, "does not authenticate"))?
            }
        };
        match kind {
            Kind::Packed => {
                unpack(plain, &mut page.0).ok_or_else(|| other_bytes(slot, "does not decompress"))
            }
            _ if plain.len() == PAGE_SIZE => {
                page.0.copy_from_slice(plain);
                Ok(())
            }
            _ => Err(other_bytes(slot, "is not a page long")),
        }
    }

    fn bound(&self, slot: Slot, generation: u64, kind: Kind) -> Aad<[u8; 29]> {
        let mut bound = [0; 29];
        bound[..16].copy_from_slice(&self.owner);
        bound[16..20].copy_from_slice(&slot.0.to_le_bytes());
        bound[20..28].copy_from_slice(&generation.to_le_bytes());
        bound[28] = kind as u8;
        Aad::from(bound)
    }
}

/// Bytes of the blob that `word` opens.
pub(crate) fn sealed_len(word: u64) -> usize {
    (word & ((1 << LEN_BITS) - 1)) as usize
}

fn nonce(generation: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&generation.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cold]
fn other_bytes(slot: Slot, how: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Corrupt,
        format!("read slot {}: what the server has for it {how}", slot.0),
    )
}

/// Fills `bytes` with random ones.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), StoreError> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).map_err(|error| {
            StoreError::new(ErrorKind::Config, "get random bytes").with_cause(error)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(seed: u8, random: bool) -> Page {
        let mut page = Page::ZERO;
        page.0.iter_mut().enumerate().for_each(|(index, byte)| {
            *byte = if random {
                ((index as u64 * index as u64 * 0x9e37_79b9) >> 7) as u8 ^ seed
            } else {
                seed
            };
        });
        page
    }

    fn sealed(envelope: &Envelope, page: &Page, slot: u32) -> (Vec<u8>, (Kind, u64)) {
        let mut blob = vec![];
        let form = envelope
            .seal(page, Slot(slot), &mut Packer::new(), &mut blob)
            .unwrap();
        (blob, form)
    }

    #[test]
    fn pages_come_back_in_every_form() {
        for (compress, encrypt) in [(false, false), (true, false), (false, true), (true, true)] {
            let envelope = Envelope::new(compress, encrypt, [7; 16]).unwrap();
            for random in [false, true] {
                let page = page(3, random);
                let (mut blob, form) = sealed(&envelope, &page, 9);
                assert_eq!(blob.len() < 200, compress && !random);
                if encrypt {
                    assert!(
                        !blob
                            .windows(64)
                            .any(|part| page.0.windows(64).any(|plain| plain == part))
                    );
                }
                let mut found = Page::ZERO;
                envelope.open(&mut blob, Slot(9), form, &mut found).unwrap();
                assert!(found.0 == page.0);
            }
        }
    }

    #[test]
    fn a_blob_opens_only_as_what_it_was_sealed_as() {
        let envelope = Envelope::new(false, true, [1; 16]).unwrap();
        let (first, first_form) = sealed(&envelope, &page(1, true), 4);
        let (second, second_form) = sealed(&envelope, &page(1, true), 4);
        assert_ne!(first, second, "the same page twice must not look the same");
        let refused = |envelope: &Envelope, blob: &[u8], slot, form| {
            let error = envelope
                .open(
                    &mut blob.to_vec(),
                    Slot(slot),
                    form,
                    &mut Page::ZERO.clone(),
                )
                .unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt);
        };
        refused(&envelope, &first, 4, second_form); // replayed
        refused(&envelope, &first, 5, first_form); // swapped
        refused(&envelope, &first, 4, (Kind::Packed, first_form.1));
        refused(&envelope, &first[1..], 4, first_form);
        refused(
            &Envelope::new(false, true, [1; 16]).unwrap(),
            &first,
            4,
            first_form,
        ); // another key
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(bit in 0usize..(PAGE_SIZE + 16) * 8) {
            let envelope = Envelope::new(false, true, [1; 16]).unwrap();
            let (mut blob, form) = sealed(&envelope, &page(1, true), 4);
            blob[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(envelope.open(&mut blob, Slot(4), form, &mut Page::ZERO.clone()).is_err());
        }
    }
}
