//! The agent's threads beside the scanner: what each runs.
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};

use pagetide_kernel::thread::{RawThread, Urgency, isolate_descriptors, set_urgency};
use pagetide_pager::Evictor;
use pagetide_pager::FaultThread;
use rustix::fs::{Mode, OFlags, open};

use crate::agent::{Agent, Threads};
use crate::control;

/// Starts them. They share the table of descriptors of the calling thread, the scanner.
pub fn run(agent: &'static Agent) {
    let argument = std::ptr::from_ref(agent).cast();
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
    for (thread, entry) in entries {
        // SAFETY: the entries never return; the agent is a static; none of these threads runs in
        // this process yet.
        if let Err(errno) = unsafe { thread.spawn(entry, argument, true) } {
            agent
                .pager
                .end_process(&format!("no thread for the pager: {errno}"));
        }
    }
}

fn argument(argument: *const ()) -> &'static Agent {
    // SAFETY: `run` passes the static agent.
    unsafe { &*argument.cast() }
}

extern "C" fn enter_fault(this: *const ()) -> ! {
    let pager = &argument(this).pager;
    set_urgency(Urgency::Prompt);
    match FaultThread::new(pager) {
        Ok(mut thread) => thread.run(),
        Err(error) => pager.end_process(&error.to_string()),
    }
    pager.end_process("the fault thread ended")
}

extern "C" fn enter_evictor(this: *const ()) -> ! {
    let pager = &argument(this).pager;
    Evictor::new(pager).run();
    pager.end_process("the evictor ended")
}

extern "C" fn enter_control(this: *const ()) -> ! {
    control::serve(argument(this));
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
