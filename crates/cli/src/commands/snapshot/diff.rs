//! `pagetide snapshot diff`.
use std::path::Path;

use pagetide::track::snapshot::image::{Image, ImageRegion};
use serde::Serialize;

use super::pages::PageReader;
use super::shared::{failure, print, print_json, progress};
use crate::exit::{Exit, Failure};

#[derive(Serialize)]
struct Difference {
    region: String,
    first_page: u64,
    pages: u64,
}

pub fn diff(old: &Path, new: &Path, json: bool) -> Result<u8, Failure> {
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
                "region '{}' has {} pages in one and {} in the other; such snapshots cannot be \
                 compared",
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
            let name = crate::text::printable(&d.region);
            print(&format!(
                "{name}: {} pages from page {}\n",
                d.pages, d.first_page
            ))?;
        }
        print(&format!("{total} pages differ\n"))?;
    }
    Ok(if total == 0 { Exit::Ok } else { Exit::Failed }.code())
}

/// Looks only at pages that either snapshot has bytes for. A page that both have from one place in
/// one file is the same, unread; another file of the same id may be altered.
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
