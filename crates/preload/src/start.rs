//! Starting the agent in a fresh program.
//!
//! The scanner starts first, with a descriptor table of its own, opens everything the pager
//! needs there, and starts the other threads, which share its table. The program's thread waits
//! until memory is governed.
use std::os::fd::{AsFd as _, FromRawFd as _, IntoRawFd, OwnedFd};

use pagetide_kernel::loaded::for_each_runtime_segment;
use pagetide_kernel::own::exclude;
use pagetide_kernel::sync::Mutex;
use pagetide_kernel::thread::control_block;
use pagetide_kernel::{mask, procfs};
use pagetide_pager::protocol::environment::passed_on;
use pagetide_pager::protocol::refusal::Refusal;
use pagetide_pager::recorder::Recorder;
use pagetide_pager::{Handles, Ownership, Pager};

use crate::agent::{self, Agent, Kept, Threads};
use crate::config::Config;
use crate::counters::{self, identify, map_ledger};
use crate::refuse::{be_quiet_from_here_on, decline, decline_directory, no_thread, with_limits};
use crate::scanner::Scanner;
use crate::{deferral, forking, lines, processors, share, stacks, standard_error, threads};

/// Set aside for the agent's own memory: page words for all 128 TiB that a program can map (8 bytes
/// a page, 256 GiB), and 64 GiB for everything else.
const ADDRESS_SPACE_BYTES: usize = (256 + 64) << 30;

/// Called by the loader before `main`.
pub fn at_load() {
    let Some(mut config) = Config::from_environment() else {
        return;
    };
    // Before the program runs, which may change its environment.
    mask::read();
    if let Some(owner) = config.foreign_owner() {
        return decline_directory(&config, owner);
    }
    // Reading the environment has used the allocator already; what it mapped is on the list by now,
    // and no scanner looks yet.
    if let Err(errno) = pagetide_kernel::own::arena::set_aside(ADDRESS_SPACE_BYTES, 256 << 20) {
        let text = format!("no address space for the pager ({errno}); raise `ulimit -v`");
        return decline(&config, &text.into());
    }
    std::panic::set_hook(Box::new(|info| match agent::made() {
        Some(agent) => agent
            .pager
            .end_process(&format!("the pager failed: {info}")),
        None if is_scanner() => refuse(format!("the pager failed: {info}").into()),
        None => eprintln!("pagetide: the agent failed: {info}"),
    }));
    for_each_runtime_segment(|address, len| {
        let _ = exclude(address, len);
    });
    // The main thread's control block and static thread-local variables, which the kernel and the C
    // library touch during a fork.
    let _ = exclude(
        (control_block() - (64 << 10)) & !4095,
        (64 << 10) + (16 << 10),
    );
    // Executed with other rights than the launcher's. Said once it is governed; the environment is
    // changed while this is the only thread, and what is passed on with it.
    let is_unseen = config.is_unseen();
    if is_unseen {
        be_quiet_from_here_on();
        config.variables = passed_on();
    }
    // While this is the only thread: the C library takes the process for one of a single thread
    // whatever the agent starts, and then the loader's lock does not wake who waits for it.
    forking::prepare();
    processors::prepare();
    stacks::prepare();
    let started = Threads::set_aside().and_then(|made| {
        let argument = Box::into_raw(Box::new(config.clone()));
        // SAFETY: the entry never returns; the argument is a leaked box it takes over; the thread's
        // memory is a static.
        unsafe { made.scanner.spawn(enter_scanner, argument.cast(), false) }
    });
    if let Err(errno) = started {
        return decline(&config, &no_thread(errno).into());
    }
    if let Err(refusal) = agent::wait_for_start() {
        decline(&config, &refusal);
    }
    if is_unseen && agent::agent().is_some() {
        eprintln!(
            "pagetide: process {} is governed, and it and what it starts are in no statistics{}: \
             nothing can be written to the run's directory {}",
            std::process::id(),
            match config.wishes.per_run {
                true => " and have no part in the run's common budget, but one of that size each",
                false => "",
            },
            config.wishes.run_dir.display()
        );
    }
    // By now there is a ledger, by which others see that the run goes on.
    if let Some(number) = config.left_open {
        // SAFETY: left open for this library by the launcher; the program does not run yet and
        // knows nothing of it.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

fn is_scanner() -> bool {
    agent::scanner_tid() == rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// On the scanner: there will be no agent.
fn refuse(refusal: Refusal) -> ! {
    threads::give_up();
    agent::refuse(refusal);
    threads::end()
}

extern "C" fn enter_scanner(argument: *const ()) -> ! {
    // SAFETY: made by `at_load` from a box for this thread alone.
    let config = unsafe { Box::from_raw(argument.cast::<Config>().cast_mut()) };
    match set_up(*config) {
        Ok(agent) => {
            let agent = agent::make(agent);
            let mut scanner = Scanner::new(agent);
            let is_deferred = is_deferred(agent);
            threads::run();
            if !is_deferred {
                scanner.sweep();
            }
            agent::announce();
            scanner.run()
        }
        Err(mut refusal) => {
            refusal.text = with_limits(&refusal.text);
            refuse(refusal)
        }
    }
}

/// Whether registration is deferred, which is settled here, before the pager's threads run. A trace
/// is of all faults, and a use of memory that is not registered cannot be seen where the need is
/// measured. (A bound on all memory and a budget that follows the program move each other.)
fn is_deferred(agent: &Agent) -> bool {
    let wishes = &agent.config.wishes;
    // Before the other threads ask: a fork would not wait for whoever is about to be told.
    pagetide_kernel::thread::processors();
    let moves = wishes.automatic.is_some() && wishes.memory_bytes.is_some();
    let can_wait = wishes.trace.is_none() && !wishes.measure && !moves;
    let deferred = can_wait && deferral::begin(&agent.pager);
    // Where pages are evicted in place, a huge one would go only as a whole.
    if !deferred || !agent.pager.handles().can_move() {
        deferral::disable_huge_pages();
    }
    deferred
}

fn set_up(config: Config) -> Result<Agent, Refusal> {
    threads::isolate(&[])?;
    threads::set_out().map_err(no_thread)?;
    let device = pagetide_kernel::uffd::open_device().ok();
    let proc = procfs::open_directory().ok().map(OwnedFd::into_raw_fd);
    proc.into_iter().for_each(procfs::keep);
    let wishes = &config.wishes;
    let device_fd = device.as_ref().map(|device| device.as_fd());
    let handles =
        Handles::open(Ownership::Program, wishes.policy, device_fd).map_err(|e| e.to_string())?;
    let store = pagetide_store::open(&wishes.store).map_err(|e| {
        let uri = pagetide_store::redact(&wishes.store);
        Refusal::of_store(format!("store {uri}: {e}"))
    })?;
    let lines = lines::begin(&wishes.run_dir);
    let ledger = map_ledger(&config, None)?;
    let budget_pages = wishes.budget_bytes.div_ceil(4096);
    let mut pager = Pager::new(Ownership::Program, budget_pages, handles, store, ledger)
        .map_err(|e| e.to_string())?
        .with_policy(wishes.policy);
    pager = pager.with_teller(match wishes.exec {
        Some(_) => standard_error::tell,
        None => counters::tell_of_loss,
    });
    let share = match share::open_own(&config) {
        Ok(share) => share,
        Err(errno) if config.is_first => return Err(share::told(errno).into()),
        Err(errno) => {
            ledger.set_message(share::told(errno).as_bytes());
            None
        }
    };
    if share.is_some()
        && let Some(warning) = share::warning()
    {
        ledger.set_message(warning.as_bytes());
    }
    let file = share.as_ref().map(|share| share.file);
    if let Some(share) = share {
        pager = pager.with_member(share.member);
    }
    if let Some(path) = &wishes.trace
        && config.is_launchers_child()
    {
        record_faults(&pager, path)?;
    }
    if let Some(automatic) = wishes.automatic {
        pager = pager.with_automatic(automatic);
    }
    if let Some(bytes) = wishes.memory_bytes {
        pager = pager.with_memory(bytes);
    }
    if wishes.measure {
        pager.measure_until(u64::MAX);
    }
    identify(ledger);
    let kept = Kept {
        device: device.map(OwnedFd::into_raw_fd),
        proc,
        lines,
        share: file,
        stores: vec![pager.stores.active().descriptors()],
        leases: vec![],
    };
    Ok(Agent {
        pager,
        kept: Mutex::new(kept),
        config,
    })
}

/// The most faults a trace has room for: 128 MiB, of which a sparse file takes what is used.
const TRACE_RECORDS: usize = 16 << 20;

/// Has the faults recorded in the file the launcher has made.
fn record_faults(pager: &Pager, path: &std::path::Path) -> Result<(), String> {
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .and_then(|file| Recorder::new(&file, TRACE_RECORDS))
        .map(|recorder| pager.set_recorder(recorder))
        .map_err(|error| format!("trace {}: {error}", path.display()))
}
