//! Which processor the sweep works on.
//!
//! To open a page, the kernel interrupts every other processor that runs the program and waits for
//! its answer: 2 us, or 20 us and more where a hypervisor carries each interrupt. The sweep is what
//! runs there. So where interrupts are expensive, and one writer alone loses more time
//! by them than its turns would cost it, the sweep shares that writer's processor, in short turns,
//! and each first write takes a fifth of what it took. So does whoever protects memory while the
//! writer goes on. Otherwise they work elsewhere.
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagetide_kernel::sync::{now_ns, thread_cpu_ns};
use pagetide_kernel::thread::{Urgency, set_urgency, shares_processor};
use rustix::thread::set_current_timer_slack;

use super::copy_aside::Shared;
use pagetide_pager::placement::CpuBinding;

/// Opening a page takes so long only if another processor has to answer.
const EXPENSIVE_NS: u64 = 6_000;
/// How often the sweep considers where to be.
const CONSIDER_NS: u64 = 1_000_000;
/// In percent of the writer's time, what its interrupts take, or would take: from the first on the
/// sweep shares its processor, until it is less than the second.
const LOST_PERCENT: (u64, u64) = (33, 20);

/// Least length of a turn on a shared processor.
const TURN_NS: u64 = 50_000;

/// Where a thread that sweeps or arms works. Dropping it leaves the thread free to work anywhere.
pub(crate) struct Placement<'a> {
    shared: &'a Shared,
    cpu_binding: CpuBinding,
    /// Changes of the writing thread seen.
    changes: u32,
    /// When it was considered last, and the faults there had been by then.
    considered: (u64, u64),
    shares: bool,
    /// Where it was kept from going last.
    refused: Option<usize>,
    /// It stays where it is.
    fixed: bool,
    /// When its turn on the shared processor began, in time of this thread's.
    turn_began_ns: u64,
}

impl<'a> Placement<'a> {
    /// Anywhere. The calling thread must be one of Pagetide's own.
    pub fn new(shared: &'a Shared) -> Placement<'a> {
        // On the writer's processor short turns follow each other closely.
        set_urgency(Urgency::Prompt);
        let _ = set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut placement = Placement::at_rest(shared);
        placement.considered = (now_ns(), shared.faults.load(Relaxed));
        placement.share(true);
        placement
    }

    /// Where the thread is, for good: it runs code of the program's, which must not find itself
    /// confined, and start threads that are.
    pub fn fixed(shared: &'a Shared) -> Placement<'a> {
        // What an earlier snapshot by the same thread has set.
        let _ = set_current_timer_slack(None);
        let mut placement = Placement::at_rest(shared);
        placement.fixed = true;
        placement
    }

    fn at_rest(shared: &'a Shared) -> Placement<'a> {
        Placement {
            shared,
            cpu_binding: CpuBinding::default(),
            changes: 0,
            considered: (0, 0),
            shares: false,
            refused: None,
            fixed: false,
            turn_began_ns: 0,
        }
    }

    /// The sweep, between blocks.
    pub fn consider(&mut self) {
        if self.fixed {
            return;
        }
        if self.shares {
            self.take_turns(self.shared.pool.fullness_percent());
        }
        let now = now_ns();
        let passed = now - self.considered.0;
        if passed < CONSIDER_NS {
            return;
        }
        let faults = self.shared.faults.load(Relaxed);
        let opened = faults - self.considered.1;
        self.considered = (now, faults);
        let lost_percent = opened * self.shared.writers.open_ns.load(Relaxed) * 100 / passed;
        let enough = match self.shares {
            true => LOST_PERCENT.1,
            false => LOST_PERCENT.0,
        };
        self.share(lost_percent >= enough);
    }

    /// Shares the writer's processor if interrupting it is expensive, there is one alone, and it is
    /// `worth` it.
    fn share(&mut self, worth: bool) {
        if self.fixed {
            return;
        }
        let writers = &self.shared.writers;
        let expensive = writers.open_ns.load(Relaxed) > EXPENSIVE_NS;
        let single = writers.processors.single(&mut self.changes);
        let beside = single
            .filter(|(thread, _)| expensive && worth && shares_processor(*thread))
            .and_then(|(_, cpu)| cpu);
        if self.refused.is_some() && self.refused == beside {
            return;
        }
        if !self.cpu_binding.go(beside) {
            return;
        }
        // It may be kept from there: the program has confined it elsewhere.
        self.shares = self.cpu_binding.kept_to().is_some();
        self.refused = beside.filter(|_| !self.shares);
        self.turn_began_ns = thread_cpu_ns();
        writers.shared.store(self.shares, Relaxed);
    }

    /// Whether the thread shares the writer's processor.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Whoever protects memory while the writer goes on, between system calls.
    pub fn share_in_turns(&mut self) {
        if self.shares {
            self.take_turns(75);
        }
        self.share(true);
    }

    /// On a shared processor, leaves the writer two thirds of the time; less where
    /// `pressure_percent` is more than fifty, down to nothing.
    fn take_turns(&mut self, pressure_percent: u64) {
        let turn_ns = thread_cpu_ns() - self.turn_began_ns;
        if turn_ns < TURN_NS {
            return;
        }
        let rest_ns = 2 * turn_ns * (2 * 100u64.saturating_sub(pressure_percent)).min(100) / 100;
        if rest_ns > 0 {
            std::thread::sleep(Duration::from_nanos(rest_ns));
        }
        self.turn_began_ns = thread_cpu_ns();
    }

    /// Works anywhere.
    pub fn leave(&mut self) {
        if self.cpu_binding.go(None) {
            self.shared.writers.shared.store(false, Relaxed);
        }
    }
}

impl Drop for Placement<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use pagetide_kernel::PAGE_SIZE;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};

    use super::*;
    use crate::guard::Guard;
    use crate::mapping::Mapping;
    use crate::memory::Memory;
    use crate::snapshot::pool::Pool;
    use crate::spans::Spans;
    use pagetide_pager::placement::only;

    /// Runs `test` in a thread of its own, so that other tests' threads stay where they are. The
    /// snapshotter's own parts, over one page that nothing protects.
    fn apart(test: impl FnOnce(&Shared) + Send + 'static) {
        let body = move || {
            let page = Mapping::new(PAGE_SIZE).unwrap();
            let memory = Memory::mapping("page", &page).unwrap();
            let spans = Spans::new(vec![memory]).unwrap();
            test(&Shared::new(
                Guard::new(spans, None),
                Pool::new(100).unwrap(),
            ));
        };
        std::thread::spawn(body).join().expect("the test failed");
    }

    fn open_at(shared: &Shared, ns: u64) {
        shared.writers.note();
        (0..100).for_each(|_| shared.writers.note_opening(ns));
    }

    #[test]
    fn it_shares_the_processor_of_a_single_writer_where_interrupts_are_expensive() {
        apart(|shared| {
            let before = sched_getaffinity(None).unwrap();
            open_at(shared, 2_000);
            let mut placement = Placement::new(shared);
            placement.share(true);
            assert!(!placement.shares(), "2 us are cheap");
            open_at(shared, 20_000);
            placement.share(true);
            assert!(placement.shares());
            assert_eq!(
                sched_getaffinity(None).unwrap(),
                only(sched_getcpu()),
                "it keeps to the writer's processor"
            );
            // What opening costs here says nothing of what it costs elsewhere.
            open_at(shared, 1_000);
            placement.share(true);
            assert!(placement.shares());
            shared.writers.processors.note_of(1, 0);
            placement.share(true);
            assert!(!placement.shares(), "there is no place beside two writers");
            placement.share(true);
            drop(placement);
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        });
    }

    #[test]
    fn it_neither_shares_nor_takes_turns_where_it_may_not_go() {
        apart(|shared| {
            let all = sched_getaffinity(None).unwrap();
            let here = sched_getcpu();
            let elsewhere = (0..CpuSet::MAX_CPU).find(|cpu| *cpu != here && all.is_set(*cpu));
            let Some(elsewhere) = elsewhere else {
                return eprintln!("skipped: one processor only");
            };
            rustix::thread::sched_setaffinity(None, &only(here)).unwrap();
            open_at(shared, 20_000);
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            shared.writers.processors.note_of(thread, elsewhere as u32);
            let mut placement = Placement::new(shared);
            assert!(!placement.shares());
            assert!(
                !shared.writers.shared.load(Relaxed),
                "it is still learnt what interrupts cost"
            );
            placement.share(true);
            assert!(!placement.shares());
            assert_eq!(sched_getaffinity(None).unwrap(), only(here));
            // The writer comes here.
            shared.writers.processors.note_of(thread, here as u32);
            placement.share(true);
            assert!(placement.shares());
            drop(placement);
            let mut fixed = Placement::fixed(shared);
            fixed.share(true);
            assert!(!fixed.shares());
        });
    }

    #[test]
    fn the_sweep_shares_only_with_a_writer_that_loses_much_by_interrupts() {
        apart(|shared| {
            open_at(shared, 20_000);
            let mut placement = Placement::new(shared);
            placement.share(false);
            let mut after = |faults: u64, of_ns: u64| {
                let since = now_ns() - of_ns;
                placement.considered = (since, shared.faults.load(Relaxed));
                shared.faults.fetch_add(faults, Relaxed);
                placement.consider();
                placement.shares()
            };
            let second = 1_000_000_000;
            assert!(!after(15_000, second), "three tenths of its time");
            assert!(after(45_000, second), "nine tenths");
            assert!(after(12_000, second), "not to and fro");
            assert!(!after(5_000, second), "a tenth");
            assert!(!after(50, CONSIDER_NS / 2), "too soon to tell");
        });
    }

    #[test]
    fn turns_leave_the_writer_time_until_room_runs_out() {
        apart(|shared| {
            let mut placement = Placement::new(shared);
            let mut rested_ns = |pressure_percent| {
                placement.turn_began_ns = thread_cpu_ns();
                while thread_cpu_ns() - placement.turn_began_ns < 2 * TURN_NS {
                    std::hint::spin_loop();
                }
                let (wall, worked) = (now_ns(), thread_cpu_ns());
                placement.take_turns(pressure_percent);
                (now_ns() - wall).saturating_sub(thread_cpu_ns() - worked)
            };
            // The clocks are read one after the other.
            assert!(rested_ns(50) >= 3 * TURN_NS);
            assert!(rested_ns(75) >= TURN_NS);
            // A thread may have to wait for other reasons, but not every time.
            let without_sleep = (0..20).any(|_| {
                let before = times_slept();
                placement.turn_began_ns = thread_cpu_ns().saturating_sub(10 * TURN_NS);
                placement.take_turns(100);
                times_slept() == before
            });
            assert!(without_sleep);
        });
    }

    /// How often the calling thread has slept.
    fn times_slept() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    }
}
