//! Which processor the pager's threads work on.
//!
//! To move a written page out, the kernel interrupts every other processor that runs the program
//! and waits for its answer. That takes 2 us, or 20 us and more where a hypervisor carries each
//! interrupt; the program loses as much. On the processor of the thread that faults there is nobody
//! to interrupt, and whoever is woken there is woken without an interrupt. So where moving is found
//! to be dear, and faults come from one thread alone, the evictor works on that thread's processor,
//! and so does the thread that serves its faults.
//!
//! Packing what was moved out interrupts nobody. For that the evictor steps aside, to a processor
//! that would else be idle, and the program goes on meanwhile.
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use pagetide_kernel::sync::now_ns;
use pagetide_kernel::thread::{control_block, shares_processor};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// A move that takes so long has waited for another processor's answer, and the evictor would be
/// better off beside the program.
const DEAR_NS: u64 = 6_000;
/// One round in so many is done elsewhere, and shows what moving costs there now.
const PROBE: u32 = 256;
/// Such a round is kept short.
pub const PROBE_PAGES: u64 = 16;
/// Packing aside may take so many times what it costs beside the program, and so much more: else
/// others are running there, or the processor takes too long to start.
const SLOW_ASIDE: (u64, u64) = (2, 100_000);
/// After that the evictor packs beside the program for so many rounds; and once after so many
/// rounds aside, to see what that costs.
const ASIDE_ROUNDS: u32 = 64;
/// One noted fault in so many asks the kernel which thread has it.
const ASK_AGAIN: u32 = 64;
/// What [`FaultProcessors::evictor`] holds while the evictor works anywhere, and the lower half of
/// `last` while the processor is not known.
const ANYWHERE: u32 = u32::MAX;

/// Where faults came from of late, and where the evictor works.
#[derive(Debug)]
pub struct FaultProcessors {
    /// The thread that faulted last (upper half), and its processor.
    last: AtomicU64,
    /// Where the control block of the thread is that noted its own fault last, and how many were
    /// noted.
    noted: (AtomicUsize, AtomicU32),
    /// How often another thread than the last one has faulted.
    changes: AtomicU32,
    /// The processor the evictor keeps to.
    evictor: AtomicU32,
    /// Its thread's ID.
    evictor_thread: AtomicU32,
    /// Interrupting another processor is dear.
    dear: AtomicBool,
}

impl Default for FaultProcessors {
    fn default() -> FaultProcessors {
        FaultProcessors {
            last: AtomicU64::new(ANYWHERE as u64),
            noted: (AtomicUsize::new(0), AtomicU32::new(0)),
            changes: AtomicU32::new(0),
            evictor: AtomicU32::new(ANYWHERE),
            evictor_thread: AtomicU32::new(0),
            dear: AtomicBool::new(false),
        }
    }
}

impl FaultProcessors {
    /// The calling thread serves a fault of its own. Mostly it is the one that did last time, which
    /// is known without asking the kernel; now and then it is asked, for a new thread may have the
    /// control block of one that has ended.
    pub fn note(&self) {
        let (block, (last_block, count)) = (control_block(), &self.noted);
        let noted = count.load(Relaxed);
        count.store(noted.wrapping_add(1), Relaxed);
        let thread = match block == last_block.load(Relaxed) && !noted.is_multiple_of(ASK_AGAIN) {
            true => (self.last.load(Relaxed) >> 32) as u32,
            false => gettid().as_raw_nonzero().get() as u32,
        };
        self.note_of(thread, sched_getcpu() as u32);
        last_block.store(block, Relaxed);
    }

    /// `thread` has faulted; where it runs is not known.
    pub fn note_thread(&self, thread: u32) {
        if (self.last.load(Relaxed) >> 32) as u32 != thread {
            self.note_of(thread, ANYWHERE);
        }
    }

    /// `thread` has faulted, and runs on processor `cpu`.
    pub fn note_of(&self, thread: u32, cpu: u32) {
        let before = self.last.load(Relaxed);
        let now = u64::from(thread) << 32 | u64::from(cpu);
        if now != before {
            self.last.store(now, Relaxed);
        }
        if (before >> 32) as u32 != thread && before >> 32 != 0 {
            self.changes.fetch_add(1, Relaxed);
        }
    }

    /// Whether the evictor waits for the processor that the calling thread runs on.
    pub fn evictor_is_here(&self) -> bool {
        self.evictor.load(Relaxed) == sched_getcpu() as u32
    }

    /// The evictor's thread ID once it has kept to a processor, else 0.
    pub fn evictor_thread(&self) -> u32 {
        self.evictor_thread.load(Relaxed)
    }

    /// As if moving had been found to be dear.
    #[cfg(test)]
    pub fn find_dear(&self) {
        self.dear.store(true, Relaxed);
    }

    /// Whether interrupting another processor was found to be dear.
    pub fn is_interrupting_dear(&self) -> bool {
        self.dear.load(Relaxed)
    }

    /// The only thread that has had faults since `changes` were seen last, if there was only one,
    /// and its processor if that is known.
    pub fn single(&self, changes: &mut u32) -> Option<(u32, Option<usize>)> {
        let before = std::mem::replace(changes, self.changes.load(Relaxed));
        let last = self.last.load(Relaxed);
        let cpu = (last as u32 != ANYWHERE).then_some((last & 0xFFFF_FFFF) as usize);
        (last >> 32 != 0 && before == *changes).then_some(((last >> 32) as u32, cpu))
    }
}

/// A thread that was told where to work.
#[derive(Debug)]
struct Bound {
    /// The processor it keeps to; none while it has stepped aside.
    beside: Option<usize>,
    /// Where it may work.
    now: CpuSet,
    /// Where it might work before.
    before: CpuSet,
}

/// Where one of the pager's threads works. Only the calling thread's place changes.
#[derive(Debug, Default)]
pub struct Workplace {
    bound: Option<Bound>,
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

impl Workplace {
    /// The evictor, before a round: goes where that is cheapest. Returns the most pages the round
    /// may have.
    ///
    /// A server that keeps to processor `server_cpu` is to be asked there: the faulting thread is
    /// to come along (`super::together`).
    pub fn choose_for_evictor(
        &mut self,
        faults: &FaultProcessors,
        server_cpu: Option<usize>,
    ) -> u64 {
        self.rounds = self.rounds.wrapping_add(1);
        let dear = self.move_ns > DEAR_NS;
        if faults.dear.load(Relaxed) != dear {
            faults.dear.store(dear, Relaxed);
        }
        let single = faults.single(&mut self.changes);
        let beside = single
            .filter(|(thread, _)| (dear || server_cpu.is_some()) && shares_processor(*thread))
            .and_then(|(thread, cpu)| server_cpu.filter(|cpu| may_run_on(thread, *cpu)).or(cpu));
        let wanted = match beside {
            Some(cpu) if self.rounds.is_multiple_of(PROBE) => self.another_than(cpu),
            other => other,
        };
        if self.go(wanted) {
            let thread = gettid().as_raw_nonzero().get() as u32;
            faults.evictor_thread.store(thread, Relaxed);
            let here = beside.filter(|_| wanted == beside);
            faults
                .evictor
                .store(here.map_or(ANYWHERE, |cpu| cpu as u32), Relaxed);
        }
        if wanted == beside {
            u64::MAX
        } else {
            PROBE_PAGES
        }
    }

    /// A processor the thread might work on, but not `cpu`.
    fn another_than(&self, cpu: usize) -> Option<usize> {
        let now = sched_getaffinity(None).ok()?;
        let may = self.bound.as_ref().map_or(&now, |bound| &bound.before);
        (0..CpuSet::MAX_CPU).find(|other| *other != cpu && may.is_set(*other))
    }

    /// `moves` moves took `ns` in all. That tells what interrupting costs, unless it was done
    /// beside the faulting thread.
    pub fn note_moves(&mut self, faults: &FaultProcessors, ns: u64, moves: u64) {
        let beside = faults.last.load(Relaxed) as u32 == sched_getcpu() as u32;
        if !beside && moves > 0 {
            self.move_ns = (3 * self.move_ns + ns / moves) / 4;
        }
    }

    /// Packs `pages` pages, by `pack`: beside the faulting thread, or, where that is known to be
    /// quick enough, on any other processor, where it then stays until the next
    /// [`Workplace::choose_for_evictor`].
    pub fn pack<R>(&mut self, pages: usize, pack: impl FnOnce() -> R) -> R {
        let pages = pages as u64;
        if self.kept_to().is_none() {
            return pack();
        }
        let (since_ns, worked_ns) = (now_ns(), thread_time_ns());
        let aside = self.pack_ns > 0 && self.stays == 0 && self.step_aside();
        let result = pack();
        if aside {
            self.asides = self.asides.wrapping_add(1);
            let most = SLOW_ASIDE.0 * self.pack_ns * pages + SLOW_ASIDE.1;
            if now_ns() - since_ns > most {
                self.stays = ASIDE_ROUNDS;
            } else if self.asides.is_multiple_of(ASIDE_ROUNDS) {
                self.stays = 1;
            }
        } else {
            self.pack_ns = (thread_time_ns() - worked_ns) / pages.max(1);
            self.stays = self.stays.saturating_sub(1);
        }
        result
    }

    /// From beside the faulting thread to any other processor. False if there is none.
    fn step_aside(&mut self) -> bool {
        let now = sched_getaffinity(None);
        // Somebody else's decision counts for more.
        let Some(bound) = self.bound.as_mut().filter(|bound| now == Ok(bound.now)) else {
            return false;
        };
        let mut others = bound.before;
        if let Some(cpu) = bound.beside {
            others.unset(cpu);
        }
        let stepped = others.count() > 0 && sched_setaffinity(None, &others).is_ok();
        if stepped {
            (bound.beside, bound.now) = (None, others);
        }
        stepped
    }

    /// Keeps to `wanted`, or to nothing. Whether that is a change.
    pub fn go(&mut self, wanted: Option<usize>) -> bool {
        let is_there = match &self.bound {
            Some(bound) => wanted.is_some() && bound.beside == wanted,
            None => wanted.is_none(),
        };
        if is_there {
            return false;
        }
        match wanted {
            Some(cpu) => self.keep_to(cpu),
            None => self.leave(),
        }
        true
    }

    /// The processor it keeps to.
    pub fn kept_to(&self) -> Option<usize> {
        self.bound.as_ref().and_then(|bound| bound.beside)
    }

    fn keep_to(&mut self, cpu: usize) {
        let Some(before) = self.unbind() else {
            return;
        };
        let now = only(cpu);
        if cpu < CpuSet::MAX_CPU && before.is_set(cpu) && sched_setaffinity(None, &now).is_ok() {
            self.bound = Some(Bound {
                beside: Some(cpu),
                now,
                before,
            });
        } else {
            let _ = sched_setaffinity(None, &before);
        }
    }

    /// Back to where it might work before.
    fn leave(&mut self) {
        if self.bound.is_some()
            && let Some(before) = self.unbind()
        {
            let _ = sched_setaffinity(None, &before);
        }
    }

    /// Where it might work if nothing had been decided here. Somebody else's decision meanwhile
    /// counts for more.
    fn unbind(&mut self) -> Option<CpuSet> {
        let now = sched_getaffinity(None).ok()?;
        let before = self.bound.take().filter(|bound| bound.now == now);
        Some(before.map_or(now, |bound| bound.before))
    }
}

/// Whether `thread`, by its ID, may run on processor `cpu`.
pub fn may_run_on(thread: u32, cpu: usize) -> bool {
    cpu < CpuSet::MAX_CPU
        && sched_getaffinity(Pid::from_raw(thread as i32)).is_ok_and(|set| set.is_set(cpu))
}

/// Processor time of the calling thread.
fn thread_time_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The set of one processor.
pub fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// On a thread of its own, so that other tests' threads stay where they are.
    fn apart(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().expect("the test failed");
    }

    #[test]
    fn it_follows_a_single_thread_while_moving_is_dear_and_goes_back() {
        apart(|| {
            let before = sched_getaffinity(None).unwrap();
            let (faults, mut place) = (FaultProcessors::default(), Workplace::default());
            place.choose_for_evictor(&faults, None);
            assert!(place.bound.is_none(), "nobody has had a fault");
            place.note_moves(&faults, 640_000, 10);
            faults.note();
            place.choose_for_evictor(&faults, None);
            let cpu = place.kept_to().expect("moving is dear");
            assert_eq!(sched_getaffinity(None).unwrap(), only(cpu));
            assert!(faults.evictor_is_here());
            // What it costs here says nothing of what it costs elsewhere.
            place.note_moves(&faults, 10, 10);
            assert!(place.move_ns > DEAR_NS);
            // The thread has moved on: so does the evictor.
            let Some(other) = (0..CpuSet::MAX_CPU).find(|c| *c != cpu && before.is_set(*c)) else {
                return;
            };
            faults.note_of((faults.last.load(Relaxed) >> 32) as u32, other as u32);
            place.choose_for_evictor(&faults, None);
            assert_eq!(sched_getaffinity(None).unwrap(), only(other));
            // Another thread faults too: there is no place beside both.
            faults.note_of(1, cpu as u32);
            place.choose_for_evictor(&faults, None);
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
            let (faults, mut place) = (FaultProcessors::default(), Workplace::default());
            let packed_on = |place: &mut Workplace, ms| {
                place.pack(10, || {
                    std::thread::sleep(Duration::from_millis(ms));
                    sched_getaffinity(None).unwrap()
                })
            };
            assert_eq!(packed_on(&mut place, 0), before, "beside nobody");
            place.note_moves(&faults, 640_000, 10);
            faults.note();
            place.choose_for_evictor(&faults, None);
            let cpu = place.kept_to().expect("moving is dear");
            assert_eq!(packed_on(&mut place, 0), only(cpu), "not known yet");
            // Half a millisecond a page, so that the machine's other work does not count.
            place.pack_ns = 500_000;
            let aside = packed_on(&mut place, 0);
            assert!(!aside.is_set(cpu) && aside.count() == before.count() - 1);
            assert_ne!(sched_getcpu(), cpu);
            place.choose_for_evictor(&faults, None);
            assert_eq!(sched_getaffinity(None).unwrap(), only(cpu));
            // It took too long, so for a while it is not tried again.
            assert_eq!(packed_on(&mut place, 30), aside);
            for _ in 0..ASIDE_ROUNDS {
                place.choose_for_evictor(&faults, None);
                assert_eq!(packed_on(&mut place, 0), only(cpu));
            }
            place.pack_ns = 500_000;
            assert_eq!(packed_on(&mut place, 0), aside);
            place.go(None);
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        });
    }

    #[test]
    fn it_stays_free_where_moving_is_cheap() {
        apart(|| {
            let (faults, mut place) = (FaultProcessors::default(), Workplace::default());
            place.note_moves(&faults, 20_000, 10);
            faults.note();
            place.choose_for_evictor(&faults, None);
            assert!(place.bound.is_none(), "2 us a move is cheap");
        });
    }

    #[test]
    fn now_and_then_it_works_elsewhere_to_learn_what_that_costs() {
        apart(|| {
            let (faults, mut place) = (FaultProcessors::default(), Workplace::default());
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
                elsewhere += u32::from(place.choose_for_evictor(&faults, None) == PROBE_PAGES);
            }
            assert_eq!(elsewhere, 4);
        });
    }
}
