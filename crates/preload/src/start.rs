//! Starting the agent, in a fresh program and in a forked child.
//!
//! The warden thread starts first, with a descriptor table of its own, opens everything the pager
//! needs there, and starts the other threads, which share its table. The program's thread waits
//! until memory is governed.
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use pagetide_kernel::mask;
use pagetide_kernel::own::exclude;
use pagetide_kernel::procfs;
use pagetide_kernel::sync::{futex_wait, futex_wake};
use pagetide_kernel::thread::{
    RawThread, Urgency, control_block, for_each_runtime_segment, isolate_descriptors, set_urgency,
};
use pagetide_pager::Evictor;
use pagetide_pager::FaultThread;
use pagetide_pager::recorder::Recorder;
use pagetide_pager::{Handles, Ownership, Pager};
use rustix::fs::{Mode, OFlags, open};

use crate::advice::{self, Wish};
use crate::config::Config;
use crate::counters::{identify, map_ledger};
use crate::refuse::{decline, tight_limits};
use crate::{control, forking, processors, stacks, warden};

/// The agent of this process.
pub struct Agent {
    /// The launcher's wishes.
    pub config: Config,
    /// The pager.
    pub pager: Pager,
    /// Descriptors in the agent's table that a forked child needs.
    pub kept: Mutex<Kept>,
}

/// Descriptors in the agent's own table that a forked child must have as well.
#[derive(Debug, Default, Clone)]
pub struct Kept {
    /// `/dev/userfaultfd`, if it could be opened: a child may have lost the right to.
    pub device: Option<RawFd>,
    /// `/proc`, which a child may not be able to reach by name (a changed root directory).
    pub proc: Option<RawFd>,
    /// For each store generation, what it reads through.
    pub stores: Vec<Vec<RawFd>>,
    /// Write ends of the leases this process holds on its ancestors' stores.
    pub leases: Vec<RawFd>,
}

impl Kept {
    /// All of them, in the order that [`Kept::renumber`] expects.
    pub fn numbers(&self) -> impl Iterator<Item = RawFd> {
        let single = self.device.into_iter().chain(self.proc);
        let stores = self.stores.iter().flatten();
        single.chain(stores.chain(&self.leases).copied())
    }

    /// Puts other numbers in their places, as many as there are.
    pub fn renumber(&mut self, numbers: impl Iterator<Item = RawFd>) {
        let single = self.device.iter_mut().chain(&mut self.proc);
        let stores = self.stores.iter_mut().flatten();
        let places = single.chain(stores.chain(&mut self.leases));
        places
            .zip(numbers)
            .for_each(|(place, number)| *place = number);
    }
}

static AGENT: OnceLock<Agent> = OnceLock::new();
static THREADS: OnceLock<Threads> = OnceLock::new();
/// 0 starting, 1 governed, 2 refused for [`REASON`].
static STATE: AtomicU32 = AtomicU32::new(0);
static REASON: Mutex<String> = Mutex::new(String::new());

/// The agent's threads, set aside on the program's first thread.
struct Threads {
    warden: RawThread,
    fault: RawThread,
    evictor: RawThread,
    control: RawThread,
}

impl Threads {
    fn new() -> Result<Threads, rustix::io::Errno> {
        Ok(Threads {
            warden: RawThread::new()?,
            fault: RawThread::new()?,
            evictor: RawThread::new()?,
            control: RawThread::new()?,
        })
    }
}

fn threads() -> &'static Threads {
    THREADS.get().expect("set aside before any of them starts")
}

/// The agent, once the process is governed.
pub fn agent() -> Option<&'static Agent> {
    if STATE.load(Ordering::Acquire) == 1 {
        AGENT.get()
    } else {
        None
    }
}

impl Agent {
    /// Whether the threads that must live do.
    pub fn threads_live(&self) -> bool {
        threads().fault.tid() != 0 && threads().evictor.tid() != 0
    }
}

/// How many of the agent's threads run.
pub fn threads_running() -> usize {
    let Threads {
        warden,
        fault,
        evictor,
        control,
    } = threads();
    let all = [warden, fault, evictor, control];
    all.iter().filter(|thread| thread.tid() != 0).count()
}

/// Whether the warden lives; the control thread looks after it, as it does after the others.
pub fn warden_lives() -> bool {
    warden_tid() != 0
}

/// Thread ID of the agent's descriptor table's owner.
pub fn warden_tid() -> u32 {
    THREADS.get().map_or(0, |t| t.warden.tid())
}

/// Set aside for the agent's own memory: page words for all 128 TiB that a program can map (8 bytes
/// a page, 256 GiB), and 64 GiB for everything else.
const ADDRESS_SPACE_BYTES: usize = (256 + 64) << 30;

/// Called by the loader before `main`.
pub fn at_load() {
    let Some(config) = Config::from_environment() else {
        return;
    };
    // Before the program runs, which may change its environment.
    mask::read();
    // Anonymous memory under userfaultfd gets 4 KiB pages; huge pages beforehand would only have to
    // be split.
    // SAFETY: prctl(PR_SET_THP_DISABLE) takes plain numbers.
    unsafe { libc::prctl(41, 1, 0, 0, 0) };
    // Reading the environment has used the allocator already; what it mapped is on the list by now,
    // and no warden looks yet.
    if let Err(errno) = pagetide_kernel::own::arena::set_aside(ADDRESS_SPACE_BYTES, 256 << 20) {
        return decline(
            &config,
            &format!("no address space for the pager ({errno}); raise `ulimit -v`"),
        );
    }
    std::panic::set_hook(Box::new(|info| match AGENT.get() {
        Some(agent) => agent
            .pager
            .end_process(&format!("the pager failed: {info}")),
        None if is_warden() => refuse(format!("the pager failed: {info}")),
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
    // While this is the only thread: the C library takes the process for one of a single thread
    // whatever the agent starts, and then the loader's lock does not wake who waits for it.
    forking::prepare();
    processors::prepare();
    stacks::prepare();
    let started = Threads::new().map_err(|e| e.to_string()).and_then(|made| {
        let warden = &THREADS.get_or_init(|| made).warden;
        let argument = Box::into_raw(Box::new(config.clone()));
        // SAFETY: the entry never returns; the argument is a leaked box it takes over; the thread's
        // memory is a static.
        unsafe { warden.spawn(enter_warden, argument.cast(), false) }.map_err(|e| e.to_string())
    });
    if let Err(reason) = started {
        return decline(&config, &format!("no thread for the pager: {reason}"));
    }
    wait_for_start();
    match STATE.load(Ordering::Acquire) {
        1 => {}
        _ => decline(&config, &reason_of_refusal()),
    }
}

fn reason_of_refusal() -> String {
    let reason = REASON.lock();
    reason.unwrap_or_else(|held| held.into_inner()).clone()
}

fn is_warden() -> bool {
    warden_tid() == rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// On the warden thread: there will be no agent. Why is for the program's thread to say.
fn refuse(reason: String) -> ! {
    *REASON.lock().unwrap_or_else(|held| held.into_inner()) = reason;
    announce(2);
    end_thread()
}

fn wait_for_start() {
    while STATE.load(Ordering::Acquire) == 0 {
        futex_wait(&STATE, 0, None);
    }
}

fn announce(state: u32) {
    STATE.store(state, Ordering::Release);
    futex_wake(&STATE, i32::MAX as u32);
}

extern "C" fn enter_warden(argument: *const ()) -> ! {
    // SAFETY: made by `at_load` from a box for this thread alone.
    let config = unsafe { Box::from_raw(argument.cast::<Config>().cast_mut()) };
    match set_up(*config) {
        Ok(agent) => {
            if AGENT.set(agent).is_err() {
                pagetide_kernel::memory::kill_self();
            }
            let agent = AGENT.get().expect("just set");
            let mut warden = warden::Warden::new(agent);
            run_threads(agent);
            warden.sweep();
            announce(1);
            warden.run()
        }
        Err(reason) => refuse(reason + &tight_limits()),
    }
}

/// Ends the calling raw thread alone.
fn end_thread() -> ! {
    loop {
        // SAFETY: exit(2) ends this thread; nothing of it is used after.
        unsafe { pagetide_kernel::fork::syscall6(60, [0; 6]) };
    }
}

fn isolate(keep: &[RawFd]) -> Result<(), String> {
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

fn set_up(config: Config) -> Result<Agent, String> {
    isolate(&[])?;
    let device = pagetide_kernel::uffd::open_device().ok();
    let proc = procfs::open_directory().ok().map(OwnedFd::into_raw_fd);
    proc.into_iter().for_each(procfs::keep);
    let handles = Handles::open(
        Ownership::Program,
        device.as_ref().map(|d| rustix::fd::AsFd::as_fd(d)),
    )
    .map_err(|e| e.to_string())?;
    let store = pagetide_store::open(&config.store)
        .map_err(|e| format!("store {}: {e}", pagetide_store::redact(&config.store)))?;
    let ledger = map_ledger(&config, None)?;
    let pager = Pager::new(
        Ownership::Program,
        config.budget_bytes.div_ceil(4096),
        handles,
        store,
        ledger,
    )
    .map_err(|e| e.to_string())?
    .with_policy(config.policy);
    if let Some(path) = config
        .trace
        .as_ref()
        .filter(|_| config.is_launchers_child())
    {
        record_faults(&pager, path)?;
    }
    identify(ledger);
    let kept = Kept {
        device: device.map(OwnedFd::into_raw_fd),
        proc,
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

fn run_threads(agent: &'static Agent) {
    let argument = std::ptr::from_ref(agent).cast();
    let Threads {
        fault,
        evictor,
        control,
        ..
    } = threads();
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
    // SAFETY: `run_threads` passes the static agent.
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
    end_thread()
}

/// What the forking thread hands to the child's warden: descriptor numbers in the table both start
/// with.
pub struct Inheritance {
    /// See [`Kept`].
    pub kept: Kept,
}

static INHERITANCE: AtomicU64 = AtomicU64::new(0);

/// In a forked child, on the thread that forked: builds the child's own agent and waits until
/// memory is governed again.
pub fn restart_in_child(inheritance: Box<Inheritance>) {
    STATE.store(0, Ordering::Release);
    INHERITANCE.store(Box::into_raw(inheritance) as u64, Ordering::Release);
    let warden = &threads().warden;
    // SAFETY: the parent's threads do not exist here, so the memory is free; the entry never
    // returns.
    if let Err(errno) = unsafe { warden.spawn(enter_child_warden, std::ptr::null(), false) } {
        AGENT.get().expect("governed").pager.end_process(&format!(
            "no thread for the pager in the forked child: {errno}"
        ));
    }
    wait_for_start();
}

extern "C" fn enter_child_warden(_: *const ()) -> ! {
    let agent = AGENT.get().expect("governed");
    // SAFETY: made by `restart_in_child` from a box for this thread alone.
    let inheritance =
        unsafe { Box::from_raw(INHERITANCE.swap(0, Ordering::AcqRel) as *mut Inheritance) };
    if let Err(reason) = set_up_child(agent, *inheritance) {
        agent
            .pager
            .end_process(&format!("a forked child cannot be governed: {reason}"));
    }
    let mut warden = warden::Warden::new(agent);
    run_threads(agent);
    announce(1);
    warden.run()
}

fn set_up_child(agent: &'static Agent, inheritance: Inheritance) -> Result<(), String> {
    let Kept {
        device,
        proc,
        mut stores,
        leases,
    } = inheritance.kept;
    procfs::keep(proc.unwrap_or(-1));
    let keep: Vec<RawFd> = device
        .into_iter()
        .chain(proc)
        .chain(stores.iter().flatten().copied())
        .chain(leases.iter().copied())
        .collect();
    let pager = &agent.pager;
    isolate(&keep)?;
    map_ledger(&agent.config, Some(pager.ledger))?;
    // At once: what ends this process from here on is to be found in its own ledger.
    identify(pager.ledger);
    pager.reset_after_fork();
    // SAFETY: a descriptor kept open for good.
    let device_fd = device.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    pager
        .replace_handles(Handles::open(Ownership::Program, device_fd).map_err(|e| e.to_string())?)
        .map_err(|e| e.to_string())?;
    pager
        .register_after_fork()
        .map_err(|e| format!("register memory: {e}"))?;
    // The kernel has emptied these in the child.
    advice::each(Wish::Wiped, |range| pager.empty(range));
    advice::each(Wish::Absent, |range| pager.empty(range));
    for (generation, fds) in stores.iter().enumerate() {
        pager.stores.of(generation as u8).inherit(fds);
    }
    // The store's path may be out of the child's reach (a changed root directory, dropped
    // privileges); memory never is.
    let store = pagetide_store::open(&agent.config.store).or_else(|error| {
        pager.ledger.set_message(
            format!(
                "store {}: {error}; this process uses ram: instead",
                pagetide_store::redact(&agent.config.store)
            )
            .as_bytes(),
        );
        pagetide_store::open("ram:").map_err(|e| format!("store ram: {e}"))
    })?;
    stores.push(store.descriptors());
    if !pager.stores.push(store) {
        return Err("too many generations of forks without exec".into());
    }
    pager.budget.set(pager.budget.get());
    *agent
        .kept
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner()) = Kept {
        device,
        proc,
        stores,
        leases,
    };
    Ok(())
}
