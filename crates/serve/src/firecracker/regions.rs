//! The regions of a guest's memory: what may be said of them, and what is refused.
use pagetide_kernel::{PAGE_SHIFT, PAGE_SIZE, PageNumber, PageRange};
use serde::Deserialize;

use super::Refusal;
use crate::memory::Area;

/// Most regions.
const REGIONS_MAX: usize = 1024;
/// Where user space ends at the latest, with five levels of page tables.
const ADDRESS_MAX: u64 = 1 << 56;
const HUGE_PAGE: u64 = 2 << 20;

/// A region as Firecracker tells of it. Other fields may come.
#[derive(Debug, Deserialize)]
struct Region {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    /// In bytes; older ones do not tell.
    page_size: Option<u64>,
    /// In bytes, despite its name, or in KiB.
    page_size_kib: Option<u64>,
}

impl Region {
    fn page_size(&self) -> u64 {
        match (self.page_size, self.page_size_kib) {
            (Some(bytes), _) => bytes,
            (None, Some(4 | 2048)) => self.page_size_kib.unwrap_or_default() << 10,
            (None, Some(bytes)) => bytes,
            (None, None) => PAGE_SIZE as u64,
        }
    }

    /// Where it is in an image of `image_pages`.
    fn area(&self, image_pages: u64) -> Result<Area, String> {
        let page = self.page_size();
        let (base, size, offset) = (self.base_host_virt_addr, self.size, self.offset);
        if page != PAGE_SIZE as u64 && page != HUGE_PAGE {
            return Err(format!(
                "has pages of {page} bytes; 4096 and {HUGE_PAGE} are served"
            ));
        }
        if base % page != 0 || size % page != 0 || size == 0 {
            return Err(format!("is not made of whole pages of {page} bytes"));
        }
        if base == 0 || base.checked_add(size).is_none_or(|end| end > ADDRESS_MAX) {
            return Err("is no memory of a process".into());
        }
        if offset % PAGE_SIZE as u64 != 0 {
            return Err(format!("begins at {offset} of the image, within a page"));
        }
        // The last huge page may end beyond the image.
        let image = image_pages.checked_mul(PAGE_SIZE as u64);
        let image = image.and_then(|image| image.checked_next_multiple_of(page));
        let end = offset.checked_add(size);
        if end.zip(image).is_none_or(|(end, image)| end > image) {
            return Err(format!(
                "ends beyond the image, which has {image_pages} pages of 4096"
            ));
        }
        Ok(Area {
            range: PageRange::of(PageNumber(base >> PAGE_SHIFT), size >> PAGE_SHIFT),
            first: offset >> PAGE_SHIFT,
            unit: page >> PAGE_SHIFT,
        })
    }
}

/// Reads the regions of a handshake, for an image of `image_pages` pages.
///
/// # Errors
/// [`Refusal`]: it is something else, or regions are not whole pages, end beyond the image, or
/// overlap, in memory or in the image.
pub fn parse(json: &[u8], image_pages: u64) -> Result<Vec<Area>, Refusal> {
    let end = json
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    let regions: Vec<Region> = serde_json::from_slice(&json[..end])
        .map_err(|error| Refusal::NotRegions(error.to_string()))?;
    if regions.is_empty() || regions.len() > REGIONS_MAX {
        let text = format!(
            "it told of {} regions; 1 to {REGIONS_MAX} are served",
            regions.len()
        );
        return Err(Refusal::Regions(text));
    }
    let area = |(number, region): (usize, &Region)| {
        let told = |what| {
            let (base, size) = (region.base_host_virt_addr, region.size);
            Refusal::Regions(format!(
                "its region {number} ({base:#x}, {size} bytes) {what}"
            ))
        };
        region.area(image_pages).map_err(told)
    };
    let areas = regions.iter().enumerate().map(area);
    let areas = areas.collect::<Result<Vec<_>, _>>()?;
    let pages = |area: &Area| area.range.start.0..area.range.end.0;
    refuse_overlaps("in memory", areas.iter().map(pages))?;
    let image = |area: &Area| area.first..area.first + area.range.pages();
    refuse_overlaps("in the image", areas.iter().map(image))?;
    Ok(areas)
}

fn refuse_overlaps(
    place: &str,
    ranges: impl Iterator<Item = std::ops::Range<u64>>,
) -> Result<(), Refusal> {
    let mut ranges: Vec<_> = ranges.collect();
    ranges.sort_unstable_by_key(|range| range.start);
    match ranges.windows(2).find(|pair| pair[1].start < pair[0].end) {
        Some(pair) => Err(Refusal::Regions(format!(
            "two of its regions overlap {place}, at {:#x}",
            pair[1].start << PAGE_SHIFT
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: u64 = 0x7f00_0000_0000;

    fn region(base: u64, size: u64, offset: u64, more: &str) -> String {
        format!("{{\"base_host_virt_addr\":{base},\"size\":{size},\"offset\":{offset}{more}}}")
    }

    fn parsed(regions: &[String]) -> Result<Vec<Area>, String> {
        let text = format!("[{}]", regions.join(","));
        parse(text.as_bytes(), 1024).map_err(|error| error.to_string())
    }

    #[test]
    fn regions_of_all_versions_are_understood() {
        let old = region(BASE, 8192, 4096, "");
        let new = region(
            BASE + 8192,
            4096,
            0,
            ",\"page_size\":4096,\"page_size_kib\":4096,\"x\":{}",
        );
        let areas = parsed(&[old, new]).unwrap();
        assert_eq!(
            (areas[0].first, areas[0].range.pages(), areas[0].unit),
            (1, 2, 1)
        );
        assert_eq!(
            (areas[1].first, areas[1].range.pages(), areas[1].unit),
            (0, 1, 1)
        );
        for kib in ["2048", "2097152"] {
            let huge = region(BASE, 4 << 20, 0, &format!(",\"page_size_kib\":{kib}"));
            assert_eq!(parsed(&[huge]).unwrap()[0].unit, 512);
        }
    }

    #[test]
    fn regions_that_cannot_be_are_refused_and_named() {
        let huge = ",\"page_size\":2097152";
        let one = [
            (region(BASE + 1, 4096, 0, ""), "whole pages"),
            (region(BASE, 5000, 0, ""), "whole pages"),
            (region(BASE, 0, 0, ""), "whole pages"),
            (
                region(BASE + 4096, 2 << 20, 0, huge),
                "whole pages of 2097152",
            ),
            (
                region(BASE, 4096, 0, ",\"page_size\":16384"),
                "pages of 16384",
            ),
            (region(BASE, 4096, 100, ""), "within a page"),
            (region(BASE, 4096, 1024 * 4096, ""), "beyond the image"),
            (region(BASE, 4096 * 1025, 0, ""), "beyond the image"),
            (region(BASE, 4096, u64::MAX - 4095, ""), "beyond the image"),
            (region(0, 4096, 0, ""), "no memory"),
            (region(u64::MAX - 4095, 4096, 0, ""), "no memory"),
            ("{}".into(), "base_host_virt_addr"),
            ("7".into(), "expected struct"),
        ];
        for (region, expected) in one {
            let why = parsed(std::slice::from_ref(&region)).unwrap_err();
            assert!(why.contains(expected), "{region}: {why}");
        }
        assert!(parsed(&[]).unwrap_err().contains("0 regions"));
        let two = [
            region(BASE, 8192, 0, ""),
            region(BASE + 4096, 4096, 8192, ""),
        ];
        assert!(
            parsed(&two)
                .unwrap_err()
                .contains("overlap in memory, at 0x7f0000001000")
        );
        let two = [
            region(BASE, 8192, 0, ""),
            region(BASE + 8192, 4096, 4096, ""),
        ];
        assert!(
            parsed(&two)
                .unwrap_err()
                .contains("overlap in the image, at 0x1000")
        );
    }

    proptest! {
        #[test]
        fn what_is_accepted_lies_within_the_image(
            numbers in prop::collection::vec((any::<u64>(), 0u64..1 << 23, 0u64..1 << 23), 1..4),
        ) {
            let page = |number: u64| number / 4096 * 4096;
            let regions = numbers.iter().map(|(base, size, offset)| {
                region(page(*base), page(*size), page(*offset), "")
            });
            if let Ok(areas) = parsed(&regions.collect::<Vec<_>>()) {
                prop_assert!(areas.iter().all(|area| area.first + area.range.pages() <= 1024));
            }
        }

        #[test]
        fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, 1024);
        }
    }
}
