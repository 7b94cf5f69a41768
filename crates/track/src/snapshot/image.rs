//! A snapshot and the ones it builds on, put together: for every page the one place its bytes are.
use std::path::Path;

use pagetide_kernel::PAGE_SIZE;

use super::format::{SnapshotId, ZEROS};
use super::reader::{BlockBuffer, FileError, SnapshotFile};
pub use super::reader::{FileIdentity, open_file};

/// Longest chain of snapshots.
const CHAIN_MAX: usize = 10_000;

/// Opens the parent of `child`, which is in `directory`: a file of the recorded name there, with
/// the recorded id. None: `child` has no parent.
pub fn open_parent(
    directory: &Path,
    child: &SnapshotFile,
) -> Result<Option<(SnapshotFile, FileIdentity)>, FileError> {
    let Some(parent) = child.parent() else {
        return Ok(None);
    };
    let missing = |looked: String| FileError::Parent {
        name: child.name().to_owned(),
        parent,
        looked,
    };
    let name = child.parent_name();
    if name.is_empty() || name.contains('/') {
        return Err(missing(format!("named in a usable way ('{name}')")));
    }
    let candidate = directory.join(name);
    match open_file(&candidate) {
        Ok(opened) if opened.0.header().id == parent => Ok(Some(opened)),
        Ok(_) => Err(missing(format!("what is in '{}' now", candidate.display()))),
        Err(FileError::Io(name, error)) => Err(missing(format!("readable as '{name}' ({error})"))),
        Err(error) => Err(error),
    }
}

/// A region of an image.
///
/// ```
/// use pagetide::track::Image;
/// use pagetide::track::snapshot::image::ImageRegion;
/// use pagetide::track::snapshot::reader::BlockBuffer;
/// # use pagetide::track::snapshot::format::{RegionEntry, SnapshotId};
/// # use pagetide::track::snapshot::sink::FileSink;
/// # use pagetide::track::snapshot::writer::Writer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("image-region-{}", std::process::id()));
/// # let region = RegionEntry { name: "table".into(), address: 0, pages: 100 };
/// # let sink = Box::new(FileSink::create(&path)?);
/// # let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region])?;
/// # writer.put(0, &[7], &[1; 4096])?;
/// # writer.finish()?;
/// let image = Image::open(&path)?;
/// let region: &ImageRegion = image.region("table")?;
/// let (mut buffer, mut page) = (BlockBuffer::default(), [0; 4096]);
/// image.read_page(region.first + 7, &mut buffer, &mut page)?; // page 7 of this region
/// assert_eq!(page, [1; 4096]);
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRegion {
    /// Its name.
    pub name: String,
    /// Where it was in memory.
    pub address: u64,
    /// Its length.
    pub pages: u64,
    /// Index of its first page among all pages of the image.
    pub first: u64,
}

/// Pages that follow each other in the image and in a block.
///
/// ```
/// use pagetide::track::Image;
/// use pagetide::track::snapshot::reader::BlockBuffer;
/// # use pagetide::track::snapshot::format::{RegionEntry, SnapshotId};
/// # use pagetide::track::snapshot::sink::FileSink;
/// # use pagetide::track::snapshot::writer::Writer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("image-run-{}", std::process::id()));
/// # let region = RegionEntry { name: "table".into(), address: 0, pages: 100 };
/// # let sink = Box::new(FileSink::create(&path)?);
/// # let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region])?;
/// # writer.put(0, &[7], &[1; 4096])?;
/// # writer.finish()?;
/// let image = Image::open(&path)?;
/// let mut buffer = BlockBuffer::default();
/// for run in image.runs() {
///     let block = image.read(run, &mut buffer)?; // also has the pages before and after the run's
///     let bytes = &block[run.first_in_block as usize * 4096..][..run.pages as usize * 4096];
///     assert_eq!((run.first, bytes), (7, &[1; 4096][..]));
/// }
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRun {
    /// Index of the first page among all pages of the image.
    pub first: u64,
    /// How many.
    pub pages: u32,
    /// Which file of the chain.
    pub file: u32,
    /// The block there, or [`ZEROS`].
    pub block: u32,
    /// The first page's place in the block.
    pub first_in_block: u32,
}

impl ImageRun {
    fn end(&self) -> u64 {
        self.first + u64::from(self.pages)
    }

    /// The part from page `from` up to `to`.
    fn part(&self, from: u64, to: u64) -> ImageRun {
        let skipped = (from - self.first) as u32;
        ImageRun {
            first: from,
            pages: (to - from) as u32,
            first_in_block: if self.block == ZEROS {
                0
            } else {
                self.first_in_block + skipped
            },
            ..*self
        }
    }
}

/// See the module's text.
///
/// ```
/// use pagetide::track::Image;
///
/// let error = Image::open("/no/such/snapshot").unwrap_err();
/// assert!(error.to_string().starts_with("/no/such/snapshot: "));
/// ```
#[derive(Debug)]
pub struct Image {
    files: Vec<SnapshotFile>,
    /// By file; empty where that is not known.
    identities: Vec<FileIdentity>,
    regions: Vec<ImageRegion>,
    /// By first page; pages in none are zeros.
    runs: Vec<ImageRun>,
    /// Indexes of runs, by file and block.
    by_block: Vec<u32>,
}

impl Image {
    /// Opens the snapshot at `path` and, for an incremental one, its parents: files of the recorded
    /// names in the same directory.
    pub fn open(path: impl AsRef<Path>) -> Result<Image, FileError> {
        let path = path.as_ref();
        let directory = path.parent().unwrap_or(Path::new(""));
        let (file, identity) = open_file(path)?;
        let (mut files, mut identities) = (vec![file], vec![identity]);
        loop {
            let child = &files[files.len() - 1];
            let Some(parent) = child.parent() else {
                break;
            };
            let missing = |looked: &str| FileError::Parent {
                name: child.name().to_owned(),
                parent,
                looked: looked.to_owned(),
            };
            if files.iter().any(|file| file.header().id == parent) {
                return Err(missing("before it: the chain goes round"));
            }
            if files.len() > CHAIN_MAX {
                return Err(missing("looked for: the chain is too long"));
            }
            let Some((file, identity)) = open_parent(directory, child)? else {
                break;
            };
            files.push(file);
            identities.push(identity);
        }
        let image = Image::of(files)?;
        Ok(Image {
            identities,
            ..image
        })
    }

    /// The image of `files`, newest first, each the parent of the one before. The last may have a
    /// parent that is left out: then pages that only the parent has are shown as zeros, which is of
    /// use only for what these files themselves say.
    pub fn of(files: Vec<SnapshotFile>) -> Result<Image, FileError> {
        let mut image = Image::keeping_zeros(files)?;
        image.runs.retain(|run| run.block != ZEROS);
        image.sort_by_block();
        Ok(image)
    }

    /// As [`Image::of`], with runs that name zeros ([`ZEROS`]) kept: for writing a snapshot that
    /// builds on a parent. Such an image cannot be restored.
    pub fn keeping_zeros(files: Vec<SnapshotFile>) -> Result<Image, FileError> {
        for pair in files.windows(2) {
            if pair[0].parent() != Some(pair[1].header().id) {
                return Err(FileError::Parent {
                    name: pair[0].name().to_owned(),
                    parent: pair[0].parent().unwrap_or(SnapshotId::NONE),
                    looked: format!("in '{}'", pair[1].name()),
                });
            }
        }
        let mut regions = Vec::new();
        let mut first = 0u64;
        for region in files[0].regions() {
            regions.push(ImageRegion {
                name: region.name.clone(),
                address: region.address,
                pages: region.pages,
                first,
            });
            first = first
                .checked_add(region.pages)
                .ok_or_else(|| FileError::Region {
                    name: files[0].name().to_owned(),
                    what: "its regions are larger than any memory".to_owned(),
                })?;
        }
        let mut runs = Vec::new();
        for (number, file) in files.iter().enumerate() {
            runs = overlay(&runs, &runs_of(file, number as u32, &regions)?);
        }
        Ok(Image {
            files,
            identities: Vec::new(),
            regions,
            runs,
            by_block: Vec::new(),
        })
    }

    fn sort_by_block(&mut self) {
        let mut by_block: Vec<u32> = (0..self.runs.len() as u32).collect();
        by_block.sort_unstable_by_key(|index| {
            let run = &self.runs[*index as usize];
            (run.file, run.block, run.first_in_block)
        });
        self.by_block = by_block;
    }

    /// The files, newest first.
    pub fn files(&self) -> &[SnapshotFile] {
        &self.files
    }

    /// Whether file number `file` is the very file that number `other_file` of `other` is. Known of
    /// images from [`Image::open`]; false elsewhere.
    pub fn is_same_file(&self, file: u32, other: &Image, other_file: u32) -> bool {
        let identity = |image: &Image, number: u32| image.identities.get(number as usize).copied();
        let this = identity(self, file);
        this.is_some() && this == identity(other, other_file)
    }

    /// The regions of the newest file.
    pub fn regions(&self) -> &[ImageRegion] {
        &self.regions
    }

    /// The region called `name`.
    pub fn region(&self, name: &str) -> Result<&ImageRegion, FileError> {
        let found = self.regions.iter().find(|region| region.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.regions.iter().map(|r| r.name.as_str()).collect();
            FileError::Region {
                name: self.files[0].name().to_owned(),
                what: format!("it has no region '{name}'; it has {}", names.join(", ")),
            }
        })
    }

    /// Runs of pages with bytes, by page.
    pub fn runs(&self) -> &[ImageRun] {
        &self.runs
    }

    /// The run that page `index` is in; none: it is zeros.
    pub fn find(&self, index: u64) -> Option<&ImageRun> {
        let after = self.runs.partition_point(|run| run.first <= index);
        let run = self.runs.get(after.checked_sub(1)?)?;
        (index < run.end()).then_some(run)
    }

    /// First page of the first run after page `index`.
    pub(crate) fn next_run(&self, index: u64) -> Option<u64> {
        let after = self.runs.partition_point(|run| run.first <= index);
        self.runs.get(after).map(|run| run.first)
    }

    /// The file and the block of run `index`.
    fn key(&self, index: u32) -> (u32, u32) {
        let run = &self.runs[index as usize];
        (run.file, run.block)
    }

    /// All runs whose bytes are in the block that `run` is in.
    pub(crate) fn runs_of_block(
        &self,
        run: &ImageRun,
    ) -> impl Iterator<Item = &ImageRun> + use<'_> {
        let key = (run.file, run.block);
        let from = self
            .by_block
            .partition_point(|index| self.key(*index) < key);
        let rest = self.by_block[from..].iter();
        let same = rest.take_while(move |index| self.key(**index) == key);
        same.map(|index| &self.runs[*index as usize])
    }

    /// Groups of indexes of runs, one group for each block that is needed, in the order of the
    /// files.
    pub(crate) fn blocks(&self) -> Vec<&[u32]> {
        let by_block = self.by_block.chunk_by(|a, b| self.key(*a) == self.key(*b));
        by_block.collect()
    }

    /// Reads the block that `run` is in.
    pub fn read<'b>(
        &self,
        run: &ImageRun,
        buffer: &'b mut BlockBuffer,
    ) -> Result<&'b [u8], FileError> {
        self.files[run.file as usize].read_block(run.block, buffer)
    }

    /// Reads one page.
    pub fn read_page(
        &self,
        index: u64,
        buffer: &mut BlockBuffer,
        page: &mut [u8],
    ) -> Result<(), FileError> {
        match self.find(index) {
            None => page.fill(0),
            Some(run) => {
                let place = u64::from(run.first_in_block) + index - run.first;
                let bytes = self.read(run, buffer)?;
                page.copy_from_slice(&bytes[place as usize * PAGE_SIZE..][..PAGE_SIZE]);
            }
        }
        Ok(())
    }
}

/// The runs of `file` in terms of the image's pages.
fn runs_of(
    file: &SnapshotFile,
    number: u32,
    regions: &[ImageRegion],
) -> Result<Vec<ImageRun>, FileError> {
    let places = file.regions().iter().map(|region| {
        let same = regions.iter().find(|r| r.name == region.name);
        match same {
            Some(same) if same.pages != region.pages => Err(FileError::Region {
                name: file.name().to_owned(),
                what: format!(
                    "region '{}' has {} pages here and {} in a snapshot that builds on it",
                    region.name, region.pages, same.pages
                ),
            }),
            same => Ok(same.map(|same| same.first)),
        }
    });
    let places = places.collect::<Result<Vec<_>, _>>()?;
    let mut runs: Vec<ImageRun> = Vec::with_capacity(file.runs().len());
    for run in file.runs() {
        if let Some(first) = places[run.region as usize] {
            runs.push(ImageRun {
                first: first + run.first,
                pages: run.pages,
                file: number,
                block: run.block,
                first_in_block: run.first_in_block,
            });
        }
    }
    // A parent may list its regions in another order.
    runs.sort_unstable_by_key(|run| run.first);
    Ok(runs)
}

/// `above`, and of `below` what it leaves uncovered; both by page and without overlaps, as is the
/// result.
fn overlay(above: &[ImageRun], below: &[ImageRun]) -> Vec<ImageRun> {
    let mut result = Vec::with_capacity(above.len() + below.len());
    let mut covers = above.iter().peekable();
    for run in below {
        let mut from = run.first;
        while from < run.end() {
            while let Some(cover) = covers.next_if(|cover| cover.end() <= from) {
                result.push(*cover);
            }
            match covers.peek() {
                Some(cover) if cover.first <= from => from = cover.end(),
                Some(cover) if cover.first < run.end() => {
                    result.push(run.part(from, cover.first));
                    from = cover.first;
                }
                _ => {
                    result.push(run.part(from, run.end()));
                    from = run.end();
                }
            }
        }
    }
    result.extend(covers);
    result.sort_unstable_by_key(|run| run.first);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs(file: u32, pieces: &[(u64, u32)]) -> Vec<ImageRun> {
        let mut from = 0;
        let piece = |(gap, pages): &(u64, u32)| {
            let first = from + gap;
            from = first + u64::from(*pages);
            ImageRun {
                first,
                pages: *pages,
                file,
                block: first as u32,
                first_in_block: 0,
            }
        };
        pieces.iter().map(piece).collect()
    }

    proptest! {
        #[test]
        fn overlaying_agrees_with_page_by_page(
            above in prop::collection::vec((0u64..6, 1u32..9), 0..12),
            below in prop::collection::vec((0u64..6, 1u32..9), 0..12),
        ) {
            let (above, below) = (runs(0, &above), runs(1, &below));
            let place = |runs: &[ImageRun], page: u64| {
                let run = runs.iter().find(|r| r.first <= page && page < r.end())?;
                Some((run.file, run.block, u64::from(run.first_in_block) + page - run.first))
            };
            let all = overlay(&above, &below);
            for page in 0..200 {
                prop_assert_eq!(place(&all, page), place(&above, page).or(place(&below, page)));
            }
            prop_assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].first));
        }
    }
}
