//! Bringing a snapshot back at once: all its pages are read, by several threads.
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use pagetide_kernel::{PAGE_SIZE, PageRange};

use super::image::Image;
use super::reader::{BlockBuffer, FileError};
use super::writer::is_zero;
use crate::threads::lock;

/// Reads all pages of region `name` of `image` into `into`, which must have the region's length. It
/// needs no userfaultfd.
///
/// # Errors
/// A damaged or unreadable block: then the contents of `into` are not to be used.
///
/// ```
/// use pagetide::track::{FileError, Image, Mapping, read_region};
///
/// fn resume(path: &str, table: &mut Mapping) -> Result<(), FileError> {
///     read_region(&Image::open(path)?, "table", table.as_mut_slice())
/// }
/// ```
pub fn read_region(image: &Image, name: &str, into: &mut [u8]) -> Result<(), FileError> {
    read_region_with(image, name, into, 0, &AtomicU64::new(0))
}

/// The same with `threads` threads (0: one a processor); `progress` counts pages.
///
/// # Errors
/// As [`read_region`].
pub fn read_region_with(
    image: &Image,
    name: &str,
    into: &mut [u8],
    threads: usize,
    progress: &AtomicU64,
) -> Result<(), FileError> {
    let region = image.region(name)?;
    if into.len() as u64 != region.pages.saturating_mul(PAGE_SIZE as u64) {
        return Err(FileError::Region {
            name: image.files()[0].name().to_owned(),
            what: format!(
                "region '{name}' has {} pages of {PAGE_SIZE} bytes; {} bytes of memory were given \
                 for it",
                region.pages,
                into.len()
            ),
        });
    }
    let target = Target {
        first: region.first,
        pages: region.pages,
        address: into.as_mut_ptr() as usize,
    };
    zero_gaps(image, &target, into);
    read_blocks(image, &target, threads, progress)
}

/// Memory for some pages of an image.
struct Target {
    first: u64,
    pages: u64,
    address: usize,
}

/// Whether pages of the memory that are not there read as zeros: private memory without a file,
/// whose faults no userfaultfd serves.
fn absent_is_zero(into: &[u8]) -> bool {
    let range = PageRange::covering(into.as_ptr() as usize, into.len());
    let mut plain = true;
    let looked = pagetide_kernel::smaps::for_each(None, |area| {
        if !area.range().intersection(range).is_empty() {
            plain &= area.permissions.ends_with('p') && area.inode == 0 && !area.watched;
        }
    });
    plain && looked.is_ok()
}

/// Pages in no run are zeros. Memory that is zeros already is not written, so that fresh memory
/// stays unused.
fn zero_gaps(image: &Image, target: &Target, into: &mut [u8]) {
    let mut from = target.first;
    let end = target.first + target.pages;
    let runs = image.runs();
    let start = runs.partition_point(|run| run.first + u64::from(run.pages) <= from);
    let next = runs[start..].iter().take_while(|run| run.first < end);
    let gaps = next.map(|run| (run.first, run.first + u64::from(run.pages)));
    let present = pagetide_kernel::pagemap::Pagemap::open();
    let plain = absent_is_zero(into);
    for (to, after) in gaps.chain([(end, end)]) {
        if to > from {
            let bytes = (from - target.first) as usize * PAGE_SIZE
                ..(to - target.first) as usize * PAGE_SIZE;
            let gap = &mut into[bytes];
            let range = PageRange::covering(gap.as_ptr() as usize, gap.len());
            let mut any = !plain;
            let looked = present.populated(range, |_, zero| any |= !zero);
            if any || looked.is_err() {
                for page in gap
                    .chunks_exact_mut(PAGE_SIZE)
                    .filter(|page| !is_zero(page))
                {
                    page.fill(0);
                }
            }
        }
        from = after;
    }
}

fn read_blocks(
    image: &Image,
    target: &Target,
    threads: usize,
    progress: &AtomicU64,
) -> Result<(), FileError> {
    let blocks = image.blocks();
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let first_error = Mutex::new(None);
    let work = || {
        let mut buffer = BlockBuffer::default();
        // Neighbouring blocks by one thread: the file is read ahead.
        const SLICE: usize = 16;
        while !failed.load(SeqCst) {
            let from = next.fetch_add(SLICE, SeqCst);
            let rest = blocks.get(from..).unwrap_or_default();
            if rest.is_empty() {
                return;
            }
            for block in &rest[..rest.len().min(SLICE)] {
                match place_block(image, block, target, &mut buffer) {
                    Ok(pages) => _ = progress.fetch_add(pages, SeqCst),
                    Err(error) => {
                        failed.store(true, SeqCst);
                        lock(&first_error).get_or_insert(error);
                        return;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(blocks.len()) {
            scope.spawn(work);
        }
        work();
    });
    let error = lock(&first_error).take();
    error.map_or(Ok(()), Err)
}

fn place_block(
    image: &Image,
    block: &[u32],
    target: &Target,
    buffer: &mut BlockBuffer,
) -> Result<u64, FileError> {
    let end = target.first + target.pages;
    let runs = block.iter().map(|index| &image.runs()[*index as usize]);
    let mut ours = runs
        .filter(|run| run.first >= target.first && run.first < end)
        .peekable();
    let Some(first) = ours.peek() else {
        return Ok(0);
    };
    let bytes = image.read(first, buffer)?;
    let mut pages = 0;
    for run in ours {
        let from =
            &bytes[run.first_in_block as usize * PAGE_SIZE..][..run.pages as usize * PAGE_SIZE];
        let to = target.address + (run.first - target.first) as usize * PAGE_SIZE;
        // SAFETY: the run lies in the region (the reader checked it against the region's length),
        // the region has the memory's length, and runs do not overlap, so every byte is written by
        // one thread; the memory is borrowed mutably for the whole call.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        pages += u64::from(run.pages);
    }
    Ok(pages)
}
