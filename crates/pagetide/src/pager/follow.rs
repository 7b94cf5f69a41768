//! Which processor the evictor works on.
//!
//! To move a written page out, the kernel interrupts every other processor that runs the program and waits for its answer. That takes 2 us, or 20 us and
//! more where a hypervisor carries each interrupt; the program loses as much. On the processor of the thread that faults there is nobody to
//! interrupt. So where moving is found to be dear, and faults come from one processor alone, the evictor works there.
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use pagetide_kernel::thread::shares_processor;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// A move that takes so long has waited for another processor's answer, and the evictor would be better off beside the program.
const DEAR_NS: u64 = 6_000;
/// One round in so many is done anywhere, and shows what moving costs there now.
const PROBE: u32 = 128;
/// What [`FaultProcessors::evictor`] holds while the evictor works anywhere.
const ANYWHERE: u32 = u32::MAX;

/// Where faults were served of late, and where the evictor works.
#[derive(Debug)]
pub struct FaultProcessors {
    /// The thread that served its own fault last (upper half), and its processor.
    last: AtomicU64,
    /// Several threads did, since the evictor looked.
    several: AtomicBool,
    /// The processor the evictor keeps to.
    evictor: AtomicU32,
}

impl Default for FaultProcessors {
    fn default() -> FaultProcessors {
        FaultProcessors {
            last: AtomicU64::new(0),
            several: AtomicBool::new(false),
            evictor: AtomicU32::new(ANYWHERE),
        }
    }
}

impl FaultProcessors {
    /// The calling thread serves a fault of its own.
    pub fn note(&self) {
        let thread = gettid().as_raw_nonzero().get() as u64;
        self.note_of(thread, sched_getcpu() as u64);
    }

    fn note_of(&self, thread: u64, cpu: u64) {
        let before = self.last.load(Relaxed);
        let now = thread << 32 | cpu;
        if now != before {
            self.last.store(now, Relaxed);
        }
        if before >> 32 != thread && before != 0 {
            self.several.store(true, Relaxed);
        }
    }

    /// Whether the evictor waits for the processor that the calling thread runs on.
    pub fn evictor_is_here(&self) -> bool {
        self.evictor.load(Relaxed) == sched_getcpu() as u32
    }

    /// The only thread that has had faults since the last call, if there was only one, and its processor.
    fn take_single(&self) -> Option<(u32, usize)> {
        let several = self.several.swap(false, Relaxed);
        let last = self.last.load(Relaxed);
        (last != 0 && !several).then_some(((last >> 32) as u32, (last & 0xFFFF_FFFF) as usize))
    }
}

/// Where the evictor works, and what moving cost where it was free to work anywhere.
#[derive(Debug, Default)]
pub struct Workplace {
    /// The processor it keeps to, and where it might work before.
    bound: Option<(usize, CpuSet)>,
    move_ns: u64,
    rounds: u32,
}

impl Workplace {
    /// Before a round: goes where that is cheapest. Only the calling thread's place changes.
    pub fn choose(&mut self, faults: &FaultProcessors) {
        self.rounds = self.rounds.wrapping_add(1);
        let single = faults.take_single();
        let wanted = single
            .filter(|_| self.move_ns > DEAR_NS && !self.rounds.is_multiple_of(PROBE))
            .filter(|(thread, _)| shares_processor(*thread))
            .map(|(_, cpu)| cpu);
        if self.bound.as_ref().map(|(cpu, _)| *cpu) == wanted {
            return;
        }
        self.leave();
        if let Some(cpu) = wanted {
            self.keep_to(cpu);
        }
        let here = self.bound.as_ref().map_or(ANYWHERE, |(cpu, _)| *cpu as u32);
        faults.evictor.store(here, Relaxed);
    }

    /// `moves` moves took `ns` in all.
    pub fn note_moves(&mut self, ns: u64, moves: u64) {
        if self.bound.is_none() && moves > 0 {
            self.move_ns = (3 * self.move_ns + ns / moves) / 4;
        }
    }

    fn keep_to(&mut self, cpu: usize) {
        let Ok(before) = sched_getaffinity(None) else {
            return;
        };
        if cpu < CpuSet::MAX_CPU
            && before.is_set(cpu)
            && sched_setaffinity(None, &only(cpu)).is_ok()
        {
            self.bound = Some((cpu, before));
        }
    }

    /// Back to where it might work before, unless somebody has decided otherwise meanwhile.
    fn leave(&mut self) {
        if let Some((cpu, before)) = self.bound.take()
            && sched_getaffinity(None).is_ok_and(|now| now == only(cpu))
        {
            let _ = sched_setaffinity(None, &before);
        }
    }
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a thread of its own, so that other tests' threads stay where they are.
    fn apart(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().expect("the test failed");
    }

    #[test]
    fn it_follows_a_single_thread_while_moving_is_dear_and_goes_back() {
        apart(|| {
            let before = sched_getaffinity(None).unwrap();
            let (faults, mut place) = (FaultProcessors::default(), Workplace::default());
            place.choose(&faults);
            assert!(place.bound.is_none(), "nobody has had a fault");
            place.note_moves(640_000, 10);
            faults.note();
            place.choose(&faults);
            let (cpu, _) = place.bound.expect("moving is dear");
            assert_eq!(sched_getaffinity(None).unwrap(), only(cpu));
            assert!(faults.evictor_is_here());
            // What it costs here says nothing of what it costs elsewhere.
            place.note_moves(10, 10);
            assert!(place.move_ns > DEAR_NS);
            // The thread has moved on: so does the evictor.
            let Some(other) = (0..CpuSet::MAX_CPU).find(|c| *c != cpu && before.is_set(*c)) else {
                return;
            };
            faults.note_of(faults.last.load(Relaxed) >> 32, other as u64);
            place.choose(&faults);
            assert_eq!(sched_getaffinity(None).unwrap(), only(other));
            // Another thread faults too: there is no place beside both.
            faults.note_of(1, cpu as u64);
            place.choose(&faults);
            assert_eq!(sched_getaffinity(None).unwrap(), before);
            assert!(!faults.evictor_is_here());
        });
    }

    #[test]
    fn it_stays_free_where_moving_is_cheap() {
        apart(|| {
            let (faults, mut place) = (FaultProcessors::default(), Workplace::default());
            place.note_moves(20_000, 10);
            faults.note();
            place.choose(&faults);
            assert!(place.bound.is_none(), "2 us a move is cheap");
        });
    }

    #[test]
    fn now_and_then_it_works_anywhere_to_learn_what_that_costs() {
        apart(|| {
            let (faults, mut place) = (FaultProcessors::default(), Workplace::default());
            place.note_moves(640_000, 10);
            let mut free = 0;
            for _ in 0..4 * PROBE {
                faults.note();
                place.choose(&faults);
                free += u32::from(place.bound.is_none());
            }
            assert_eq!(free, 4);
        });
    }
}
