//! Everything here that reads bytes from outside, given any bytes. Fuzz targets and tests call it;
//! it is no part of the interface.

#[cfg(feature = "remote")]
pub use crate::remote::exercise::{memcached, valkey};

use crate::chain::{behind, check, is_remote, redact};
use crate::lz4;
use crate::{PAGE_SIZE, parse_size};

/// Unpacks `packed` as a page of the `ram:` store. What is understood is what another decoder makes
/// of it.
pub fn unpack(packed: &[u8]) {
    let mut page = [0; PAGE_SIZE];
    if lz4::unpack(packed, &mut page).is_some() {
        let expected = lz4_flex::block::decompress(packed, PAGE_SIZE);
        assert_eq!(expected.as_deref().ok(), Some(&page[..]));
    }
}

/// Reads `text` as a store's URI, as far as that opens nothing.
pub fn uri(text: &str) {
    let _ = (check(text), is_remote(text), parse_size(text));
    if let Some((front, behind)) = behind(text) {
        assert_eq!(format!("{front}{behind}"), text);
    }
    assert_eq!(redact(&redact(text)), redact(text), "{text}");
    #[cfg(feature = "remote")]
    crate::remote::exercise::text(text);
}
