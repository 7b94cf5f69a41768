//! The agent in a forked child: threads, descriptors and a store of its own, and the memory under
//! the pager again.
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};

use pagetide_kernel::procfs;
use pagetide_pager::{Handles, Ownership};

use crate::advice::{self, Wish};
use crate::agent::{self, Agent, Kept, Threads};
use crate::birth::Birth;
use crate::counters::{identify, map_ledger};
use crate::scanner::Scanner;
use crate::{deferral, lines, share, threads};

/// What the forking thread hands to the child's scanner.
pub struct Inheritance {
    /// Descriptor numbers in the table both start with.
    pub kept: Kept,
    /// Where the parent waits to hear that the child has its threads.
    pub birth: Birth,
}

/// Of the child that has just been forked, on its way from one thread to the other.
static INHERITANCE: AtomicPtr<Inheritance> = AtomicPtr::new(std::ptr::null_mut());

/// In a forked child, on the thread that forked: builds the child's own agent and waits until
/// memory is governed again.
pub fn restart_in_child(inheritance: Box<Inheritance>) {
    agent::begin_again();
    let inheritance = Box::into_raw(inheritance);
    INHERITANCE.store(inheritance, Ordering::Release);
    let scanner = &Threads::get().scanner;
    // SAFETY: the parent's threads do not exist here, so the memory is free; the entry never
    // returns.
    if let Err(errno) = unsafe { scanner.spawn(enter_child_scanner, std::ptr::null(), false) } {
        // SAFETY: made above, and no other thread has it.
        unsafe { &*inheritance }.birth.fails(errno);
    }
    // A child that cannot be governed is ended.
    let _ = agent::wait_for_start();
}

extern "C" fn enter_child_scanner(_: *const ()) -> ! {
    let agent = agent::made().expect("governed");
    let inheritance = INHERITANCE.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: made by `restart_in_child` from a box for this thread alone.
    let Inheritance { kept, birth } = *unsafe { Box::from_raw(inheritance) };
    if let Err(reason) = set_up_child(agent, kept, birth) {
        agent
            .pager
            .end_process(&format!("a forked child cannot be governed: {reason}"));
    }
    let mut scanner = Scanner::new(agent);
    threads::run();
    agent::announce();
    scanner.run()
}

fn set_up_child(agent: &'static Agent, mut kept: Kept, birth: Birth) -> Result<(), String> {
    let Kept {
        device,
        proc,
        lines,
        share,
        ..
    } = kept;
    procfs::keep(proc.unwrap_or(-1));
    lines::keep(lines);
    let keep: Vec<RawFd> = kept.numbers().collect();
    let pager = &agent.pager;
    threads::isolate(&keep)?;
    // Before anything that others see: the parent's fork fails where there is no thread.
    match threads::set_out() {
        Ok(()) => birth.succeeds(),
        Err(errno) => birth.fails(errno),
    }
    drop(birth);
    map_ledger(&agent.config, Some(pager.ledger))?;
    // At once: what ends this process from here on is to be found in its own ledger.
    identify(pager.ledger);
    pager.reset_after_fork();
    // SAFETY: a descriptor kept open for good.
    let device_fd = device.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let policy = agent.config.wishes.policy;
    Handles::open(Ownership::Program, policy, device_fd)
        .and_then(|handles| pager.replace_handles(handles))
        .map_err(|e| e.to_string())?;
    pager
        .register_after_fork()
        .map_err(|e| format!("register memory: {e}"))?;
    // The kernel has emptied these in the child.
    advice::each(Wish::Wiped, |range| pager.empty(range));
    advice::each(Wish::Absent, |range| pager.empty(range));
    for (generation, fds) in kept.stores.iter().enumerate() {
        pager.stores.of(generation as u8).inherit(fds);
    }
    // The store's path may be out of the child's reach (a changed root directory, dropped
    // privileges); memory never is.
    let store = pagetide_store::open(&agent.config.wishes.store).or_else(|error| {
        pager.ledger.set_message(
            format!(
                "store {}: {error}; this process uses ram: instead",
                pagetide_store::redact(&agent.config.wishes.store)
            )
            .as_bytes(),
        );
        pagetide_store::open("ram:").map_err(|e| format!("store ram: {e}"))
    })?;
    kept.stores.push(store.descriptors());
    if !pager.stores.push(store) {
        return Err("too many generations of forks without exec".into());
    }
    match &pager.member {
        Some(member) => {
            if let Err(errno) = share::begin_again(member, share) {
                pager.ledger.set_message(share::told(errno).as_bytes());
            }
            deferral::begin_in_child(pager);
            pager.join_run();
            deferral::go_on_in_child(pager);
        }
        None => pager.budget.set(pager.budget.get()),
    }
    pager.divide_memory();
    *agent.kept.lock() = kept;
    Ok(())
}
