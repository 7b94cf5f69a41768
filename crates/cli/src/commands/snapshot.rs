//! `pagetide snapshot`: looking at snapshot files, checking them, comparing and merging them.
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use pagetide::track::snapshot::format::{BLOCK_PAGES_MAX, RegionEntry, SnapshotId, ZEROS};
use pagetide::track::snapshot::image::Image;
use pagetide::track::snapshot::reader::{BlockBuffer, FileError, SnapshotFile};
use pagetide::track::snapshot::sink::FileSink;
use pagetide::track::snapshot::writer::{Parent, Writer};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::size::{Bytes, PAGE_BYTES};

/// What to do with snapshot files.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Show what files hold: regions, pages, parents
    #[command(after_help = crate::exit::OF_SNAPSHOTS)]
    Inspect {
        /// Snapshot files
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Print a JSON array, in bytes and nanoseconds
        #[arg(long)]
        json: bool,
    },
    /// Read every byte of files and check it
    #[command(after_help = crate::exit::OF_SNAPSHOTS)]
    Verify {
        /// Snapshot files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// List the pages in which two snapshots differ; exits with 1 if any do
    #[command(after_help = crate::exit::OF_SNAPSHOTS)]
    Diff {
        /// The earlier snapshot; its parents are found beside it
        old: PathBuf,
        /// The later one
        new: PathBuf,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Put a chain of snapshots together into one file
    #[command(after_help = crate::exit::OF_SNAPSHOTS)]
    Merge {
        /// The files, in any order; each but one is the parent of another. Without the first one's parent the result builds on that
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Where the result goes
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
}

/// Does it.
pub fn snapshot(command: &SnapshotCommand) -> Result<u8, Failure> {
    match command {
        SnapshotCommand::Inspect { files, json } => inspect(files, *json),
        SnapshotCommand::Verify { files } => verify(files),
        SnapshotCommand::Diff { old, new, json } => diff(old, new, *json),
        SnapshotCommand::Merge { files, output } => merge(files, output),
    }
}

fn failure(error: FileError) -> Failure {
    let exit = match error {
        FileError::Block { .. } => Exit::DataLost,
        FileError::Region { .. } => Exit::Failed,
        FileError::Io(..) | FileError::Wrong(..) | FileError::Parent { .. } => Exit::Store,
    };
    Failure::new(exit, error.to_string())
}

/// A bar on a terminal; nothing elsewhere.
fn progress(total: u64, what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent} % {eta}");
    let bar = ProgressBar::new(total).with_message(what.to_owned());
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

#[derive(Serialize)]
struct Inspected {
    file: String,
    id: String,
    parent: Option<String>,
    parent_name: Option<String>,
    created_unix_ns: u64,
    file_bytes: u64,
    blocks: u32,
    regions: Vec<InspectedRegion>,
}

#[derive(Serialize)]
struct InspectedRegion {
    name: String,
    address: u64,
    bytes: u64,
    pages_stored: u64,
    pages_zeroed: u64,
}

fn inspect_file(path: &Path) -> Result<Inspected, Failure> {
    let file = SnapshotFile::open(path).map_err(failure)?;
    let regions = file.regions().iter().enumerate().map(|(number, region)| {
        let pages = |zeros: bool| {
            let runs = file.runs().iter();
            runs.filter(|run| run.region as usize == number && (run.block == ZEROS) == zeros)
                .map(|run| u64::from(run.pages))
                .sum()
        };
        InspectedRegion {
            name: region.name.clone(),
            address: region.address,
            bytes: region.pages * PAGE_BYTES,
            pages_stored: pages(false),
            pages_zeroed: pages(true),
        }
    });
    Ok(Inspected {
        file: path.display().to_string(),
        id: file.header().id.to_string(),
        parent: file.parent().map(|parent| parent.to_string()),
        parent_name: file.parent().map(|_| file.parent_name().to_owned()),
        created_unix_ns: file.header().created_ns,
        file_bytes: file.file_len(),
        blocks: file.blocks(),
        regions: regions.collect(),
    })
}

fn inspect(files: &[PathBuf], json: bool) -> Result<u8, Failure> {
    let all = files.iter().map(|file| inspect_file(file));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    if json {
        super::print_json(&all)?;
        return Ok(Exit::Ok.code());
    }
    for file in all {
        let mut text = format!("{}\n  snapshot  {}\n", file.file, file.id);
        text += &match (&file.parent, &file.parent_name) {
            (Some(parent), Some(name)) => format!("  parent    {parent} ('{name}')\n"),
            _ => "  parent    none: a full snapshot\n".to_owned(),
        };
        text += &format!(
            "  taken     {}\n  file      {} in {} blocks\n",
            crate::date::utc(file.created_unix_ns / 1_000_000_000),
            Bytes(file.file_bytes),
            file.blocks
        );
        for region in &file.regions {
            text += &format!(
                "  region    '{}' at {:#x}, {}: {} pages stored",
                crate::governed::printable(&region.name),
                region.address,
                Bytes(region.bytes),
                region.pages_stored
            );
            if file.parent.is_some() {
                text += &format!(", {} became zeros", region.pages_zeroed);
            }
            text.push('\n');
        }
        super::print(&text)?;
    }
    Ok(Exit::Ok.code())
}

fn verify(files: &[PathBuf]) -> Result<u8, Failure> {
    let mut worst: Option<Failure> = None;
    for path in files {
        match verify_file(path) {
            Ok(file) => super::print(&format!(
                "{}: whole, {} blocks, {}\n",
                path.display(),
                file.blocks(),
                Bytes(file.file_len())
            ))?,
            Err(error) => {
                if let Some(earlier) = worst.replace(failure(error)) {
                    eprintln!("pagetide: {earlier}");
                }
            }
        }
    }
    worst.map_or(Ok(Exit::Ok.code()), Err)
}

fn verify_file(path: &Path) -> Result<SnapshotFile, FileError> {
    let file = SnapshotFile::open(path)?;
    let bar = progress(u64::from(file.blocks()), "checking");
    let mut buffer = BlockBuffer::default();
    for block in 0..file.blocks() {
        file.read_block(block, &mut buffer)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(file)
}

#[derive(Serialize)]
struct Difference {
    region: String,
    first_page: u64,
    pages: u64,
}

fn diff(old: &Path, new: &Path, json: bool) -> Result<u8, Failure> {
    let (old, new) = (
        Image::open(old).map_err(failure)?,
        Image::open(new).map_err(failure)?,
    );
    for region in old.regions() {
        new.region(&region.name).map_err(failure)?;
    }
    let (mut differences, mut total) = (Vec::new(), 0);
    for region in new.regions() {
        let before = old.region(&region.name).map_err(failure)?;
        if before.pages != region.pages {
            let message = format!(
                "region '{}' has {} pages in one and {} in the other; such snapshots cannot be compared",
                region.name, before.pages, region.pages
            );
            return Err(Failure::new(Exit::Failed, message));
        }
        total += compare_region(&old, before.first, &new, region, &mut differences)?;
    }
    if json {
        super::print_json(&differences)?;
    } else {
        for d in &differences {
            let name = crate::governed::printable(&d.region);
            super::print(&format!(
                "{name}: {} pages from page {}\n",
                d.pages, d.first_page
            ))?;
        }
        super::print(&format!("{total} pages differ\n"))?;
    }
    Ok(if total == 0 { Exit::Ok } else { Exit::Failed }.code())
}

/// Looks only at pages that either snapshot has bytes for; a page that is in the same place in the same file is the same.
fn compare_region(
    old: &Image,
    old_first: u64,
    new: &Image,
    region: &pagetide::track::snapshot::image::ImageRegion,
    differences: &mut Vec<Difference>,
) -> Result<u64, Failure> {
    let within = |image: &Image, first: u64| {
        let runs = image.runs().iter();
        let runs = runs.filter(move |run| run.first >= first && run.first < first + region.pages);
        runs.map(move |run| (run.first - first, run.first - first + u64::from(run.pages)))
            .collect::<Vec<_>>()
    };
    let mut pages = within(old, old_first);
    pages.extend(within(new, region.first));
    pages.sort_unstable();
    let bar = progress(region.pages, "comparing");
    let (mut old_cache, mut new_cache) = (PageReader::new(old), PageReader::new(new));
    let (mut next, mut total) = (0, 0);
    for (from, to) in pages {
        for page in from.max(next)..to {
            if !same_place(old, old_first + page, new, region.first + page) {
                let before = old_cache.read(old_first + page)?;
                if before != new_cache.read(region.first + page)? {
                    total += 1;
                    match differences.last_mut() {
                        Some(last)
                            if last.region == region.name
                                && last.first_page + last.pages == page =>
                        {
                            last.pages += 1;
                        }
                        _ => differences.push(Difference {
                            region: region.name.clone(),
                            first_page: page,
                            pages: 1,
                        }),
                    }
                }
            }
        }
        next = next.max(to);
        bar.set_position(next);
    }
    bar.finish_and_clear();
    Ok(total)
}

fn same_place(old: &Image, old_index: u64, new: &Image, new_index: u64) -> bool {
    let place = |image: &Image, index: u64| {
        let run = image.find(index)?;
        let within = u64::from(run.first_in_block) + index - run.first;
        Some((
            image.files()[run.file as usize].header().id,
            run.block,
            within,
        ))
    };
    let old = place(old, old_index);
    old.is_some() && old == place(new, new_index)
}

/// Reads pages, keeping the last block.
struct PageReader<'i> {
    image: &'i Image,
    buffer: BlockBuffer,
    held: Option<(u32, u32)>,
    block: Vec<u8>,
    zeros: Vec<u8>,
}

impl<'i> PageReader<'i> {
    fn new(image: &'i Image) -> PageReader<'i> {
        PageReader {
            image,
            buffer: BlockBuffer::default(),
            held: None,
            block: Vec::new(),
            zeros: vec![0; PAGE_BYTES as usize],
        }
    }

    fn read(&mut self, index: u64) -> Result<&[u8], Failure> {
        let Some(run) = self.image.find(index) else {
            return Ok(&self.zeros);
        };
        if self.held != Some((run.file, run.block)) {
            self.held = None;
            let bytes = self.image.read(run, &mut self.buffer).map_err(failure)?;
            self.block.clear();
            self.block.extend_from_slice(bytes);
            self.held = Some((run.file, run.block));
        }
        let place = (u64::from(run.first_in_block) + index - run.first) * PAGE_BYTES;
        Ok(&self.block[place as usize..][..PAGE_BYTES as usize])
    }
}

/// Sorts files newest first; each must be the parent of the one before.
fn in_order(mut files: Vec<SnapshotFile>) -> Result<Vec<SnapshotFile>, Failure> {
    let parents: Vec<_> = files.iter().filter_map(SnapshotFile::parent).collect();
    let newest = files
        .iter()
        .position(|file| !parents.contains(&file.header().id));
    let mut wanted = newest.map(|newest| files[newest].header().id);
    let mut chain: Vec<SnapshotFile> = Vec::new();
    while let Some(id) = wanted {
        let Some(at) = files.iter().position(|file| file.header().id == id) else {
            break;
        };
        let file = files.swap_remove(at);
        wanted = file.parent();
        chain.push(file);
    }
    match files.first() {
        None => Ok(chain),
        Some(other) => Err(Failure::new(
            Exit::Usage,
            format!(
                "'{}' does not belong to the chain of '{}'; give files of one chain, each the parent of the next, none left out between",
                other.name(),
                chain.first().map_or("the others", SnapshotFile::name)
            ),
        )),
    }
}

fn merge(files: &[PathBuf], output: &Path) -> Result<u8, Failure> {
    let files = files
        .iter()
        .map(|file| SnapshotFile::open(file).map_err(failure));
    let files = in_order(files.collect::<Result<Vec<_>, _>>()?)?;
    let oldest = &files[files.len() - 1];
    let parent = oldest.parent().map(|id| Parent {
        id,
        name: oldest.parent_name().to_owned(),
    });
    let io =
        |error: std::io::Error| Failure::new(Exit::Store, format!("{}: {error}", output.display()));
    let image = if parent.is_some() {
        Image::keeping_zeros(files).map_err(failure)?
    } else {
        Image::of(files).map_err(failure)?
    };
    let regions = image.regions().iter().map(|region| RegionEntry {
        name: region.name.clone(),
        address: region.address,
        pages: region.pages,
    });
    let sink = Box::new(FileSink::create(output).map_err(io)?);
    let mut writer = Writer::new(
        sink,
        SnapshotId::random(),
        parent.as_ref(),
        regions.collect(),
    )
    .map_err(io)?;
    let bar = progress(
        image.runs().iter().map(|run| u64::from(run.pages)).sum(),
        "merging",
    );
    let mut reader = PageReader::new(&image);
    for (number, region) in image.regions().iter().enumerate() {
        let (mut pages, mut bytes) = (Vec::new(), Vec::new());
        let runs = image
            .runs()
            .iter()
            .filter(|run| run.first >= region.first && run.first < region.first + region.pages);
        for run in runs {
            if run.block == ZEROS {
                writer.put_zeros(
                    number as u32,
                    run.first - region.first,
                    u64::from(run.pages),
                );
                continue;
            }
            for index in run.first..run.first + u64::from(run.pages) {
                pages.push(index - region.first);
                bytes.extend_from_slice(reader.read(index)?);
                if pages.len() == BLOCK_PAGES_MAX {
                    writer.put(number as u32, &pages, &bytes).map_err(io)?;
                    pages.clear();
                    bytes.clear();
                }
                bar.inc(1);
            }
        }
        writer.put(number as u32, &pages, &bytes).map_err(io)?;
    }
    let written = writer.finish().map_err(io)?;
    bar.finish_and_clear();
    super::print(&format!(
        "{}: {} pages, {}\n",
        output.display(),
        written.pages,
        Bytes(written.file_bytes)
    ))?;
    Ok(Exit::Ok.code())
}
