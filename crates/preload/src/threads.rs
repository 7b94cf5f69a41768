//! The agent's threads beside the scanner: what each runs.
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use pagetide_kernel::sync::{futex_wait, futex_wake};
use pagetide_kernel::thread::{RawThread, Urgency, isolate_descriptors, set_urgency};
use pagetide_pager::Evictor;
use pagetide_pager::FaultThread;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::agent::{self, Agent, Threads};
use crate::control;

/// What they are to do.
static WORK: AtomicU32 = AtomicU32::new(WAIT);
const WAIT: u32 = 0;
const BEGIN: u32 = 1;
const END: u32 = 2;

/// Makes them, on the scanner, whose table of descriptors they share; they wait until [`run`]. So
/// it is known early, before anything has happened, whether they can be had at all.
///
/// # Errors
/// The kernel's; then none of them is left.
pub fn set_out() -> Result<(), Errno> {
    WORK.store(WAIT, Ordering::Release);
    let Threads {
        fault,
        evictor,
        control,
        ..
    } = Threads::get();
    let entries: [(&RawThread, extern "C" fn(*const ()) -> !); 3] = [
        (fault, enter_fault),
        (evictor, enter_evictor),
        (control, enter_control),
    ];
    let made = entries.into_iter().try_for_each(|(thread, entry)| {
        // SAFETY: the entries never return; none of these threads runs in this process yet.
        unsafe { thread.spawn(entry, std::ptr::null(), true) }.map(drop)
    });
    made.inspect_err(|_| give_up())
}

/// Has them begin; the agent has been made.
pub fn run() {
    tell(BEGIN);
}

/// Has them end: there will be no agent.
pub fn give_up() {
    tell(END);
}

fn tell(work: u32) {
    WORK.store(work, Ordering::Release);
    futex_wake(&WORK, i32::MAX as u32);
}

/// On each of them: waits for its work.
fn begin() -> &'static Agent {
    loop {
        match WORK.load(Ordering::Acquire) {
            WAIT => futex_wait(&WORK, WAIT, None),
            BEGIN => return agent::made().expect("made before"),
            _ => end(),
        }
    }
}

extern "C" fn enter_fault(_: *const ()) -> ! {
    let pager = &begin().pager;
    set_urgency(Urgency::Prompt);
    match FaultThread::new(pager) {
        Ok(mut thread) => thread.run(),
        Err(error) => pager.end_process(&error.to_string()),
    }
    pager.end_process("the fault thread ended")
}

extern "C" fn enter_evictor(_: *const ()) -> ! {
    let pager = &begin().pager;
    Evictor::new(pager).run();
    pager.end_process("the evictor ended")
}

extern "C" fn enter_control(_: *const ()) -> ! {
    control::serve(begin());
    // Control is not needed to keep the promises; the program goes on without.
    end()
}

/// Ends the calling raw thread alone.
pub fn end() -> ! {
    loop {
        // SAFETY: exit(2) ends this thread; nothing of it is used after.
        unsafe { pagetide_kernel::fork::syscall6(60, [0; 6]) };
    }
}

/// On the scanner, before anything else: a table of descriptors with nothing but `keep`.
pub fn isolate(keep: &[RawFd]) -> Result<(), String> {
    isolate_descriptors(keep).map_err(|e| format!("close_range: {e} (Linux 5.9 is needed)"))?;
    // Whatever writes to descriptors 0 to 2 by habit must not hit a store or a userfaultfd.
    while let Ok(fd) = open(c"/dev/null", OFlags::RDWR, Mode::empty()) {
        if fd.as_raw_fd() > 2 {
            break;
        }
        let _ = fd.into_raw_fd();
    }
    Ok(())
}
