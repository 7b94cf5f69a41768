//! `pagetide pack`: the pages of a dump of CRIU's, or of an image, into a store, each content once.
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use pagetide_serve::criu::pack as pack_images;
use pagetide_serve::packed::{INDEX_NAME, PackError, Shelf, Summary, index_path, pack_image};

use super::{print, print_json, told};
use crate::exit::{Exit, Failure};
use crate::size::Bytes;

pub(crate) const ABOUT: &str = "\
Put the pages of a dump of CRIU's, or of an image of memory, into a store, compressed, and each \
content once.

What was dumped twice, or by others, is there once. Beside the images of a dump comes a small \
file, pagetide.pages, that says where each page lies; then the images can be copied without \
pages-*.img, and `pagetide serve criu` restores from the store. An image is a raw memory file or a \
snapshot of Pagetide's; beside it comes IMAGE.pages, which `pagetide serve firecracker` serves. \
Killed and started again it adds what is missing. The store is a directory (file:DIR) or a Valkey \
or Redis server; what is in it stays.";

/// Options of `pack`.
#[derive(Debug, Args)]
pub struct Pack {
    /// Where the images of a dump are, or an image of memory
    #[arg(value_name = "DIR|IMAGE", value_hint = ValueHint::AnyPath)]
    pub images: PathBuf,
    /// Where pages go: file:DIR, valkey://HOST, valkey+unix:///SOCKET, valkeys://HOST,
    /// valkey-cluster://HOST,HOST
    #[arg(value_name = "URI")]
    pub store: String,
    /// Read everything back, and remove pages-*.img of DIR, or IMAGE, once it is the same
    #[arg(long)]
    pub remove_pages: bool,
    /// Print a JSON object, sizes in bytes
    #[arg(long)]
    pub json: bool,
}

/// Packs.
pub fn pack(options: &Pack) -> Result<u8, Failure> {
    let images = std::fs::canonicalize(&options.images).map_err(|error| {
        Failure::new(
            Exit::Store,
            format!("{}: {error}", options.images.display()),
        )
    })?;
    let shelf = Shelf::make(&options.store).map_err(PackError::from);
    let packed = shelf.and_then(|shelf| match images.is_dir() {
        true => pack_images(&images, &shelf, options.remove_pages, &told),
        false => pack_image(&images, &shelf, options.remove_pages, &told),
    });
    let summary = packed.map_err(|error| {
        let exit = match error {
            PackError::Full(_) => Exit::Failed,
            PackError::Lost(_) => Exit::DataLost,
            PackError::Store(_) | PackError::Image(_) => Exit::Store,
        };
        Failure::new(exit, error.to_string())
    })?;
    let printed = match options.json {
        true => print_json(&summary),
        false => {
            let index = match images.is_dir() {
                true => images.join(INDEX_NAME),
                false => index_path(&images),
            };
            print(&line(&summary, &index))
        }
    };
    // 1 would say that the store is full.
    printed.map_err(super::as_of_a_file)?;
    Ok(Exit::Ok.code())
}

fn line(summary: &Summary, index: &Path) -> String {
    format!(
        "{} pages: {} of zeros, {} that differ, {} of them new, which take {} more of the store; \
         {} has {}\n",
        summary.pages,
        summary.zero_pages,
        summary.distinct_pages,
        summary.new_pages,
        Bytes(summary.added_bytes),
        index.display(),
        Bytes(summary.index_bytes)
    )
}
