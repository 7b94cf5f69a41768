//! Thread stacks are not governed: `pthread_create` is stood before so that a new thread says where
//! its stack is.
//!
//! That ends only when the kernel says that the thread is no more. Its last act is a write to the
//! stack, which tells those that join the thread, and which does not wait for a missing page: it
//! would be left out.
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagetide_kernel::syscall::syscall6;
use pagetide_kernel::{PageNumber, PageRange, own};
use pagetide_pager::page::word::Word;
use pagetide_pager::requests::{Completion, Request};

use crate::agent::agent;
use crate::next::Next;
use crate::processors;
use crate::scratch_stack;

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Start,
    *mut c_void,
) -> i32;

static CREATE: Next = Next::new(c"pthread_create");

/// Looks up what will be needed later.
pub fn prepare() {
    Next::prepare(&[&CREATE]);
}

/// A thread-specific key whose destructor takes the stack off the list when the thread ends,
/// however it does. 0 not made, else key + 1.
static KEY: AtomicU32 = AtomicU32::new(0);

struct Begin {
    start: Start,
    argument: *mut c_void,
}

/// Stands before `pthread_create`.
///
/// # Safety
/// As `pthread_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> i32 {
    // SAFETY: the C library's `pthread_create`.
    let next: Create = unsafe { std::mem::transmute(CREATE.address()) };
    if agent().is_none() {
        // SAFETY: passed through.
        return unsafe { next(thread, attributes, start, argument) };
    }
    // From the program's `malloc`, as any library would: the agent's allocator has a lock that a
    // thread on a governed stack must not hold.
    // SAFETY: room for one `Begin`.
    let begin = unsafe { libc::malloc(size_of::<Begin>()) }.cast::<Begin>();
    if begin.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: fresh, large enough, aligned by `malloc`.
    unsafe { begin.write(Begin { start, argument }) };
    // SAFETY: as the caller's call, with our own start routine, which takes over `begin`.
    let result =
        processors::with_none_held(|| unsafe { next(thread, attributes, on_start, begin.cast()) });
    if result != 0 {
        // SAFETY: no thread was made, so it is still ours.
        unsafe { libc::free(begin.cast()) };
    }
    result
}

extern "C" fn on_start(begin: *mut c_void) -> *mut c_void {
    // SAFETY: made by `pthread_create` above for this thread alone.
    let Begin { start, argument } = unsafe {
        let taken = begin.cast::<Begin>().read();
        libc::free(begin);
        taken
    };
    note_scratch_stack();
    start(argument)
}

fn note_scratch_stack() {
    let mut key = KEY.load(Ordering::Acquire);
    if key == 0 {
        let mut made = 0;
        // SAFETY: makes a key with a destructor that lives as long as this library.
        if unsafe { libc::pthread_key_create(&mut made, Some(forget_stack)) } != 0 {
            return;
        }
        match KEY.compare_exchange(0, made + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => key = made + 1,
            Err(other) => {
                // SAFETY: our own spare key.
                unsafe { libc::pthread_key_delete(made) };
                key = other;
            }
        }
    }
    // SAFETY: attributes of the calling thread, initialised by the first call and destroyed by the
    // last.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        let (mut address, mut size) = (std::ptr::null_mut(), 0);
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return;
        }
        let found = libc::pthread_attr_getstack(&attributes, &mut address, &mut size) == 0;
        libc::pthread_attr_destroy(&mut attributes);
        if found && let Some(exclusion) = own::exclude(address as usize, size) {
            let value = exclusion.index() as usize + 1;
            libc::pthread_setspecific(key - 1, value as *const c_void);
            detach(PageRange::covering(address as usize, size));
        }
    }
}

/// The scanner may have been quicker, or the stack has been governed memory before.
fn detach(stack: PageRange) {
    let Some(agent) = agent() else { return };
    // Whoever adds a span after this look sees the exclusion made before it.
    std::sync::atomic::fence(Ordering::SeqCst);
    scratch_stack::with(move || {
        let managed = agent.pager.managed_ranges();
        for part in managed
            .iter()
            .map(|range| range.intersection(stack))
            .filter(|part| !part.is_empty())
        {
            let done = Completion::new();
            agent.pager.post(Request::Detach(part, Arc::clone(&done)));
            agent.pager.ask_to_ring();
            let _ = done.wait();
        }
    });
}

extern "C" fn forget_stack(value: *mut c_void) {
    touch_robust_mutexes();
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u64;
    let entry = thread << 32 | value as u64;
    // With no room left the stack stays excluded, which is safe.
    ENDING.iter().any(|place| {
        let free = place.load(Ordering::Relaxed) == 0;
        free && place
            .compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    });
}

/// Threads that are about to end: thread ID, and the number of the exclusion of its stack plus one.
static ENDING: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Ends the exclusion of stacks whose threads are no more. The scanner calls this now and then.
pub fn reap() {
    let process = rustix::process::getpid().as_raw_nonzero().get() as usize;
    for place in &ENDING {
        let entry = place.load(Ordering::Acquire);
        if entry == 0 {
            continue;
        }
        let args = [process, (entry >> 32) as usize, 0, 0, 0, 0];
        // SAFETY: tgkill(2) without a signal sends nothing; it tells whether the thread exists.
        let result = unsafe { syscall6(libc::SYS_tgkill as usize, args) };
        if result == -libc::ESRCH as isize {
            own::include(own::Exclusion::at(entry as u32 - 1));
            place.store(0, Ordering::Release);
        }
    }
}

/// Pins the page, for good: a mutex whose owner died locked is a rare thing.
fn keep_resident(address: usize) {
    let page = PageNumber::containing(address);
    if let Some(agent) = agent().filter(|a| a.pager.table.word(page).is_some()) {
        let pin = |word: Word| word.pinned().unwrap_or(word);
        agent.pager.table.update(page, pin);
    }
}

/// The kernel marks the robust mutexes of an ending thread as its last act, when it no longer waits
/// for missing pages. So they are made present just before.
fn touch_robust_mutexes() {
    const LIST_LIMIT: usize = 2048;
    let mut head: *const usize = std::ptr::null();
    let mut len = 0usize;
    // SAFETY: get_robust_list(2) for the calling thread fills two words. Its list is the thread's
    // own: entries are linked by their first word, whose lowest bit is a flag, the mutex word lies
    // at a fixed offset, and the list ends where it began.
    unsafe {
        let args = [0, &raw mut head as usize, &raw mut len as usize, 0, 0, 0];
        if syscall6(libc::SYS_get_robust_list as usize, args) != 0 || head.is_null() {
            return;
        }
        let offset = head.add(1).read() as isize;
        let mut entry = head.read() & !1;
        for _ in 0..LIST_LIMIT {
            if entry == head as usize || entry == 0 {
                return;
            }
            let word = (entry as isize + offset) as *const std::sync::atomic::AtomicU32;
            keep_resident(word as usize);
            // A write, though it changes nothing: the kernel will write, too, and a protected page
            // would make it wait. (Compilers turn an addition of nothing into a read, so it is a
            // compare-and-swap.)
            let value = (*word).load(Ordering::Relaxed);
            let _ = (*word).compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed);
            entry = (entry as *const usize).read() & !1;
        }
    }
}
