//! Pages that are kept in a place of their own, each content once, so that images without pages can
//! be served from there, on any machine.
//!
//! The place is a [`Shelf`]: a directory, or a server. On it are *volumes*: snapshot files
//! (`docs/snapshot-format.md`), with up to 65536 pages, and in a second region the *name* of each,
//! a hash of its bytes. A volume is written once, and is there when it is whole. What packs images
//! looks up the names of their pages in all volumes, puts those that are in none into new ones, and
//! writes an [`Index`] beside the images: where each page of theirs lies. [`Packed`] reads them.
mod image;
mod index;
mod name;
mod pack;
mod shelf;
mod source;
mod volume;

pub use image::{index_path, open_image, pack_image};
pub use index::{File, INDEX_NAME, Index, IndexError, Place, Run};
pub use name::Name;
pub use pack::{PackError, Summary};
pub(crate) use pack::{Pages, put, verify};
pub use shelf::{Shelf, ShelfError, Stored};
pub use source::{Packed, PackedFile};
pub use volume::{Finished, Volume, VolumeWriter};
