//! The worker: takes old bytes that were put aside first, then sweeps the rest, and hands all of it
//! to the writer.
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::pagemap::holds_bytes;
use pagetide_store::Page;

use super::copy_aside::Shared;
use super::error::SnapshotError;
use super::format::BLOCK_PAGES_MAX;
use super::pages::Phase;
use super::placement::Placement;
use super::pool::SlotIndex;
use super::under_way::Progress;
use super::writer::{Writer, Written};
use crate::memory::Backing;
use pagetide_pager::read_page::PageRead;

/// Pages looked up in the page map at a time, and opened again by one system call when they are
/// saved.
const WINDOW_PAGES: usize = 256;

/// A page's content, as far as it can be known without touching it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Zeros,
    Bytes,
}

fn swap_in_use() -> bool {
    rustix::system::sysinfo().totalswap != 0
}

/// The work of one snapshot.
pub(crate) struct Sweep<'a> {
    shared: &'a Arc<Shared>,
    phase: Phase,
    progress: &'a Progress,
    writer: Writer,
    /// Pages stay protected after they are saved, so that later writes are known.
    keep_protected: bool,
    contents: Vec<Content>,
    block: Vec<u8>,
    block_pages: Vec<u64>,
    /// A page was passed because its lock was held.
    passed_over: bool,
    placement: Placement<'a>,
}

impl<'a> Sweep<'a> {
    pub fn new(
        shared: &'a Arc<Shared>,
        phase: Phase,
        progress: &'a Progress,
        writer: Writer,
        keep_protected: bool,
        may_move: bool,
    ) -> Sweep<'a> {
        Sweep {
            shared,
            phase,
            progress,
            writer,
            keep_protected,
            contents: Vec::with_capacity(WINDOW_PAGES),
            block: vec![0; BLOCK_PAGES_MAX * PAGE_SIZE],
            block_pages: Vec::with_capacity(BLOCK_PAGES_MAX),
            passed_over: false,
            placement: match may_move {
                true => Placement::new(shared),
                false => Placement::fixed(shared),
            },
        }
    }

    /// Takes every page that is needed; then the file is complete and durable.
    pub fn run(mut self) -> Result<Written, SnapshotError> {
        let total = self.shared.guard.spans.pages() as u64;
        self.progress.pages_total.store(total, SeqCst);
        loop {
            self.passed_over = false;
            self.progress.pages_done.store(0, SeqCst);
            self.pass()?;
            if !self.passed_over {
                break;
            }
            std::thread::yield_now();
        }
        // Every page is saved; what writers saved last is in the pool when they are done.
        self.shared.end();
        self.drain()?;
        self.placement.leave();
        if self.shared.failed.load(SeqCst) {
            return Err(SnapshotError::Spoiled);
        }
        Ok(self.writer.finish()?)
    }

    fn pass(&mut self) -> Result<(), SnapshotError> {
        let spans = &self.shared.guard.spans;
        for number in 0..spans.iter().count() {
            let indexes = spans.indexes(number);
            for from in indexes.clone().step_by(WINDOW_PAGES) {
                let to = (from + WINDOW_PAGES).min(indexes.end);
                self.sweep_window(number, from, to)?;
                self.progress
                    .pages_done
                    .fetch_add((to - from) as u64, SeqCst);
            }
        }
        Ok(())
    }

    fn sweep_window(&mut self, span: usize, from: usize, to: usize) -> Result<(), SnapshotError> {
        let (shared, phase) = (self.shared, self.phase);
        let needed = |index: usize| phase.needs(shared.pages.load(index));
        self.drain()?;
        if (from..to).any(needed) {
            self.look_up(span, from, to);
            let mut index = from;
            while index < to {
                if needed(index) {
                    self.take_page(span, from, index)?;
                }
                index += 1;
            }
            self.put_block(span)?;
        }
        if !self.keep_protected {
            self.open_saved(from, to);
        }
        Ok(())
    }

    /// What the window's pages hold, where that is known without reading: absent anonymous pages
    /// hold zeros, unless they are swapped out.
    fn look_up(&mut self, span: usize, from: usize, to: usize) {
        let spans = &self.shared.guard.spans;
        let range = spans.range(from, to);
        self.contents.clear();
        self.contents.resize(to - from, Content::Bytes);
        let span = spans.span(span);
        if span.served.is_some() || span.backing != Backing::Anonymous || swap_in_use() {
            return;
        }
        let contents = &mut self.contents;
        contents.fill(Content::Zeros);
        let result = holds_bytes(range, |run| {
            let first = (run.start.0 - range.start.0) as usize;
            contents[first..first + run.pages() as usize].fill(Content::Bytes);
        });
        // Swap that was turned on meanwhile may have pages that `mincore` called absent.
        if result.is_err() || swap_in_use() {
            contents.fill(Content::Bytes);
        }
    }

    fn take_page(&mut self, span: usize, window: usize, index: usize) -> Result<(), SnapshotError> {
        let spans = &self.shared.guard.spans;
        let page = (index - spans.indexes(span).start) as u64;
        // Where a writer is saving it, its bytes come from the pool; whether it did, another pass
        // will show.
        let Some(mut held) = self.shared.pages.try_hold(index) else {
            self.passed_over = true;
            return Ok(());
        };
        if !self.phase.needs(held.word()) {
            return Ok(());
        }
        if self.contents[index - window] == Content::Zeros {
            held.set_saved(self.phase.epoch);
            drop(held);
            self.writer.put_zeros(span as u32, page, 1);
            return Ok(());
        }
        let place = &mut self.block[self.block_pages.len() * PAGE_SIZE..][..PAGE_SIZE];
        let address = spans.page(index).address();
        if let Some(region) = &spans.span(span).served {
            let mut bytes = Page::ZERO;
            match region.pager.read_page(spans.page(index), &mut bytes) {
                PageRead::Bytes => place.copy_from_slice(&bytes.0),
                PageRead::Zeros => place.fill(0),
                PageRead::Busy => {
                    self.passed_over = true;
                    return Ok(());
                }
                PageRead::Lost(error) => {
                    return Err(SnapshotError::Lost(match error {
                        Some(error) => format!("the page at {address:#x}: {error}"),
                        None => format!("the page at {address:#x} was lost before"),
                    }));
                }
            }
        } else {
            // SAFETY: the page is one of the spans', which stay mapped; it is needed and its lock
            // is held, so it is write-protected and nobody writes to it.
            unsafe {
                std::ptr::copy_nonoverlapping(address as *const u8, place.as_mut_ptr(), PAGE_SIZE);
            }
        }
        held.set_saved(self.phase.epoch);
        drop(held);
        self.add_page(span, page)
    }

    /// The page's bytes are in the block, after those of the others.
    fn add_page(&mut self, span: usize, page: u64) -> Result<(), SnapshotError> {
        self.block_pages.push(page);
        if self.block_pages.len() == BLOCK_PAGES_MAX {
            self.put_block(span)?;
            self.drain()?;
        }
        Ok(())
    }

    fn put_block(&mut self, span: usize) -> Result<(), SnapshotError> {
        self.placement.consider();
        let bytes = &self.block[..self.block_pages.len() * PAGE_SIZE];
        self.writer.put(span as u32, &self.block_pages, bytes)?;
        self.block_pages.clear();
        Ok(())
    }

    /// Opens the runs of the window whose bytes are safe. Pages a writer is saving are left to it.
    fn open_saved(&self, from: usize, to: usize) {
        let shared = self.shared;
        let mut index = from;
        while index < to {
            // A page that is not needed was saved whole: whoever saves it says so when its bytes
            // are copied.
            let needed = |index: &usize| self.phase.needs(shared.pages.load(*index));
            let end = (index..to).find(needed).unwrap_or(to);
            if end > index {
                shared.pages.set_written(index, end, self.phase.epoch);
                let _ = shared.guard.unprotect(index, end);
            }
            index = end + 1;
        }
    }

    fn check_cancelled(&self) -> Result<(), SnapshotError> {
        match self.progress.cancelled.load(SeqCst) {
            true => Err(SnapshotError::Cancelled),
            false => Ok(()),
        }
    }

    /// Hands what was put aside to the writer, and makes room for more.
    fn drain(&mut self) -> Result<(), SnapshotError> {
        self.check_cancelled()?;
        let mut batch = [(SlotIndex::default(), 0usize); BLOCK_PAGES_MAX];
        let mut bytes = [0u8; BLOCK_PAGES_MAX * PAGE_SIZE];
        let mut pages = [0u64; BLOCK_PAGES_MAX];
        while self.shared.pool.has_filled() {
            let count = self.shared.pool.take_filled(&mut batch);
            let batch = &mut batch[..count];
            batch.sort_unstable_by_key(|(_, index)| *index);
            let spans = &self.shared.guard.spans;
            for (number, (slot, index)) in batch.iter().enumerate() {
                let place = &mut bytes[number * PAGE_SIZE..][..PAGE_SIZE];
                // SAFETY: the slot was filled and taken out, so its bytes are ours until it is
                // given back.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        self.shared.pool.room(*slot),
                        place.as_mut_ptr(),
                        PAGE_SIZE,
                    );
                }
                pages[number] = (*index - spans.indexes(spans.span_of(*index)).start) as u64;
                self.shared.pool.give_back(*slot);
            }
            let mut done = 0;
            while done < count {
                let span = spans.span_of(batch[done].1);
                let same = batch[done..]
                    .iter()
                    .take_while(|(_, index)| spans.indexes(span).contains(index))
                    .count();
                let bytes = &bytes[done * PAGE_SIZE..(done + same) * PAGE_SIZE];
                self.writer
                    .put(span as u32, &pages[done..done + same], bytes)?;
                done += same;
            }
            self.placement.consider();
            self.check_cancelled()?;
        }
        Ok(())
    }
}
