//! Binding a thread to a processor, and giving back what was decided elsewhere.
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// A thread that was told where to run.
#[derive(Debug)]
struct Bound {
    /// The processor it keeps to; none while it has stepped aside.
    to: Option<usize>,
    /// Where it may run.
    now: CpuSet,
    /// Where it might run before.
    before: CpuSet,
}

/// Where the calling thread is bound to run. What somebody else decides meanwhile (a system call of
/// the program's, an operator) counts for more.
#[derive(Debug, Default)]
pub struct CpuBinding {
    bound: Option<Bound>,
}

impl CpuBinding {
    /// From the processor it keeps to, to any other. False if there is none.
    pub(super) fn step_aside(&mut self) -> bool {
        let now = sched_getaffinity(None);
        // Somebody else's decision counts for more.
        let Some(bound) = self.bound.as_mut().filter(|bound| now == Ok(bound.now)) else {
            return false;
        };
        let mut others = bound.before;
        if let Some(cpu) = bound.to {
            others.unset(cpu);
        }
        let stepped = others.count() > 0 && sched_setaffinity(None, &others).is_ok();
        if stepped {
            (bound.to, bound.now) = (None, others);
        }
        stepped
    }

    /// Keeps to `wanted`, or to nothing. Whether that is a change.
    pub fn go(&mut self, wanted: Option<usize>) -> bool {
        let is_there = match &self.bound {
            Some(bound) => wanted.is_some() && bound.to == wanted,
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
        self.bound.as_ref().and_then(|bound| bound.to)
    }

    fn keep_to(&mut self, cpu: usize) {
        let Some(before) = self.unbind() else {
            return;
        };
        let now = only(cpu);
        if cpu < CpuSet::MAX_CPU && before.is_set(cpu) && sched_setaffinity(None, &now).is_ok() {
            self.bound = Some(Bound {
                to: Some(cpu),
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

    /// A processor the thread might run on, but not `cpu`.
    pub(super) fn another_than(&self, cpu: usize) -> Option<usize> {
        let now = sched_getaffinity(None).ok()?;
        let may = self.bound.as_ref().map_or(&now, |bound| &bound.before);
        (0..CpuSet::MAX_CPU).find(|other| *other != cpu && may.is_set(*other))
    }

    /// Where it might run if nothing had been decided here. Somebody else's decision meanwhile
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

/// The set of one processor.
pub fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

/// Tests in which threads keep to a processor go one at a time: tasks that have inherited that are
/// looked for among all threads of the process, and let go.
#[cfg(test)]
pub(super) static ALONE: pagetide_kernel::sync::Mutex<()> = pagetide_kernel::sync::Mutex::new(());
