//! The files of `record-accesses`: which pages a program accessed, in order.
//!
//! `PTACCES1`, then for each access a number in LEB128: twice the distance from the page accessed
//! before, as zigzag, and one more for a store. `programs/accesses.c` writes them.
use std::io::{Error, ErrorKind, Result};

const MAGIC: &[u8] = b"PTACCES1";
/// More bytes than the longest number has.
const LONGEST: u32 = 10;

/// One access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// To this page.
    pub page: u64,
    /// Whether it was a store.
    pub store: bool,
}

/// The accesses in the bytes of such a file; `None` if they are something else.
pub fn parse(bytes: &[u8]) -> Option<Accesses<'_>> {
    let numbers = bytes.strip_prefix(MAGIC)?;
    Some(Accesses { numbers, page: 0 })
}

/// See [`parse`]. An access that was not written to its end is left out.
#[derive(Debug, Clone)]
pub struct Accesses<'a> {
    numbers: &'a [u8],
    page: u64,
}

impl Accesses<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for place in 0..LONGEST {
            let (first, rest) = self.numbers.split_first()?;
            self.numbers = rest;
            number |= u64::from(first & 127).checked_shl(7 * place)?;
            if *first < 128 {
                return Some(number);
            }
        }
        None
    }
}

impl Iterator for Accesses<'_> {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        let number = self.number()?;
        let zigzag = number >> 1;
        let distance = zigzag >> 1 ^ (zigzag & 1).wrapping_neg();
        self.page = self.page.wrapping_add(distance);
        Some(Access {
            page: self.page,
            store: number & 1 == 1,
        })
    }
}

/// Accesses, those of them that are stores, and pages in a recording; an error if it is none.
pub fn count(bytes: &[u8]) -> Result<(usize, usize, usize)> {
    let accesses = parse(bytes).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidData,
            "the recording is empty: the program ended before valgrind had started it",
        )
    })?;
    let mut pages = std::collections::HashSet::new();
    let (mut all, mut stores) = (0, 0);
    for access in accesses {
        all += 1;
        stores += usize::from(access.store);
        pages.insert(access.page);
    }
    Ok((all, stores, pages.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_forth_and_back_are_read_and_a_cut_number_is_left_out() {
        let mut bytes = MAGIC.to_vec();
        // Page 100, loaded: zigzag 200, doubled 400. Page 98, stored to: zigzag 3, doubled, and 1.
        bytes.extend([0x80 | 16, 3, 7, 0x80]);
        let accesses: Vec<Access> = parse(&bytes).unwrap().collect();
        let expected = [(100, false), (98, true)].map(|(page, store)| Access { page, store });
        assert_eq!(accesses, expected);
        assert_eq!(count(&bytes).unwrap(), (2, 1, 2));
    }

    #[test]
    fn other_files_are_none() {
        assert!(parse(b"PTTRACE1").is_none());
        assert!(count(b"").unwrap_err().to_string().contains("empty"));
    }
}
