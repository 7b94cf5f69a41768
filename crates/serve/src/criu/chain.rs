//! The directories of a dump: its own, and those of the images it builds on.
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::image::ImageError;

/// The link to the images that a dump builds on.
const PARENT_LINK: &str = "parent";
/// Most images that build on each other.
const CHAIN_MAX: usize = 1024;

/// The images that those in the last of `directories` build on, which has to have some.
///
/// # Errors
/// It has none, or too many build on each other.
pub(super) fn parent(directories: &[PathBuf]) -> Result<PathBuf, ImageError> {
    let last = directories.last().map_or(Path::new(""), PathBuf::as_path);
    let link = last.join(PARENT_LINK);
    if directories.len() >= CHAIN_MAX {
        let text = format!("more than {CHAIN_MAX} images build on each other");
        return Err(ImageError::new(&link, text));
    }
    std::fs::canonicalize(&link).map_err(|error| {
        let text = format!("the images that this dump builds on were expected there: {error}");
        ImageError::new(&link, text)
    })
}

/// The directory of a dump, and all that it builds on.
///
/// # Errors
/// A link leads nowhere, or in a circle.
pub(super) fn chain(directory: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let mut directories = vec![directory.to_owned()];
    loop {
        let last = &directories[directories.len() - 1];
        if last.join(PARENT_LINK).symlink_metadata().is_err() {
            return Ok(directories);
        }
        directories.push(parent(&directories)?);
    }
}

/// The names of the files in `directory` that are chosen, in their order.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn names(
    directory: &Path,
    is_chosen: impl Fn(&str) -> bool,
) -> Result<Vec<String>, ImageError> {
    let told = |error: std::io::Error| ImageError::new(directory, error);
    let mut names = Vec::new();
    for entry in directory.read_dir().map_err(told)? {
        let name = entry.map_err(told)?.file_name();
        names.extend(
            name.to_str()
                .filter(|name| is_chosen(name))
                .map(str::to_owned),
        );
    }
    names.sort_unstable();
    Ok(names)
}

/// The number in the name of a file of pages, `pages-NUMBER.img`.
pub(super) fn pages_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("pages-")?.strip_suffix(".img")?;
    number.parse().ok()
}

/// The name of a file of pages.
pub(super) fn pages_name(number: u32) -> String {
    format!("pages-{number}.img")
}

/// What the images in `directories` are known by: a checksum of those that say which tasks there
/// were, with which memory, and what they were about.
///
/// # Errors
/// One cannot be read.
pub(super) fn images_id(directories: &[PathBuf]) -> Result<u128, ImageError> {
    let tells = |name: &str| {
        let known = ["core-", "mm-", "pagemap-", "inventory.", "pstree."];
        name.ends_with(".img") && known.iter().any(|begin| name.starts_with(begin))
    };
    let mut hash = Xxh3::new();
    for directory in directories {
        for name in names(directory, tells)? {
            let path = directory.join(&name);
            let bytes = std::fs::read(&path).map_err(|error| ImageError::new(&path, error))?;
            hash.update(name.as_bytes());
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(&bytes);
        }
        hash.update(b"/");
    }
    Ok(hash.digest128())
}
