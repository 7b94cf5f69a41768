//! `pagetide snapshot inspect`.
use std::path::{Path, PathBuf};

use pagetide::track::snapshot::format::ZEROS;
use serde::Serialize;

use super::shared::{failure, open, print, print_json, tell};
use crate::exit::{Exit, Failure};
use crate::size::{Bytes, PAGE_BYTES};
use crate::text::printable;

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
pub fn inspect(files: &[PathBuf], json: bool) -> Result<u8, Failure> {
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
            (Some(parent), Some(name)) => {
                format!("  parent    {parent} ('{}')\n", printable(name))
            }
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
                printable(&region.name),
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
