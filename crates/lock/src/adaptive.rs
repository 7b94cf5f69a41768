//! What to read ahead of a program, from what it is seen to touch: pure decisions, made per chunk
//! and per group of chunks.
//!
//! A mapping starts with read-around off, so that a sparse access reads one page. That is the wrong
//! choice as soon as the program touches a good part of the file, since a page read by itself costs
//! some fifteen times what it costs in a stream. When to change is the ski-rental problem: renting
//! (single reads) until a fixed share of the price of buying (streaming the chunk) has been paid
//! bounds the loss either way. The share here is about a tenth in groups, where random access is
//! counted well, and a half in single chunks, where a few neighbours should not cost 2 MiB.
use std::ops::Range;

/// Pages in a chunk, which is read as a whole: 2 MiB.
pub const CHUNK_PAGES: usize = 512;
/// Chunks in a group: 64 MiB, which gives a count of random touches that noise does not decide.
const GROUP_CHUNKS: usize = 32;
/// A chunk with so many touched pages is read.
const CHUNK_TOUCHED: u32 = 24;
/// A group in which this share (1/N) of the pages is touched, spread over most of its chunks, is
/// read.
const GROUP_SHARE: u32 = 110;
/// Pages touched in a row that make a stream.
const STREAM_RUN: u32 = 8;
/// How far ahead of a stream is read at first and at most, in chunks.
const AHEAD_MIN: usize = 2;
const AHEAD_MAX: usize = 32;

/// What is known of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chunk {
    /// Pages touched when it was last looked at.
    pub touched: u32,
    /// Longest run of them.
    pub run: u32,
    /// It has been asked for.
    pub asked: bool,
    /// It has been asked for ahead of a stream, so a touch in it moves the stream on.
    pub ahead: bool,
}

/// The chunks of a file and the streams through it.
#[derive(Debug)]
pub struct Adaptive {
    chunks: Vec<Chunk>,
    /// Chunks that streams are ahead by; doubles as they are used.
    ahead: usize,
    /// Chunks not asked for.
    open: usize,
}

impl Adaptive {
    /// For a file of so many pages.
    pub fn new(pages: usize) -> Adaptive {
        let count = pages.div_ceil(CHUNK_PAGES);
        Adaptive {
            chunks: vec![Chunk::default(); count],
            ahead: AHEAD_MIN,
            open: count,
        }
    }

    /// Whether there is nothing left to decide.
    pub fn is_done(&self) -> bool {
        self.open == 0
    }

    /// Whether a stream is under way that a look could move on.
    pub fn has_stream(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.ahead)
    }

    /// Chunks that are worth a look, as ranges of chunks.
    pub fn to_look_at(&self, streams_only: bool) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for (index, chunk) in self.chunks.iter().enumerate() {
            if !(chunk.ahead || !streams_only && !chunk.asked) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == index => last.end += 1,
                _ => ranges.push(index..index + 1),
            }
        }
        ranges
    }

    /// Forgets what was seen in these chunks; [`Adaptive::seen`] follows.
    pub fn begin_look(&mut self, chunks: Range<usize>) {
        for chunk in &mut self.chunks[chunks] {
            (chunk.touched, chunk.run) = (0, 0);
        }
    }

    /// Pages that were found touched, as a run of page indices of the file.
    pub fn seen(&mut self, pages: Range<usize>) {
        let mut at = pages.start;
        while at < pages.end {
            let index = at / CHUNK_PAGES;
            let end = pages.end.min((index + 1) * CHUNK_PAGES);
            if let Some(chunk) = self.chunks.get_mut(index) {
                chunk.touched += (end - at) as u32;
                chunk.run = chunk.run.max((end - at) as u32);
            }
            at = end;
        }
    }

    /// Forgets what streams were seen: for those who cannot tell a page that was touched from one
    /// that was read ahead.
    pub fn forget_streams(&mut self) {
        self.ahead = AHEAD_MIN;
        for chunk in &mut self.chunks {
            chunk.ahead = false;
        }
    }

    /// Takes every touch for that of a stream: the chunk is read whole, and the ones after it.
    pub fn follow_every_touch(&mut self) {
        for chunk in &mut self.chunks {
            if chunk.touched > 0 {
                chunk.run = chunk.run.max(STREAM_RUN);
            }
        }
    }

    /// Chunks to read now, in the order in which they are wanted. They count as asked for from here
    /// on.
    pub fn decide(&mut self) -> Vec<usize> {
        let mut wanted = Vec::new();
        self.follow_streams(&mut wanted);
        for index in 0..self.chunks.len() {
            if self.chunks[index].touched >= CHUNK_TOUCHED {
                self.ask(index, &mut wanted);
            }
        }
        for first in (0..self.chunks.len()).step_by(GROUP_CHUNKS) {
            let group = first..(first + GROUP_CHUNKS).min(self.chunks.len());
            if self.is_dense(group.clone()) {
                group.for_each(|index| self.ask(index, &mut wanted));
            }
        }
        wanted
    }

    fn is_dense(&self, group: Range<usize>) -> bool {
        let chunks = &self.chunks[group];
        let touched: u32 = chunks.iter().map(|chunk| chunk.touched).sum();
        let spread = chunks
            .iter()
            .filter(|chunk| chunk.touched > 0 || chunk.asked)
            .count();
        spread * 4 >= chunks.len() * 3
            && touched * GROUP_SHARE >= (chunks.len() * CHUNK_PAGES) as u32
    }

    fn follow_streams(&mut self, wanted: &mut Vec<usize>) {
        for index in 0..self.chunks.len() {
            let chunk = self.chunks[index];
            let begins = !chunk.asked && chunk.run >= STREAM_RUN;
            let goes_on = chunk.ahead && chunk.touched > 0;
            if !(begins || goes_on) {
                continue;
            }
            if goes_on {
                self.chunks[index].ahead = false;
                self.ahead = (self.ahead * 2).min(AHEAD_MAX);
            }
            for next in index..(index + 1 + self.ahead).min(self.chunks.len()) {
                if !self.chunks[next].asked {
                    self.ask(next, wanted);
                    self.chunks[next].ahead = next > index;
                }
            }
        }
    }

    fn ask(&mut self, index: usize, wanted: &mut Vec<usize>) {
        let chunk = &mut self.chunks[index];
        if !chunk.asked {
            chunk.asked = true;
            self.open -= 1;
            wanted.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(adaptive: &mut Adaptive, pages: &[usize]) -> Vec<usize> {
        for range in adaptive.to_look_at(false) {
            adaptive.begin_look(range);
        }
        let mut pages = pages.to_vec();
        pages.sort_unstable();
        pages.dedup();
        let mut at = 0;
        while at < pages.len() {
            let mut end = at + 1;
            while end < pages.len() && pages[end] == pages[end - 1] + 1 {
                end += 1;
            }
            adaptive.seen(pages[at]..pages[end - 1] + 1);
            at = end;
        }
        adaptive.decide()
    }

    fn random(count: usize, pages: usize) -> Vec<usize> {
        let mut state = 7u64;
        (0..count)
            .map(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (state >> 33) as usize % pages
            })
            .collect()
    }

    const FILE: usize = 524_288;

    #[test]
    fn sparse_random_access_reads_nothing_ahead() {
        let mut adaptive = Adaptive::new(FILE);
        assert_eq!(look(&mut adaptive, &random(3000, FILE)), []);
    }

    #[test]
    fn dense_random_access_has_everything_read() {
        let mut adaptive = Adaptive::new(FILE);
        let asked = look(&mut adaptive, &random(12_000, FILE));
        assert_eq!(asked.len(), FILE / CHUNK_PAGES);
        assert!(adaptive.is_done());
    }

    #[test]
    fn a_dense_corner_has_that_corner_read() {
        let mut adaptive = Adaptive::new(FILE);
        let asked = look(&mut adaptive, &random(300, 4 * CHUNK_PAGES));
        assert_eq!(asked, [0, 1, 2, 3]);
    }

    #[test]
    fn a_stream_is_followed_further_and_further() {
        let mut adaptive = Adaptive::new(FILE);
        let asked = look(&mut adaptive, &(100..120).collect::<Vec<_>>());
        assert_eq!(asked, [0, 1, 2]);
        assert!(adaptive.has_stream());
        let touched: Vec<usize> = (100..600).collect();
        let asked = look(&mut adaptive, &touched);
        assert_eq!(asked, [3, 4, 5]);
    }

    #[test]
    fn a_file_without_pages_is_done() {
        let mut adaptive = Adaptive::new(0);
        assert!(adaptive.is_done() && adaptive.decide().is_empty());
    }
}
