//! Streams: pages missed at a steady stride, and how far ahead of each to read.
//!
//! As Leap does (Maruf and Chowdhury, USENIX ATC 2020), a stride counts when it is the majority of
//! a stream's recent ones (Boyer and Moore's vote), and the window doubles on hits and halves on
//! waste. Leap keeps one history for each process; here streams are told apart by where they are,
//! so that several interleaved ones in a thread, or one in each thread, do not spoil each other's
//! strides.
//!
//! A page that was read ahead and is used causes no fault, so use is inferred: a stream whose next
//! miss is exactly the page after its window has used its window.
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pagetide_kernel::PageNumber;
use pagetide_kernel::sync::Mutex;

/// Streams followed at a time.
const STREAMS: usize = 16;
/// Most pages read ahead of a stream.
pub const WINDOW_MAX: u32 = 64;
/// A miss so many pages from where a stream is expected, or so many strides, belongs to it.
const REACH: u64 = 64;
/// The vote at which a stride is believed, and its upper limit.
const BELIEVED: i32 = 2;
const VOTES_MAX: i32 = 4;
/// Requests that may wait for the fault thread.
const ASKS: usize = 8;

/// Pages to read ahead: `count` of them, the first at `start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// First page.
    pub start: PageNumber,
    /// From one to the next; not 0.
    pub stride: i64,
    /// How many.
    pub count: u32,
    /// When the miss was that they follow: tells the window they are of.
    window: u64,
    /// The first page's place in that window.
    offset: u32,
}

/// The window of a request that follows no stream.
const NO_WINDOW: u64 = u64::MAX;

impl Ask {
    /// The `count` pages from `start` on, which are of no stream.
    pub fn block(start: PageNumber, count: u32) -> Ask {
        Ask {
            start,
            stride: 1,
            count,
            window: NO_WINDOW,
            offset: 0,
        }
    }

    /// Whether they are of no stream.
    pub fn is_block(self) -> bool {
        self.window == NO_WINDOW
    }

    /// Page `index` of the request; page 0, which is never mapped, beyond the address space.
    pub fn page(self, index: u32) -> PageNumber {
        let page = self
            .start
            .0
            .checked_add_signed(self.stride * i64::from(index));
        PageNumber(page.unwrap_or(0))
    }

    /// The first `count` of it.
    pub fn first(self, count: u32) -> Ask {
        Ask {
            count: self.count.min(count),
            ..self
        }
    }

    /// What is left after the first `count`.
    pub fn after(self, count: u32) -> Ask {
        Ask {
            start: self.page(count),
            count: self.count - count.min(self.count),
            offset: self.offset + count,
            ..self
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    /// The last page missed or read ahead.
    last: PageNumber,
    stride: i64,
    votes: i32,
    window: u32,
    /// Pages to be read ahead since its last miss.
    ahead: u32,
    /// Those that were, by their places among these: others were resident, or never stored, or
    /// there was no room.
    fetched: u64,
    /// When its last miss was; no two streams have the same.
    used: u64,
}

/// What a miss said about the pages read ahead before it, and what to read ahead now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Advice {
    /// Pages read ahead that were used.
    pub hits: u32,
    /// Pages to read ahead.
    pub ask: Option<Ask>,
    /// The program came first to a page that was to be read ahead: left for later, these would come
    /// too late again.
    pub late: bool,
}

struct Followed {
    streams: [Stream; STREAMS],
    clock: u64,
    asks: [Option<Ask>; ASKS],
}

impl Followed {
    fn stream_of(&mut self, page: PageNumber) -> Option<&mut Stream> {
        self.streams
            .iter_mut()
            .filter(|stream| stream.used > 0)
            .map(|stream| (page.0.abs_diff(stream.last.0), stream))
            .filter(|(distance, stream)| {
                *distance <= REACH * stream.stride.unsigned_abs().clamp(1, 8)
            })
            .min_by_key(|(distance, _)| *distance)
            .map(|(_, stream)| stream)
    }

    fn missed(&mut self, page: PageNumber) -> Advice {
        self.clock += 1;
        let clock = self.clock;
        let Some(stream) = self.stream_of(page) else {
            let fresh = Stream {
                last: page,
                stride: 0,
                votes: 0,
                window: 1,
                ahead: 0,
                fetched: 0,
                used: clock,
            };
            if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
                *oldest = fresh;
            }
            return Advice::default();
        };
        stream.used = clock;
        let stride = page.0.wrapping_sub(stream.last.0) as i64;
        let mut advice = Advice::default();
        if stride != 0 && stride == stream.stride {
            advice.hits = stream.fetched_of(stream.ahead);
            stream.votes = (stream.votes + 1).min(VOTES_MAX);
            if stream.ahead > 0 {
                stream.window = (stream.window * 2).min(WINDOW_MAX);
            }
        } else if let Some(used) = stream.used_before(page) {
            // The stream goes on. If the page was read ahead, it is gone again. Else there was no
            // room for it, or the program was quicker: that is caught up with by more pages in one
            // request.
            advice.hits = stream.fetched_of(used);
            advice.late = !stream.has_fetched(used);
            if advice.late {
                stream.window = (stream.window * 2).min(WINDOW_MAX);
            } else if used * 2 < stream.ahead {
                stream.window = (stream.window / 2).max(1);
            }
        } else {
            stream.window = (stream.window / 2).max(1);
            stream.votes -= 1;
            if stream.votes <= 0 && stride != 0 {
                stream.stride = stride;
                stream.votes = 1;
            }
        }
        stream.last = page;
        stream.ahead = 0;
        stream.fetched = 0;
        if stream.votes >= BELIEVED {
            let start = page.0.checked_add_signed(stream.stride).unwrap_or(0);
            advice.ask = Some(Ask {
                start: PageNumber(start),
                stride: stream.stride,
                count: stream.window,
                window: clock,
                offset: 0,
            });
        }
        advice
    }

    /// Notes that the pages of `ask`, which come after a miss, are being read ahead. False if
    /// another miss of the stream came in between.
    fn asked(&mut self, ask: Ask) -> bool {
        let Some(stream) = self.stream_of_window(ask) else {
            return false;
        };
        stream.last = ask.page(ask.count - 1);
        stream.ahead = ask.count;
        true
    }

    fn stream_of_window(&mut self, ask: Ask) -> Option<&mut Stream> {
        let mut streams = self.streams.iter_mut();
        streams.find(|stream| stream.used == ask.window)
    }
}

impl Stream {
    /// How many of the first `count` pages of its window were read ahead.
    fn fetched_of(&self, count: u32) -> u32 {
        let all = u64::MAX.checked_shl(count).unwrap_or(0);
        (self.fetched & !all).count_ones()
    }

    /// Whether page `index` of its window was read ahead.
    fn has_fetched(&self, index: u32) -> bool {
        self.fetched.checked_shr(index).unwrap_or(0) & 1 == 1
    }

    /// If `page` is one that was to be read ahead: how many come before it, and were used.
    fn used_before(&self, page: PageNumber) -> Option<u32> {
        let back = self.last.0.wrapping_sub(page.0) as i64;
        if self.stride == 0 || back % self.stride != 0 {
            return None;
        }
        let rest = u32::try_from(back / self.stride).ok()?;
        (rest < self.ahead).then(|| self.ahead - rest - 1)
    }
}

/// The streams of a pager, shared by the threads that serve faults. Nobody waits: who finds it in
/// use goes without.
pub struct Streams {
    /// Requests waiting.
    waiting: AtomicU32,
    followed: Mutex<Followed>,
}

impl Default for Streams {
    fn default() -> Streams {
        let none = Stream {
            last: PageNumber(0),
            stride: 0,
            votes: 0,
            window: 1,
            ahead: 0,
            fetched: 0,
            used: 0,
        };
        Streams {
            waiting: AtomicU32::new(0),
            followed: Mutex::new(Followed {
                streams: [none; STREAMS],
                clock: 0,
                asks: [None; ASKS],
            }),
        }
    }
}

impl Streams {
    fn with<R>(&self, action: impl FnOnce(&mut Followed) -> R) -> Option<R> {
        self.followed
            .try_lock()
            .map(|mut followed| action(&mut followed))
    }

    /// `page` was fetched on demand: what is advised to be read ahead.
    pub fn missed(&self, page: PageNumber) -> Advice {
        self.with(|followed| followed.missed(page))
            .unwrap_or_default()
    }

    /// As much of `ask` as there is `room` for, in pages, which is taken as being read.
    pub fn begin(&self, ask: Ask, room: u64) -> Option<Ask> {
        let count = u64::from(ask.count).min(room) as u32;
        let ask = Ask { count, ..ask };
        let noted = count > 0 && self.with(|followed| followed.asked(ask)) == Some(true);
        noted.then_some(ask)
    }

    /// The pages of `ask` whose bits are set in `pages` have been read. They count as used when the
    /// stream has passed them.
    pub fn fetched(&self, ask: Ask, pages: u64) {
        if pages != 0 {
            self.with(|followed| {
                if let Some(stream) = followed.stream_of_window(ask) {
                    stream.fetched |= pages.checked_shl(ask.offset).unwrap_or(0);
                }
            });
        }
    }

    /// Leaves a request for the fault thread; one too many is dropped.
    pub fn hand_over(&self, ask: Ask) -> bool {
        self.with(|followed| {
            let place = followed.asks.iter_mut().find(|place| place.is_none());
            place.map(|place| *place = Some(ask)).inspect(|()| {
                self.waiting.fetch_add(1, Relaxed);
            })
        })
        .flatten()
        .is_some()
    }

    /// Takes a request.
    pub fn take(&self) -> Option<Ask> {
        self.with(|followed| {
            let ask = followed.asks.iter_mut().find_map(Option::take);
            ask.inspect(|_| {
                self.waiting.fetch_sub(1, Relaxed);
            })
        })
        .flatten()
    }

    /// Whether no request waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.load(Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs misses of a program that touches `pages` in order, all read ahead being kept; returns
    /// misses and pages read ahead in vain.
    fn program(pages: &[u64]) -> (usize, usize) {
        let streams = Streams::default();
        let mut present = std::collections::HashSet::new();
        let mut used = std::collections::HashSet::new();
        let mut misses = 0;
        for &page in pages {
            used.insert(page);
            if present.insert(page) {
                misses += 1;
                let ask = streams.missed(PageNumber(page)).ask;
                if let Some(ask) = ask.and_then(|ask| streams.begin(ask, 1000)) {
                    present.extend((0..ask.count).map(|i| ask.page(i).0));
                }
            }
        }
        (misses, present.difference(&used).count())
    }

    #[test]
    fn sequences_up_down_and_strided_are_read_ahead() {
        let up: Vec<u64> = (10_000..12_000).collect();
        let down: Vec<u64> = up.iter().rev().copied().collect();
        let strided: Vec<u64> = (0..2000).map(|i| 10_000 + 7 * i).collect();
        for pages in [up, down, strided] {
            let (misses, vain) = program(&pages);
            assert!(misses < 50, "{misses} misses");
            assert!(vain <= 64, "{vain} in vain");
        }
    }

    #[test]
    fn four_interleaved_streams_do_not_disturb_each_other() {
        let pages: Vec<u64> = (0..8000)
            .map(|i| 100_000 * (1 + i % 4) + 3 * (i / 4))
            .collect();
        let (misses, vain) = program(&pages);
        assert!(misses < 4 * 50, "{misses} misses");
        assert!(vain <= 4 * 64, "{vain} in vain");
    }

    #[test]
    fn a_program_that_is_always_quicker_is_read_ahead_of_by_more() {
        let streams = Streams::default();
        let mut begun = Vec::new();
        for page in 1000..1020 {
            let advice = streams.missed(PageNumber(page));
            assert_eq!(advice.late, !begun.is_empty(), "page {page}");
            begun.extend(advice.ask.and_then(|ask| streams.begin(ask, 1000)));
        }
        assert_eq!(begun.last().map(|ask| ask.count), Some(WINDOW_MAX));
    }

    #[test]
    fn pages_read_ahead_that_are_gone_when_they_are_wanted_are_read_ahead_less() {
        let streams = Streams::default();
        let mut page = 1000;
        let mut count = 0;
        for _ in 0..20 {
            let ask = streams.missed(PageNumber(page)).ask;
            let Some(ask) = ask.and_then(|ask| streams.begin(ask, 1000)) else {
                page += 1;
                continue;
            };
            streams.fetched(ask, u64::MAX >> (64 - ask.count));
            count = ask.count;
            // The window grows while it is used, and then its first page is missed.
            page += if count < 16 { 1 + u64::from(count) } else { 1 };
        }
        assert!(count <= 16, "{count}");
    }

    #[test]
    fn random_misses_are_left_alone() {
        let mut x = 1u64;
        let pages: Vec<u64> = (0..20_000)
            .map(|_| {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                1 + (x >> 33) % 200_000
            })
            .collect();
        let (_, vain) = program(&pages);
        assert!(vain < 20, "{vain} pages read in vain");
    }

    #[test]
    fn hits_are_those_of_a_window_used_up() {
        let streams = Streams::default();
        let mut page = 1000;
        let (mut hits, mut asked) = (0, 0);
        for _ in 0..20 {
            let advice = streams.missed(PageNumber(page));
            hits += advice.hits;
            assert_eq!(hits, asked, "every page read ahead so far was used");
            let begun = advice.ask.and_then(|ask| streams.begin(ask, 1000));
            let ahead = begun.map_or(0, |ask| ask.count);
            if let Some(ask) = begun {
                // In two parts, as the fault thread does.
                let rest = ask.after(ahead / 2);
                streams.fetched(ask, (1u64 << (ahead / 2)) - 1);
                streams.fetched(rest, u64::MAX >> (64 - rest.count));
            }
            asked += ahead;
            page += 1 + u64::from(ahead);
        }
        assert!(asked > 500);
    }

    #[test]
    fn pages_of_a_window_that_were_not_read_are_no_hits() {
        let streams = Streams::default();
        let mut page = 1000;
        let (mut hits, mut fetched, mut uncounted) = (0, 0, 0);
        for round in 0..40 {
            let advice = streams.missed(PageNumber(page));
            hits += advice.hits;
            assert_eq!(hits, fetched, "every page read ahead so far was used");
            let Some(ask) = advice.ask.and_then(|ask| streams.begin(ask, 1000)) else {
                page += 1;
                continue;
            };
            // Every third page was resident, or was never stored.
            let read = 0x6db6_db6d_b6db_6db6 & (u64::MAX >> (64 - ask.count));
            streams.fetched(ask, read);
            // One that comes too late is of no window any more.
            streams.fetched(Ask { window: 1, ..ask }, u64::MAX);
            // Now and then the program stops within the window: at a page that is gone again.
            let passed = match round % 4 {
                3 => ask.count / 2,
                _ => ask.count,
            };
            fetched += (read & !u64::MAX.checked_shl(passed).unwrap_or(0)).count_ones();
            uncounted += passed;
            page += 1 + u64::from(passed);
        }
        assert!(fetched > 200 && uncounted > fetched);
    }
}
