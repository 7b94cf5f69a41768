//! The eviction queue: resident pages in the order they were installed, oldest first.
//!
//! An entry is a page number; a page has at most one (its word's QUEUED flag). Entries of pages
//! that went away in the meantime are found out when they are taken. Bounded and preallocated; the
//! fault thread puts, the evictor takes.
use std::sync::atomic::{AtomicU64, Ordering};

use pagetide_kernel::own::Mapping;
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use rustix::io::Errno;

const ENTRIES_PER_PAGE: u64 = (PAGE_SIZE / size_of::<AtomicU64>()) as u64;

/// A ring of page numbers with any number of producers and one consumer.
pub struct EvictionQueue {
    ring: Mapping,
    capacity: u64,
    head: AtomicU64,
    tail: AtomicU64,
}

impl EvictionQueue {
    /// A queue for at most `capacity` entries (rounded up to a power of two). Costs memory as it is
    /// used.
    pub fn new(capacity: u64) -> Result<EvictionQueue, Errno> {
        let capacity = capacity.next_power_of_two().max(512);
        Ok(EvictionQueue {
            ring: Mapping::new(capacity as usize * size_of::<AtomicU64>())?,
            capacity,
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
        })
    }

    fn entry(&self, position: u64) -> &AtomicU64 {
        let index = (position & (self.capacity - 1)) as usize;
        // SAFETY: the ring holds `capacity` zero-initialised words, lives as long as the queue, and
        // is only accessed atomically.
        unsafe { &*self.ring.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Entries waiting, stale ones included.
    pub fn len(&self) -> u64 {
        self.tail
            .load(Ordering::Acquire)
            .saturating_sub(self.head.load(Ordering::Acquire))
    }

    /// Whether no entry waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts `page` last. False when the queue is full.
    pub fn put(&self, page: PageNumber) -> bool {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            // Negative when `tail` is older than `head`: then the exchange fails, and tells the
            // newer one.
            let waiting = tail.wrapping_sub(self.head.load(Ordering::Acquire)) as i64;
            if waiting >= self.capacity as i64 {
                return false;
            }
            match self.tail.compare_exchange_weak(
                tail,
                tail + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => tail = now,
            }
        }
        // Page 0 is never mapped, so 0 marks an entry whose producer has not written it yet.
        self.entry(tail).store(page.0, Ordering::Release);
        true
    }

    /// The ring is sized for the whole machine; only the part in use should cost memory.
    fn release_page_before(&self, position: u64) {
        let first = self.entry(position - ENTRIES_PER_PAGE) as *const AtomicU64 as usize;
        let page = PageRange::one(PageNumber::containing(first));
        if self.capacity > 16 * ENTRIES_PER_PAGE && self.len() < self.capacity - ENTRIES_PER_PAGE {
            // SAFETY: every entry of this page of the ring was taken (and zeroed), and the
            // producers are not yet around to it again.
            let _ = unsafe { pagetide_kernel::own::discard(page) };
        }
    }

    /// Takes the oldest entry. Only one thread may take.
    pub fn take(&self) -> Option<PageNumber> {
        let head = self.head.load(Ordering::Relaxed);
        if head == self.tail.load(Ordering::Acquire) {
            return None;
        }
        let page = self.entry(head).swap(0, Ordering::AcqRel);
        if page == 0 {
            return None;
        }
        self.head.store(head + 1, Ordering::Release);
        if (head + 1).is_multiple_of(ENTRIES_PER_PAGE) {
            self.release_page_before(head + 1);
        }
        Some(PageNumber(page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_and_the_bound_holds() {
        let queue = EvictionQueue::new(512).unwrap();
        for round in 0..5u64 {
            let count = (1..)
                .take_while(|i| queue.put(PageNumber(round * 10_000 + i)))
                .count() as u64;
            assert_eq!(count, 512);
            for i in 1..=count {
                assert_eq!(queue.take(), Some(PageNumber(round * 10_000 + i)));
            }
            assert_eq!(queue.take(), None);
        }
    }

    #[test]
    fn nothing_is_lost_between_two_producers_and_a_consumer() {
        const EACH: u64 = 300_000;
        let queue = EvictionQueue::new(1024).unwrap();
        let mut seen = std::collections::HashSet::new();
        std::thread::scope(|scope| {
            let produce = |producer: u64| {
                let queue = &queue;
                move || {
                    for i in 1..=EACH {
                        while !queue.put(PageNumber(producer << 32 | i)) {
                            std::thread::yield_now();
                        }
                    }
                }
            };
            let producers = [scope.spawn(produce(0)), scope.spawn(produce(1))];
            loop {
                let ended = producers.iter().all(|producer| producer.is_finished());
                match queue.take() {
                    Some(page) => assert!(seen.insert(page)),
                    None if ended => break,
                    None => std::thread::yield_now(),
                }
            }
        });
        assert_eq!(seen.len() as u64, 2 * EACH);
    }
}
