//! What is measured of how a program uses its memory, in the ledger: how long pages go unused, in
//! classes, for each part of the time. [`crate::measure`] writes it and says what it means.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::histogram::Histogram;

/// Classes of ages: those below 2^16 ns, eight for each power of two up to 2^44 ns (4.9 h), and
/// those above.
pub const AGES: usize = 8 * (AGE_EXPONENT_MAX - AGE_EXPONENT_MIN) + 2;
const AGE_EXPONENT_MIN: usize = 16;
const AGE_EXPONENT_MAX: usize = 44;
/// Pages of an address space: a ledger that says more is damaged.
const PAGES_MAX: u64 = 1 << 35;
/// Parts that the measured time is cut into, all of one length.
pub const PARTS: usize = 16;

/// The class of an age in nanoseconds.
pub fn age_class(age_ns: u64) -> usize {
    if age_ns < 1 << AGE_EXPONENT_MIN {
        return 0;
    }
    let exponent = 63 - age_ns.leading_zeros() as usize;
    let eighth = (age_ns >> (exponent - 3)) as usize & 7;
    ((exponent - AGE_EXPONENT_MIN) * 8 + eighth + 1).min(AGES - 1)
}

/// The end of a class of ages, in nanoseconds.
pub fn age_end(class: usize) -> u64 {
    let (octave, eighth) = (class / 8, class as u64 % 8);
    (8 + eighth) << (octave + AGE_EXPONENT_MIN - 3)
}

/// One part of the time.
#[repr(C)]
pub struct PartCells {
    counts: AtomicU64,
    pages: AtomicU64,
    used: [AtomicU32; AGES],
    gone: [AtomicU32; AGES],
    open: [AtomicU32; AGES],
}

/// The cells that are written while measuring, by one thread.
#[repr(C)]
pub struct MeasuredCells {
    /// 1 while measuring.
    pub on: AtomicU64,
    /// `CLOCK_MONOTONIC` when measuring began; 0 if it never has.
    pub began_ns: AtomicU64,
    /// How long has been measured, in nanoseconds.
    pub elapsed_ns: AtomicU64,
    /// Processor time of the program's own threads meanwhile, in nanoseconds.
    pub program_cpu_ns: AtomicU64,
    /// The length of a part, in nanoseconds.
    pub part_ns: AtomicU64,
    /// The most pages in use.
    pub pages_max: AtomicU64,
    /// One page in so many is looked at.
    pub one_in: AtomicU64,
    /// Pages taken out to see whether they are used.
    pub takes: AtomicU64,
    /// Processor time of that, in nanoseconds.
    pub take_cpu_ns: AtomicU64,
    /// How long faults waited that were served by a read from the store.
    pub fetch_waits: Histogram,
    parts: [PartCells; PARTS],
}

/// What became of a look at a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It was used so many nanoseconds later.
    Used(u64),
    /// The program gave it up unused, so many nanoseconds later at most.
    Gone(u64),
}

impl MeasuredCells {
    /// Begins anew at `now_ns`, with parts of `part_ns`.
    pub fn begin(&self, now_ns: u64, part_ns: u64) {
        for cell in [
            &self.elapsed_ns,
            &self.program_cpu_ns,
            &self.pages_max,
            &self.takes,
            &self.take_cpu_ns,
        ] {
            cell.store(0, Relaxed);
        }
        self.fetch_waits.clear();
        self.parts.iter().for_each(PartCells::clear);
        self.part_ns.store(part_ns, Relaxed);
        self.began_ns.store(now_ns, Relaxed);
        self.on.store(1, Relaxed);
    }

    /// The part that `at_ns` lies in.
    fn part(&self, at_ns: u64) -> &PartCells {
        let since = at_ns.saturating_sub(self.began_ns.load(Relaxed));
        let index = since / self.part_ns.load(Relaxed).max(1);
        &self.parts[(index as usize).min(PARTS - 1)]
    }

    /// Makes parts longer until `now_ns` is in one of them.
    pub fn make_room(&self, now_ns: u64) {
        let since = now_ns.saturating_sub(self.began_ns.load(Relaxed));
        self.elapsed_ns.store(since, Relaxed);
        while since
            >= self
                .part_ns
                .load(Relaxed)
                .max(1)
                .saturating_mul(PARTS as u64)
        {
            for index in 0..PARTS {
                let to = &self.parts[index];
                match 2 * index < PARTS {
                    true => to.join(&self.parts[2 * index], &self.parts[2 * index + 1]),
                    false => to.clear(),
                }
            }
            self.part_ns
                .fetch_add(self.part_ns.load(Relaxed).max(1), Relaxed);
        }
    }

    /// At `at_ns` there were so many pages in use.
    pub fn note_pages(&self, at_ns: u64, pages: u64) {
        let part = self.part(at_ns);
        part.counts.fetch_add(1, Relaxed);
        part.pages.fetch_add(pages, Relaxed);
        self.pages_max.fetch_max(pages, Relaxed);
    }

    /// What became of `count` looks begun at `at_ns`.
    pub fn note_seen(&self, at_ns: u64, seen: Seen, count: u32) {
        let part = self.part(at_ns);
        let cell = match seen {
            Seen::Used(age) => &part.used[age_class(age)],
            Seen::Gone(age) => &part.gone[age_class(age)],
        };
        cell.fetch_add(count, Relaxed);
    }

    /// Of the looks begun in each part, those that nothing became of yet, by age.
    pub fn set_open(&self, open: &OpenLooks) {
        for (part, counts) in self.parts.iter().zip(open.0.iter()) {
            for (cell, count) in part.open.iter().zip(counts) {
                cell.store(*count, Relaxed);
            }
        }
    }

    /// Counts one that began at `at_ns` in `open`.
    pub fn count_open(&self, open: &mut OpenLooks, at_ns: u64, age_ns: u64, count: u32) {
        let since = at_ns.saturating_sub(self.began_ns.load(Relaxed));
        let index = since / self.part_ns.load(Relaxed).max(1);
        let cell = &mut open.0[(index as usize).min(PARTS - 1)][age_class(age_ns)];
        *cell = cell.saturating_add(count);
    }

    /// What was measured so far; none if nothing was.
    pub fn read(&self) -> Option<Measured> {
        let get = |cell: &AtomicU64| cell.load(Relaxed);
        (get(&self.began_ns) != 0).then(|| Measured {
            on: get(&self.on) != 0,
            elapsed_ns: get(&self.elapsed_ns),
            program_cpu_ns: get(&self.program_cpu_ns),
            part_ns: get(&self.part_ns).max(1),
            pages_max: get(&self.pages_max).min(PAGES_MAX),
            one_in: get(&self.one_in),
            takes: get(&self.takes),
            take_cpu_ns: get(&self.take_cpu_ns),
            fetch_wait_ns: self.fetch_waits.latency().p50,
            parts: self.parts.iter().map(PartCells::read).collect(),
        })
    }
}

impl PartCells {
    fn clear(&self) {
        self.counts.store(0, Relaxed);
        self.pages.store(0, Relaxed);
        for cell in self.used.iter().chain(&self.gone).chain(&self.open) {
            cell.store(0, Relaxed);
        }
    }

    fn join(&self, a: &PartCells, b: &PartCells) {
        let sum = |a: &AtomicU64, b: &AtomicU64| a.load(Relaxed).wrapping_add(b.load(Relaxed));
        self.counts.store(sum(&a.counts, &b.counts), Relaxed);
        self.pages.store(sum(&a.pages, &b.pages), Relaxed);
        for class in 0..AGES {
            for (to, a, b) in [
                (&self.used, &a.used, &b.used),
                (&self.gone, &a.gone, &b.gone),
                (&self.open, &a.open, &b.open),
            ] {
                let sum = a[class].load(Relaxed).wrapping_add(b[class].load(Relaxed));
                to[class].store(sum, Relaxed);
            }
        }
    }

    fn read(&self) -> Part {
        let counts = |cells: &[AtomicU32; AGES]| cells.iter().map(|c| c.load(Relaxed)).collect();
        Part {
            counts: self.counts.load(Relaxed),
            pages: self.pages.load(Relaxed),
            used: counts(&self.used),
            gone: counts(&self.gone),
            open: counts(&self.open),
        }
    }
}

/// Looks that nothing became of yet: by part, and by age.
pub struct OpenLooks(Box<[[u32; AGES]; PARTS]>);

impl Default for OpenLooks {
    fn default() -> OpenLooks {
        OpenLooks(Box::new([[0; AGES]; PARTS]))
    }
}

impl OpenLooks {
    /// There are none.
    pub fn clear(&mut self) {
        *self.0 = [[0; AGES]; PARTS];
    }
}

/// A part of the time, as read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Part {
    /// How often the pages in use were counted.
    pub counts: u64,
    /// The sum of these counts.
    pub pages: u64,
    /// Looks at pages that were used afterwards, by how long that took.
    pub used: Vec<u32>,
    /// Looks at pages that the program gave up unused, by how long that took.
    pub gone: Vec<u32>,
    /// Looks at pages that were not used yet, by how long ago that was.
    pub open: Vec<u32>,
}

/// What was measured of one process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// It goes on.
    pub on: bool,
    /// How long, in nanoseconds.
    pub elapsed_ns: u64,
    /// Processor time of the program's own threads meanwhile, in nanoseconds.
    pub program_cpu_ns: u64,
    /// The length of a part, in nanoseconds.
    pub part_ns: u64,
    /// The most pages in use.
    pub pages_max: u64,
    /// One page in so many was looked at, in the end.
    pub one_in: u64,
    /// Pages taken out to see whether they are used.
    pub takes: u64,
    /// Processor time of that, in nanoseconds.
    pub take_cpu_ns: u64,
    /// How long a fault waited that was served by a read from the store: the median, in
    /// nanoseconds.
    pub fetch_wait_ns: u64,
    /// In order of time.
    pub parts: Vec<Part>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells() -> Box<MeasuredCells> {
        let memory = pagetide_kernel::own::Mapping::new(size_of::<MeasuredCells>()).unwrap();
        // SAFETY: zeroed cells are a value, and the memory is leaked for good.
        let cells: &'static MeasuredCells = unsafe { &*memory.leak().cast() };
        // SAFETY: as above; atomics are copied while nobody writes.
        Box::new(unsafe { std::ptr::read(cells) })
    }

    #[test]
    fn an_age_is_in_the_class_that_ends_after_it() {
        let ages =
            (0..1 << 18).chain((18..44).flat_map(|e| [(1u64 << e) - 1, 1 << e, 3 << (e - 1)]));
        for age in ages {
            let class = age_class(age);
            assert!(age < age_end(class), "{age} in {class}");
            assert!(class == 0 || age >= age_end(class - 1), "{age} in {class}");
        }
        assert_eq!(age_class(u64::MAX), AGES - 1);
    }

    #[test]
    fn parts_get_longer_and_nothing_is_lost() {
        let cells = cells();
        cells.begin(1000, 10);
        for step in 0..1000u64 {
            cells.make_room(1000 + step);
            cells.note_pages(1000 + step, 5);
            cells.note_seen(1000 + step, Seen::Used(step), 1);
            cells.note_seen(1000 + step, Seen::Gone(step), 2);
        }
        let measured = cells.read().expect("it began");
        assert_eq!(measured.part_ns, 80);
        let sums = measured.parts.iter().fold((0, 0, 0, 0), |sums, part| {
            let [used, gone] = [&part.used, &part.gone].map(|all| all.iter().sum::<u32>());
            (
                sums.0 + part.counts,
                sums.1 + part.pages,
                sums.2 + gone,
                sums.3 + used,
            )
        });
        assert_eq!(sums, (1000, 5000, 2000, 1000));
        assert_eq!(measured.parts[0].counts, 80);
        assert_eq!(measured.parts[12].counts, 40);
    }
}
