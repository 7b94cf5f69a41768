//! `pagetide snapshot`: looking at snapshot files, checking them, comparing and merging them.
use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use pagetide::track::snapshot::format::{BLOCK_PAGES_MAX, RegionEntry, SnapshotId, ZEROS};
use pagetide::track::snapshot::image::{self, Image, ImageRegion};
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
        /// Print a JSON array of runs of pages that differ
        #[arg(long)]
        json: bool,
    },
    /// Put a chain of snapshots together into one file
    #[command(after_help = crate::exit::OF_SNAPSHOTS)]
    Merge {
        /// The files, in any order; each but one is the parent of another. Without the first one's parent the result builds on that, and must be beside it
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Where the result goes; nothing may be there yet
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
    match error {
        FileError::Block { .. } => Failure::new(Exit::DataLost, error.to_string()),
        FileError::Region { .. } => Failure::new(Exit::Failed, error.to_string()),
        FileError::Io(..) | FileError::Wrong(..) => Failure::new(Exit::Store, error.to_string()),
        FileError::Parent { .. } => Failure::new(
            Exit::Store,
            format!(
                "{}; a parent is looked for beside the file that builds on it, under the name that `pagetide snapshot inspect` shows: put it there",
                lack(&error)
            ),
        ),
    }
}

/// What is wrong, without advice.
fn lack(error: &FileError) -> String {
    match error {
        FileError::Parent {
            name,
            parent,
            looked,
        } => format!("{name}: its parent, snapshot {parent}, is not {looked}"),
        error => error.to_string(),
    }
}

/// Opens a snapshot file.
fn open(path: &Path) -> Result<SnapshotFile, FileError> {
    image::open_file(path).map(|(file, _)| file)
}

/// Tells of one failure of several; its code.
fn tell(failure: &Failure) -> u8 {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "pagetide: {failure}");
    failure.exit.code()
}

/// That stdout cannot be written has the code of any other file: 1 would say that pages differ.
fn of_stdout(failure: Failure) -> Failure {
    Failure::new(Exit::Store, failure.message)
}

/// Prints to stdout.
fn print(text: &str) -> Result<(), Failure> {
    super::print(text).map_err(of_stdout)
}

/// Prints a value as JSON.
fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    super::print_json(value).map_err(of_stdout)
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
    let file = open(path).map_err(failure)?;
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

/// Shows the files that can be opened. Of the others it tells on stderr.
fn inspect(files: &[PathBuf], json: bool) -> Result<u8, Failure> {
    let (mut all, mut worst) = (Vec::new(), Exit::Ok.code());
    for path in files {
        match inspect_file(path) {
            Ok(file) => all.push(file),
            Err(failure) => worst = worst.max(tell(&failure)),
        }
    }
    if json {
        print_json(&all)?;
        return Ok(worst);
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
        print(&text)?;
    }
    Ok(worst)
}

/// Checks all files, whatever is wrong with some; the code is the highest.
fn verify(files: &[PathBuf]) -> Result<u8, Failure> {
    let (mut chains, mut worst) = (Chains::default(), Exit::Ok.code());
    for path in files {
        let said = verify_file(path)
            .map_err(failure)
            .and_then(|file| print(&whole(path, &file, &mut chains)));
        if let Err(failure) = said {
            worst = worst.max(tell(&failure));
        }
    }
    Ok(worst)
}

fn verify_file(path: &Path) -> Result<SnapshotFile, FileError> {
    let file = open(path)?;
    let bar = progress(u64::from(file.blocks()), "checking");
    let mut buffer = BlockBuffer::default();
    for block in 0..file.blocks() {
        file.read_block(block, &mut buffer)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(file)
}

/// What to say of a file that is whole.
fn whole(path: &Path, file: &SnapshotFile, chains: &mut Chains) -> String {
    let mut text = format!(
        "{}: whole, {} blocks, {}\n",
        path.display(),
        file.blocks(),
        Bytes(file.file_len())
    );
    if let Some(lack) = chains.lack(path, file) {
        text += &format!("  cannot be restored as it is: {lack}\n");
    }
    text
}

/// Looks for the parents of files, for each once.
#[derive(Default)]
struct Chains {
    /// By where a parent should be and its id: what is lacking there or before.
    known: HashMap<(PathBuf, SnapshotId), Option<String>>,
}

impl Chains {
    /// What the chain of the file at `path` lacks.
    fn lack(&mut self, path: &Path, file: &SnapshotFile) -> Option<String> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let place = |child: &SnapshotFile| {
            let parent = child.parent()?;
            Some((directory.join(child.parent_name()), parent))
        };
        let mut looked_for = Vec::new();
        let mut next = place(file);
        let mut held: Option<SnapshotFile> = None;
        let mut lacking = None;
        while let Some(place_of_parent) = next {
            if let Some(known) = self.known.get(&place_of_parent) {
                lacking = known.clone();
                break;
            }
            // Stands until the search is over: met before that, the chain goes round.
            let round = format!("the chain of {} goes round", path.display());
            self.known.insert(place_of_parent.clone(), Some(round));
            looked_for.push(place_of_parent);
            match image::open_parent(directory, held.as_ref().unwrap_or(file)) {
                Ok(parent) => held = parent.map(|(parent, _)| parent),
                Err(error) => {
                    lacking = Some(lack(&error));
                    break;
                }
            }
            next = held.as_ref().and_then(place);
        }
        for place in looked_for {
            self.known.insert(place, lacking.clone());
        }
        lacking
    }
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
        print_json(&differences)?;
    } else {
        for d in &differences {
            let name = crate::governed::printable(&d.region);
            print(&format!(
                "{name}: {} pages from page {}\n",
                d.pages, d.first_page
            ))?;
        }
        print(&format!("{total} pages differ\n"))?;
    }
    Ok(if total == 0 { Exit::Ok } else { Exit::Failed }.code())
}

/// Looks only at pages that either snapshot has bytes for. A page that both have from one place in one file is the same, unread; another file of the
/// same id may be altered.
fn compare_region(
    old: &Image,
    old_first: u64,
    new: &Image,
    region: &ImageRegion,
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
        Some((run.file, (run.block, within)))
    };
    match (place(old, old_index), place(new, new_index)) {
        (Some((old_file, before)), Some((new_file, after))) => {
            before == after && old.is_same_file(old_file, new, new_file)
        }
        _ => false,
    }
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

/// A file to merge.
struct Input<'p> {
    path: &'p Path,
    file: SnapshotFile,
}

impl Input<'_> {
    fn id(&self) -> SnapshotId {
        self.file.header().id
    }
}

/// Sorts files newest first; each must be the parent of the one before.
fn in_order(mut files: Vec<Input>) -> Result<Vec<Input>, Failure> {
    once_each(&files)?;
    let parents: Vec<_> = files
        .iter()
        .filter_map(|input| input.file.parent())
        .collect();
    let newest = files.iter().find(|input| !parents.contains(&input.id()));
    let mut wanted = newest.map(Input::id);
    let mut chain: Vec<Input> = Vec::new();
    while let Some(id) = wanted {
        let Some(at) = files.iter().position(|input| input.id() == id) else {
            break;
        };
        let input = files.swap_remove(at);
        wanted = input.file.parent();
        chain.push(input);
    }
    match files.first() {
        None => Ok(chain),
        Some(other) => Err(Failure::new(
            Exit::Usage,
            format!(
                "'{}' does not belong to the chain of '{}'; give files of one chain, each the parent of the next, none left out between",
                other.file.name(),
                chain
                    .first()
                    .map_or("the others", |input| input.file.name())
            ),
        )),
    }
}

fn once_each(files: &[Input]) -> Result<(), Failure> {
    let mut seen: HashMap<SnapshotId, &Input> = HashMap::new();
    for input in files {
        let Some(earlier) = seen.insert(input.id(), input) else {
            continue;
        };
        let name = input.path.display();
        let message = if earlier.path == input.path {
            format!("'{name}' is given twice; give each file once")
        } else {
            let earlier = earlier.path.display();
            format!("'{earlier}' and '{name}' are one snapshot, given twice; leave one of them out")
        };
        return Err(Failure::new(Exit::Usage, message));
    }
    Ok(())
}

/// The directory that `path` is in.
fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    }
}

/// A file that is there may be what another snapshot builds on: nothing is replaced.
fn must_be_free(output: &Path) -> Result<(), Failure> {
    // What cannot be looked at cannot be written either, and the writer says why.
    if output.symlink_metadata().is_err() {
        return Ok(());
    }
    let message = format!(
        "'{}' exists, and merge replaces nothing; give another name or remove it first",
        output.display()
    );
    Err(Failure::new(Exit::Usage, message))
}

/// A result that builds on a parent is of use only where that is found.
fn must_be_beside_parent(oldest: &Input, output: &Path) -> Result<(), Failure> {
    let (name, wanted) = (oldest.file.parent_name(), directory_of(oldest.path));
    if output.file_name() == Some(name.as_ref()) {
        let message = format!(
            "'{}' has the name of the parent that the result builds on; give another name",
            output.display()
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let given = directory_of(output);
    let place = |directory: &Path| {
        let meta = directory.metadata().ok()?;
        Some((meta.dev(), meta.ino()))
    };
    let there = place(given);
    // The writer says why a directory cannot be used.
    if there.is_none() || there == place(wanted) || image::open_parent(given, &oldest.file).is_ok()
    {
        return Ok(());
    }
    let message = format!(
        "the result builds on '{name}', which is not in '{}'; write it beside its parent, in '{}', or give the parents down to a full snapshot too",
        given.display(),
        wanted.display()
    );
    Err(Failure::new(Exit::Usage, message))
}

fn merge(files: &[PathBuf], output: &Path) -> Result<u8, Failure> {
    must_be_free(output)?;
    let files = files.iter().map(|path| {
        let file = open(path).map_err(failure)?;
        Ok(Input { path, file })
    });
    let files = in_order(files.collect::<Result<Vec<_>, Failure>>()?)?;
    let oldest = &files[files.len() - 1];
    let parent = oldest.file.parent().map(|id| Parent {
        id,
        name: oldest.file.parent_name().to_owned(),
    });
    if parent.is_some() {
        must_be_beside_parent(oldest, output)?;
    }
    let taken = files[0].file.header().created_ns;
    let files = files.into_iter().map(|input| input.file).collect();
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
    let mut writer = Writer::taken_at(
        taken,
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
    // It may have come meanwhile.
    must_be_free(output)?;
    let written = writer.finish().map_err(io)?;
    bar.finish_and_clear();
    print(&format!(
        "{}: {} pages, {}\n",
        output.display(),
        written.pages,
        Bytes(written.file_bytes)
    ))?;
    Ok(Exit::Ok.code())
}
