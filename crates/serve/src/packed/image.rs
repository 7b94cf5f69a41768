//! Images of memory, raw files and snapshots, whose pages are put into a store; and served from
//! there.
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagetide_kernel::PAGE_SIZE;

use super::index::Index;
use super::pack::{PackError, Pages, Summary, put, verify};
use super::shelf::Shelf;
use super::source::Packed;
use crate::source::{self, Buffer, Source, SourceError};

/// Pages read at a time.
const READ_PAGES: u64 = 256;
/// How the name of an image's index ends.
const SUFFIX: &str = ".pages";

/// An image as pages to be packed.
struct ImagePages {
    source: Arc<dyn Source>,
    path: PathBuf,
}

impl Pages for ImagePages {
    fn key(&self) -> (u32, u32) {
        (0, 0)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn each(&self, each: &mut dyn FnMut(&[u8]) -> Result<(), PackError>) -> Result<(), PackError> {
        let (mut buffer, mut bytes) = (Buffer::default(), Vec::new());
        let mut first = 0;
        while first < self.source.pages() {
            let pages = READ_PAGES.min(self.source.pages() - first);
            bytes.resize(pages as usize * PAGE_SIZE, 0);
            let read = self.source.read_into(first, &mut bytes, &mut buffer);
            read.map_err(|error| PackError::Image(format!("{}: {error}", self.name())))?;
            bytes.chunks_exact(PAGE_SIZE).try_for_each(&mut *each)?;
            first += pages;
        }
        Ok(())
    }
}

/// Where the index of the packed image at `path` is.
pub fn index_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// Packs the image at `path`, a raw file or a snapshot with those it builds on, and writes its
/// index beside it. With `remove` everything is then read back and compared, and `path` is removed.
/// `say` is told of what is wrong and no failure.
///
/// # Errors
/// [`PackError`]. Pages that were put are found by the next attempt.
pub fn pack_image(
    path: &Path,
    shelf: &Shelf,
    remove: bool,
    say: &dyn Fn(&str),
) -> Result<Summary, PackError> {
    let told = |error: &dyn ToString| PackError::Image(error.to_string());
    let source = source::open(path).map_err(|error| told(&error))?;
    let images = u128::from_le_bytes(source.id().0);
    let pages = [ImagePages {
        source,
        path: path.to_owned(),
    }];
    let (index, mut summary) = put(&pages, shelf, images, say)?;
    let beside = index_path(path);
    let named = |error: std::io::Error| told(&format!("{}: {error}", beside.display()));
    index.save(&beside).map_err(named)?;
    summary.pages = pages[0].source.pages();
    summary.index_bytes = std::fs::metadata(&beside).map_or(0, |meta| meta.len());
    if remove {
        let packed = Packed::open(index, shelf).map_err(|error| PackError::Lost(error.0))?;
        verify(&Arc::new(packed), &pages)?;
        let removed = std::fs::remove_file(path);
        removed.map_err(|error| told(&format!("{}: {error}", path.display())))?;
    }
    Ok(summary)
}

/// Opens the image at `path`: as [`source::open`], or the index of a packed one, whose pages are in
/// its store, or in `store` if that is given.
///
/// # Errors
/// It cannot be opened; a volume is not there or not whole; `store` is given, and it is no index.
pub fn open_image(path: &Path, store: Option<&str>) -> Result<Arc<dyn Source>, SourceError> {
    let told =
        |what: &dyn ToString| SourceError(format!("{}: {}", path.display(), what.to_string()));
    let mut head = Vec::new();
    let file = source::opened(path).map_err(|error| told(&error))?;
    let read = file.take(Index::MAGIC.len() as u64).read_to_end(&mut head);
    if read.is_err() || head != Index::MAGIC {
        return match store {
            Some(_) => Err(told(
                &"it is no index of packed pages, so --store means nothing",
            )),
            None => source::open(path),
        };
    }
    let index = Index::load(path).map_err(|error| told(&error))?;
    let shelf = Shelf::open(store.unwrap_or(&index.store)).map_err(|error| {
        let text = format!("the store of the pages: {error}; --store names another place");
        SourceError(text)
    })?;
    let packed = Arc::new(Packed::open(index, &shelf)?);
    let pages = packed
        .file(0, 0)
        .filter(|_| packed.index().files.len() == 1);
    let pages = pages.ok_or_else(|| told(&"it is of a dump, and no image of memory"))?;
    Ok(Arc::new(pages))
}
