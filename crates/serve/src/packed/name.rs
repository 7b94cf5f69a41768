//! What a page is known by, whoever's it is.
use pagetide_kernel::PAGE_SIZE;
use ring::digest::{SHA256, digest};

/// The first 24 bytes of the SHA-256 of a page: two pages that differ do not have the same one by
/// chance, and whoever wants them to has 2^96 tries to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name(pub [u8; Name::BYTES]);

impl Name {
    /// Bytes of a name.
    pub const BYTES: usize = 24;

    /// The name of `page`, which is [`PAGE_SIZE`] bytes long.
    pub fn of(page: &[u8]) -> Name {
        debug_assert_eq!(page.len(), PAGE_SIZE);
        let whole = digest(&SHA256, page);
        let mut name = [0; Name::BYTES];
        name.copy_from_slice(&whole.as_ref()[..Name::BYTES]);
        Name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_beginning_of_a_sha_256() {
        let begins = [0xad, 0x7f, 0xac, 0xb2, 0x58, 0x6f, 0xc6, 0xe9];
        assert_eq!(Name::of(&[0; PAGE_SIZE]).0[..8], begins);
        let mut page = [0; PAGE_SIZE];
        page[PAGE_SIZE - 1] = 1;
        assert_ne!(Name::of(&page), Name::of(&[0; PAGE_SIZE]));
    }
}
