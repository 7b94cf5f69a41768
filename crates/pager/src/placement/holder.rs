//! The part of the thread that holds the program's thread: the fault thread, or, where threads
//! serve their own faults, the evictor.
use pagetide_kernel::thread::{processor_of, shares_processor};
use rustix::thread::sched_getcpu;

use super::binding::{CpuBinding, may_run_on};
use super::faults::FaultProcessors;
use super::hold::HeldThread;

/// How often the fault thread considers where to be: that takes some 5 us.
const CONSIDER_NS: u64 = 500_000;
/// Without a fault for so long, the thread is let go.
pub(crate) const QUIET_NS: u64 = 2_000_000;
/// How often tasks that the held thread began are looked for.
const INHERITED_NS: u64 = 30_000_000;
/// How long a thread is held at most before the scheduler decides again, and how long it is left
/// to.
const TURN_NS: (u64, u64) = (500_000_000, 2_000_000);
/// The part of the thread that holds: the fault thread, or, where threads serve their own faults,
/// the evictor.
#[derive(Debug, Default)]
pub struct Holder {
    binding: CpuBinding,
    /// The thread's place is chosen elsewhere: it holds whoever is there already.
    stays: bool,
    /// Changes of the faulting thread seen.
    changes: u32,
    considered_ns: u64,
    inherited_ns: u64,
    held_since_ns: u64,
}

impl Holder {
    /// For the evictor, which has a [`super::evictor::EvictorPlace`] of its own.
    pub fn where_it_is() -> Holder {
        Holder {
            stays: true,
            ..Holder::default()
        }
    }

    /// Whether it is time to consider again.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns - self.considered_ns >= CONSIDER_NS
    }

    /// After a round of work at `now_ns`. Where a server that keeps to processor `server_cpu` has
    /// the pages, all go there.
    pub fn consider(
        &mut self,
        held: &HeldThread,
        faults: &FaultProcessors,
        server_cpu: Option<usize>,
        now_ns: u64,
    ) {
        if !self.is_due(now_ns) {
            return;
        }
        self.considered_ns = now_ns;
        let single = faults.single(&mut self.changes);
        let worth_it = faults.is_interrupting_expensive() || server_cpu.is_some();
        let wanted = single.filter(|(thread, _)| worth_it && shares_processor(*thread));
        let Some((thread, _)) = wanted else {
            return self.leave(held, faults);
        };
        if !held.is_holding() {
            if held.is_excused(now_ns) {
                return self.leave(held, faults);
            }
            let server_cpu = server_cpu.filter(|cpu| may_run_on(thread, *cpu));
            let Some(cpu) = server_cpu
                .map(|cpu| cpu as u32)
                .or_else(|| processor_of(thread))
            else {
                return self.leave(held, faults);
            };
            if self.stays {
                if sched_getcpu() as u32 != cpu {
                    return;
                }
            } else {
                self.binding.go(Some(cpu as usize));
            }
            if held.hold(thread, cpu as usize, now_ns) {
                (self.held_since_ns, self.inherited_ns) = (now_ns, now_ns);
            } else if held.is_excused(now_ns) {
                // It asked to be let go in this very moment.
                return self.leave(held, faults);
            }
            faults.note_of(thread, cpu);
        } else if !held.is(thread) || now_ns - self.held_since_ns > TURN_NS.0 {
            self.leave(held, faults);
            held.not_before(now_ns + TURN_NS.1);
        } else if now_ns - self.inherited_ns > INHERITED_NS {
            self.inherited_ns = now_ns;
            held.free_inherited(faults.evictor_thread());
        }
    }

    /// Everybody may run anywhere.
    pub fn leave(&mut self, held: &HeldThread, faults: &FaultProcessors) {
        held.release(faults.evictor_thread());
        self.binding.go(None);
    }
}

#[cfg(test)]
mod tests;
