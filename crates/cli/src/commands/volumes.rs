//! `pagetide store volumes`: what packed dumps are in, and what of it none of them needs any more.
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use pagetide::track::SnapshotId;
use pagetide_serve::packed::{INDEX_NAME, Index, Shelf, ShelfError};
use serde::Serialize;

use super::{print, print_json};
use crate::exit::{Exit, Failure};

/// Options of `store volumes`.
#[derive(Debug, Args)]
pub struct Volumes {
    /// The store: file:DIR, or a server
    uri: String,
    /// Tell which volumes the packed dump in DIR, or the packed image with this index, needs; may
    /// be given again
    #[arg(long, value_name = "DIR|IMAGE.pages")]
    keep: Vec<PathBuf>,
    /// Remove those that none named with --keep needs. Not while something is packed
    #[arg(long, requires = "keep")]
    remove: bool,
    /// Print a JSON array, sizes in bytes
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    volume: String,
    bytes: u64,
    /// Not said where no dumps are named.
    needed: Option<bool>,
    removed: bool,
}

/// Lists them, and removes what is to be removed.
pub(super) fn volumes(options: &Volumes) -> Result<u8, Failure> {
    let failed = |error: ShelfError| Failure::new(Exit::Store, error.to_string());
    let needed = needed(&options.keep)?;
    let shelf = Shelf::open(&options.uri).map_err(failed)?;
    let mut rows = Vec::new();
    for stored in shelf.volumes().map_err(failed)? {
        let is_needed = needed.contains(&stored.id);
        let removed = options.remove && !is_needed;
        if removed {
            shelf.remove(&stored).map_err(failed)?;
        }
        rows.push(Row {
            volume: stored.id.to_string(),
            bytes: stored.bytes,
            needed: (!options.keep.is_empty()).then_some(is_needed),
            removed,
        });
    }
    match options.json {
        true => print_json(&rows)?,
        false => print(&table(&rows))?,
    }
    Ok(Exit::Ok.code())
}

/// The volumes that the dumps in `directories`, and the indexes of images among them, need.
fn needed(directories: &[PathBuf]) -> Result<HashSet<SnapshotId>, Failure> {
    let mut needed = HashSet::new();
    for directory in directories {
        let path = match directory.is_dir() {
            true => directory.join(INDEX_NAME),
            false => directory.clone(),
        };
        let index = Index::load(&path).map_err(|error| {
            Failure::new(Exit::Store, format!("--keep: {}: {error}", path.display()))
        })?;
        needed.extend(index.volumes);
    }
    Ok(needed)
}

fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<32} {:>12}  STATE\n", "VOLUME", "BYTES");
    for row in rows {
        let state = match (row.removed, row.needed) {
            (true, _) => "removed",
            (_, Some(true)) => "needed",
            (_, Some(false)) => "not needed",
            (_, None) => "",
        };
        let _ = writeln!(text, "{:<32} {:>12}  {state}", row.volume, row.bytes);
    }
    text
}
