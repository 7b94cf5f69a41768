//! Processes that CRIU restores lazily (`criu restore --lazy-pages`): in place of the daemon
//! `criu lazy-pages`.
//!
//! The images of the dump tell which memory each task had and where its pages are ([`image`],
//! [`pagemap`], [`Tree`]): in the directory, in those it builds on, or at a page server
//! ([`page_server`]), or packed ([`mod@pack`]). CRIU connects once and hands over a
//! userfaultfd for each task ([`Session`]).
mod chain;
#[cfg(test)]
mod dumped;
mod entries;
mod image;
mod others;
mod pack;
mod page_server;
mod pagemap;
mod reader;
mod session;
mod tree;

pub use image::ImageError;
pub use others::Others;
pub use pack::{index_of, pack};
pub use page_server::{Counting, PageServer};
pub use session::{Failed, Session};
pub use tree::{Remote, Tree};
