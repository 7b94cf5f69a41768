use std::process::Command;
use std::sync::mpsc::{Sender, channel};

use pagetide_kernel::sync::now_ns;
use pagetide_kernel::thread::processor_of;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

use super::super::binding::{ALONE, only};
use super::super::hold::RESPITE_NS;
use super::*;

/// A thread whose faults would be served, which does what it is told.
struct Program {
    id: u32,
    errands: Sender<Box<dyn FnOnce() + Send>>,
}

impl Program {
    fn start() -> Program {
        let (errands, todo) = channel::<Box<dyn FnOnce() + Send>>();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            tell.send(gettid().as_raw_nonzero().get() as u32).unwrap();
            todo.into_iter().for_each(|errand| errand());
        });
        let id = told.recv().unwrap();
        Program { id, errands }
    }

    /// What `errand`, done in that thread, says.
    fn ask<T: Send + 'static>(&self, errand: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        let errand = move || tell.send(errand()).unwrap();
        self.errands.send(Box::new(errand)).unwrap();
        told.recv().unwrap()
    }

    fn processors(&self) -> u32 {
        sched_getaffinity(Pid::from_raw(self.id as i32))
            .unwrap()
            .count()
    }
}

fn processors_in_status(status: &str) -> u32 {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed:"))
        .unwrap();
    mask.chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(u32::count_ones)
        .sum()
}

/// The test, on a thread of its own that plays the fault thread; `program` has had a fault, and
/// interrupts are expensive.
fn beside(test: impl FnOnce(&HeldThread, &FaultProcessors, &mut Holder, Program) + Send + 'static) {
    let all = sched_getaffinity(None).unwrap().count();
    if all < 2 {
        return eprintln!("skipped: one processor only");
    }
    let _alone = ALONE.lock();
    std::thread::spawn(|| {
        let (held, faults) = (HeldThread::default(), FaultProcessors::default());
        let (mut beside, program) = (Holder::default(), Program::start());
        faults.set_interrupting_expensive(true);
        faults.note_thread(program.id);
        test(&held, &faults, &mut beside, program);
    })
    .join()
    .expect("the test failed");
}

#[test]
fn a_thread_is_held_beside_the_fault_thread_until_it_is_let_go() {
    beside(|held, faults, beside, program| {
        let all = program.processors();
        beside.consider(held, faults, None, now_ns());
        assert!(held.is_holding());
        assert_eq!(program.processors(), 1);
        let id = Pid::from_raw(program.id as i32);
        assert_eq!(
            sched_getaffinity(None).unwrap(),
            sched_getaffinity(id).unwrap()
        );
        held.let_go();
        assert_eq!(program.processors(), all);
        // Not at once again; the fault thread goes back to where it might run before.
        beside.considered_ns = 0;
        beside.consider(held, faults, None, now_ns());
        assert_eq!(program.processors(), all);
        assert_eq!(sched_getaffinity(None).unwrap().count(), all);
        beside.considered_ns = 0;
        beside.consider(held, faults, None, now_ns() + RESPITE_NS);
        assert_eq!(program.processors(), 1);
        beside.leave(held, faults);
        assert_eq!(program.processors(), all);
    });
}

#[test]
fn nobody_is_held_where_interrupts_are_cheap_or_two_threads_fault() {
    beside(|held, faults, beside, program| {
        beside.consider(held, &FaultProcessors::default(), None, now_ns());
        assert!(!held.is_holding());
        beside.considered_ns = 0;
        beside.consider(held, faults, None, now_ns());
        assert!(held.is_holding());
        faults.note_thread(1);
        faults.note_thread(program.id);
        beside.considered_ns = 0;
        beside.consider(held, faults, None, now_ns());
        assert!(!held.is_holding());
        assert!(program.processors() > 1);
    });
}

#[test]
fn the_evictor_holds_a_thread_where_it_is_itself_and_nowhere_else() {
    beside(|held, faults, _, program| {
        let mut beside = Holder::where_it_is();
        let cpu = processor_of(program.id).unwrap() as usize;
        let all = sched_getaffinity(None).unwrap();
        let elsewhere = (0..CpuSet::MAX_CPU).find(|other| *other != cpu && all.is_set(*other));
        sched_setaffinity(None, &only(elsewhere.unwrap())).unwrap();
        beside.consider(held, faults, None, now_ns());
        assert!(!held.is_holding(), "it would keep it from coming here");
        sched_setaffinity(None, &only(cpu)).unwrap();
        beside.considered_ns = 0;
        beside.consider(held, faults, None, now_ns());
        assert_eq!((held.is_holding(), program.processors()), (true, 1));
        sched_setaffinity(None, &all).unwrap();
        beside.leave(held, faults);
        assert_eq!(program.processors(), all.count());
        assert_eq!(
            sched_getaffinity(None).unwrap(),
            all,
            "its own place is not the Holder's to choose"
        );
    });
}

#[test]
fn all_go_to_the_processor_of_a_server_however_cheap_interrupts_are() {
    beside(|held, _, beside, program| {
        let faults = FaultProcessors::default();
        faults.note_thread(program.id);
        let at = processor_of(program.id).unwrap() as usize;
        let all = sched_getaffinity(None).unwrap();
        let another = (0..CpuSet::MAX_CPU).find(|cpu| *cpu != at && all.is_set(*cpu));
        beside.consider(held, &faults, another, now_ns());
        assert!(held.is_holding());
        let of_program = sched_getaffinity(Pid::from_raw(program.id as i32)).unwrap();
        assert_eq!(of_program, only(another.unwrap()));
        assert_eq!(sched_getaffinity(None).unwrap(), of_program);
        beside.leave(held, &faults);
        assert_eq!(program.processors(), all.count());
    });
}

#[test]
fn a_thread_that_may_not_run_where_a_server_does_is_held_where_it_is() {
    beside(|held, faults, beside, program| {
        let nowhere = CpuSet::MAX_CPU - 1;
        beside.consider(held, faults, Some(nowhere), now_ns());
        assert_eq!((held.is_holding(), program.processors()), (true, 1));
        beside.leave(held, faults);
    });
}

#[test]
fn the_scheduler_has_its_turn() {
    beside(|held, faults, beside, program| {
        let start = now_ns();
        beside.consider(held, faults, None, start);
        assert!(held.is_holding());
        beside.consider(held, faults, None, start + TURN_NS.0 + 1);
        assert_eq!((held.is_holding(), program.processors() > 1), (false, true));
        beside.consider(held, faults, None, start + TURN_NS.0 + TURN_NS.1 / 2);
        assert!(!held.is_holding());
        beside.consider(
            held,
            faults,
            None,
            start + TURN_NS.0 + TURN_NS.1 + CONSIDER_NS,
        );
        assert!(held.is_holding());
        beside.leave(held, faults);
    });
}

#[test]
fn threads_and_programs_begun_unseen_are_let_go_too() {
    beside(|held, faults, beside, program| {
        let all = program.processors();
        let worker = Program::start();
        let cpu = processor_of(program.id).unwrap() as usize;
        worker.ask(move || sched_setaffinity(None, &only(cpu)).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        beside.consider(held, faults, None, now_ns());
        let (heir, mut child) = program.ask(|| {
            let child = Command::new("sleep").arg("60").spawn().unwrap();
            (Program::start(), child)
        });
        let of_child = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
            processors_in_status(&status.unwrap())
        };
        assert_eq!((heir.processors(), of_child()), (1, 1), "they inherit");
        beside.considered_ns = 0;
        beside.consider(held, faults, None, now_ns() + INHERITED_NS + 1);
        assert!(held.is_holding());
        assert_eq!((heir.processors(), of_child()), (all, all));
        assert_eq!(worker.processors(), 1, "confined by its own wish before");
        assert_eq!(program.processors(), 1);
        assert_eq!(
            sched_getaffinity(None).unwrap().count(),
            1,
            "the fault thread is no heir"
        );
        beside.leave(held, faults);
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

#[test]
fn who_was_confined_by_somebody_else_stays_so() {
    beside(|held, faults, beside, program| {
        program.ask(|| sched_setaffinity(None, &only(0)).unwrap());
        beside.consider(held, faults, None, now_ns());
        assert!(!held.is_holding());
        beside.leave(held, faults);
        assert_eq!(program.processors(), 1);
    });
}
