//! Where the evictor works.
//!
//! To move a written page out, the kernel interrupts every other processor that runs the program
//! and waits for its answer. That takes 2 us, or 20 us and more where a hypervisor carries each
//! interrupt; the program loses as much. On the processor of the thread that faults there is nobody
//! to interrupt, and whoever is woken there is woken without an interrupt. So where moving is found
//! to be expensive, and faults come from one thread alone, the evictor works on that thread's
//! processor.
//!
//! Packing what was moved out interrupts nobody. For that the evictor steps aside, to a processor
//! that would else be idle, and the program goes on meanwhile.

use pagetide_kernel::sync::{now_ns, thread_cpu_ns};
use pagetide_kernel::thread::shares_processor;

use super::binding::{CpuBinding, may_run_on};
use super::faults::FaultProcessors;

/// A move that takes so long has waited for another processor's answer, and the evictor would be
/// better off beside the program.
const EXPENSIVE_NS: u64 = 6_000;
/// One round in so many is done elsewhere, and shows what moving costs there now.
const PROBE: u32 = 256;
/// Such a round is kept short.
const PROBE_PAGES: u64 = 16;
/// Packing aside may take so many times what it costs beside the program, and so much more: else
/// others are running there, or the processor takes too long to start.
const SLOW_ASIDE: (u64, u64) = (2, 100_000);
/// After that the evictor packs beside the program for so many rounds; and once after so many
/// rounds aside, to see what that costs.
const ASIDE_ROUNDS: u32 = 64;

/// Where the evictor works, and what it knows of what that costs.
#[derive(Debug, Default)]
pub(crate) struct EvictorPlace {
    binding: CpuBinding,
    /// What packing a page costs beside the program; 0 before that is known.
    pack_ns: u64,
    /// It packs beside the program for so many rounds.
    stays: u32,
    /// Rounds it has packed aside.
    asides: u32,
    /// Changes of the faulting thread seen.
    changes: u32,
    /// What moving a page cost on another processor than the faulting thread's.
    move_ns: u64,
    rounds: u32,
}

impl EvictorPlace {
    /// Before a round: goes where that is cheapest. Returns the most pages the round may have.
    ///
    /// A server that keeps to processor `server_cpu` is to be asked there: the faulting thread is
    /// to come along (see [`super::hold`]).
    pub(super) fn choose(&mut self, faults: &FaultProcessors, server_cpu: Option<usize>) -> u64 {
        self.rounds = self.rounds.wrapping_add(1);
        let expensive = self.move_ns > EXPENSIVE_NS;
        faults.set_interrupting_expensive(expensive);
        let single = faults.single(&mut self.changes);
        let beside = single
            .filter(|(thread, _)| (expensive || server_cpu.is_some()) && shares_processor(*thread))
            .and_then(|(thread, cpu)| server_cpu.filter(|cpu| may_run_on(thread, *cpu)).or(cpu));
        let wanted = match beside {
            Some(cpu) if self.rounds.is_multiple_of(PROBE) => self.binding.another_than(cpu),
            other => other,
        };
        if self.binding.go(wanted) {
            faults.evictor_keeps_to(beside.filter(|_| wanted == beside));
        }
        match wanted == beside {
            true => u64::MAX,
            false => PROBE_PAGES,
        }
    }

    /// `moves` moves took `ns` in all. That tells what interrupting costs, unless it was done
    /// beside the faulting thread.
    pub(super) fn note_moves(&mut self, faults: &FaultProcessors, ns: u64, moves: u64) {
        if !faults.last_was_here() && moves > 0 {
            self.move_ns = (3 * self.move_ns + ns / moves) / 4;
        }
    }

    /// Packs `pages` pages, by `pack`: beside the faulting thread, or, where that is known to be
    /// quick enough, on any other processor, where it then stays until the next round.
    pub(super) fn pack(&mut self, pages: usize, pack: &mut dyn FnMut()) {
        let pages = pages as u64;
        if self.binding.kept_to().is_none() {
            return pack();
        }
        let (since_ns, worked_ns) = (now_ns(), thread_cpu_ns());
        let aside = self.pack_ns > 0 && self.stays == 0 && self.binding.step_aside();
        pack();
        if aside {
            self.asides = self.asides.wrapping_add(1);
            let most = SLOW_ASIDE.0 * self.pack_ns * pages + SLOW_ASIDE.1;
            if now_ns() - since_ns > most {
                self.stays = ASIDE_ROUNDS;
            } else if self.asides.is_multiple_of(ASIDE_ROUNDS) {
                self.stays = 1;
            }
        } else {
            self.pack_ns = (thread_cpu_ns() - worked_ns) / pages.max(1);
            self.stays = self.stays.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::binding::{ALONE, only};
    use super::*;
    use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu};
    use std::time::Duration;

    /// On a thread of its own, so that other tests' threads stay where they are.
    fn apart(test: impl FnOnce() + Send + 'static) {
        let _alone = ALONE.lock();
        std::thread::spawn(test).join().expect("the test failed");
    }

    #[test]
    fn it_follows_a_single_thread_while_moving_is_expensive_and_goes_back() {
        apart(|| {
            let before = sched_getaffinity(None).unwrap();
            let (faults, mut place) = (FaultProcessors::default(), EvictorPlace::default());
            place.choose(&faults, None);
            assert!(place.binding.kept_to().is_none(), "nobody has had a fault");
            place.note_moves(&faults, 640_000, 10);
            faults.note();
            place.choose(&faults, None);
            let cpu = place.binding.kept_to().expect("moving is expensive");
            assert_eq!(sched_getaffinity(None).unwrap(), only(cpu));
            assert!(faults.evictor_is_here());
            // What it costs here says nothing of what it costs elsewhere.
            place.note_moves(&faults, 10, 10);
            assert!(place.move_ns > EXPENSIVE_NS);
            // The thread has moved on: so does the evictor.
            let Some(other) = (0..CpuSet::MAX_CPU).find(|c| *c != cpu && before.is_set(*c)) else {
                return;
            };
            faults.note_of(gettid().as_raw_nonzero().get() as u32, other as u32);
            place.choose(&faults, None);
            assert_eq!(sched_getaffinity(None).unwrap(), only(other));
            // Another thread faults too: there is no place beside both.
            faults.note_of(1, cpu as u32);
            place.choose(&faults, None);
            assert_eq!(sched_getaffinity(None).unwrap(), before);
            assert!(!faults.evictor_is_here());
        });
    }

    #[test]
    fn it_steps_aside_and_comes_back() {
        apart(|| {
            let before = sched_getaffinity(None).unwrap();
            if before.count() < 2 {
                return eprintln!("skipped: one processor only");
            }
            let (faults, mut place) = (FaultProcessors::default(), EvictorPlace::default());
            let packed_on = |place: &mut EvictorPlace, ms| {
                let mut set = None;
                place.pack(10, &mut || {
                    std::thread::sleep(Duration::from_millis(ms));
                    set = sched_getaffinity(None).ok();
                });
                set.unwrap()
            };
            assert_eq!(packed_on(&mut place, 0), before, "beside nobody");
            place.note_moves(&faults, 640_000, 10);
            faults.note();
            place.choose(&faults, None);
            let cpu = place.binding.kept_to().expect("moving is expensive");
            assert_eq!(packed_on(&mut place, 0), only(cpu), "not known yet");
            // A second a page, so that the machine's other work does not count.
            place.pack_ns = 1_000_000_000;
            let aside = packed_on(&mut place, 0);
            place.pack_ns = 500_000;
            assert!(!aside.is_set(cpu) && aside.count() == before.count() - 1);
            assert_ne!(sched_getcpu(), cpu);
            place.choose(&faults, None);
            assert_eq!(sched_getaffinity(None).unwrap(), only(cpu));
            // It took too long, so for a while it is not tried again.
            assert_eq!(packed_on(&mut place, 30), aside);
            for _ in 0..ASIDE_ROUNDS {
                place.choose(&faults, None);
                assert_eq!(packed_on(&mut place, 0), only(cpu));
            }
            place.pack_ns = 500_000;
            assert_eq!(packed_on(&mut place, 0), aside);
            place.binding.go(None);
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        });
    }

    #[test]
    fn it_stays_free_where_moving_is_cheap() {
        apart(|| {
            let (faults, mut place) = (FaultProcessors::default(), EvictorPlace::default());
            place.note_moves(&faults, 20_000, 10);
            faults.note();
            place.choose(&faults, None);
            assert!(place.binding.kept_to().is_none(), "2 us a move is cheap");
        });
    }

    #[test]
    fn now_and_then_it_works_elsewhere_to_learn_what_that_costs() {
        apart(|| {
            let (faults, mut place) = (FaultProcessors::default(), EvictorPlace::default());
            if sched_getaffinity(None).unwrap().count() < 2 {
                return eprintln!("skipped: one processor only");
            }
            place.note_moves(&faults, 640_000, 10);
            let (thread, cpu) = (
                gettid().as_raw_nonzero().get() as u32,
                sched_getcpu() as u32,
            );
            let mut elsewhere = 0;
            for _ in 0..4 * PROBE {
                faults.note_of(thread, cpu);
                elsewhere += u32::from(place.choose(&faults, None) == PROBE_PAGES);
            }
            assert_eq!(elsewhere, 4);
        });
    }
}
