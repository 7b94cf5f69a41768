//! `pagetide snapshot merge`.
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use pagetide::track::snapshot::format::{BLOCK_PAGES_MAX, RegionEntry, SnapshotId, ZEROS};
use pagetide::track::snapshot::image::{self, Image};
use pagetide::track::snapshot::reader::SnapshotFile;
use pagetide::track::snapshot::sink::FileSink;
use pagetide::track::snapshot::writer::{Parent, Writer};

use super::pages::PageReader;
use super::shared::{failure, open, print, progress};
use crate::exit::{Exit, Failure};
use crate::size::Bytes;

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
                "'{}' does not belong to the chain of '{}'; give files of one chain, each the \
                 parent of the next, none left out between",
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
        "the result builds on '{name}', which is not in '{}'; write it beside its parent, in \
         '{}', or give the parents down to a full snapshot too",
        given.display(),
        wanted.display()
    );
    Err(Failure::new(Exit::Usage, message))
}

pub fn merge(files: &[PathBuf], output: &Path) -> Result<u8, Failure> {
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
    put_pages(&image, &mut writer, &bar, &io)?;
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

/// Every page of `image`, region by region.
fn put_pages(
    image: &Image,
    writer: &mut Writer,
    bar: &ProgressBar,
    io: &dyn Fn(std::io::Error) -> Failure,
) -> Result<(), Failure> {
    let mut reader = PageReader::new(image);
    for (number, region) in (0..).zip(image.regions()) {
        let (mut pages, mut bytes) = (Vec::new(), Vec::new());
        let within = region.first..region.first + region.pages;
        let runs = image.runs().iter();
        for run in runs.filter(|run| within.contains(&run.first)) {
            if run.block == ZEROS {
                writer.put_zeros(number, run.first - region.first, u64::from(run.pages));
                continue;
            }
            for index in run.first..run.first + u64::from(run.pages) {
                pages.push(index - region.first);
                bytes.extend_from_slice(reader.read(index)?);
                if pages.len() == BLOCK_PAGES_MAX {
                    writer.put(number, &pages, &bytes).map_err(io)?;
                    pages.clear();
                    bytes.clear();
                }
                bar.inc(1);
            }
        }
        writer.put(number, &pages, &bytes).map_err(io)?;
    }
    Ok(())
}
