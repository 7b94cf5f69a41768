use super::*;
use crate::memory::set_writable;
use crate::own::Mapping;
use crate::sync::{Mutex, MutexGuard};
use std::sync::atomic::AtomicUsize;

/// One of them uses up all traps there are.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

struct Unlock(PageRange, AtomicUsize);

impl Serve for Unlock {
    fn serve(&self, access: Access) -> bool {
        self.1.fetch_add(1, SeqCst);
        // SAFETY: the mapping is the test's own and was writable.
        access.write && unsafe { set_writable(self.0, true) }.is_ok()
    }
}

fn close(memory: &Mapping) {
    // SAFETY: the mapping is the test's own, and a trap or another thread makes it writable again.
    unsafe { set_writable(memory.range(), false) }.unwrap();
}

#[test]
fn a_fault_in_a_trap_is_served_and_the_access_goes_on() {
    let _alone = alone();
    let memory = Mapping::new(4096).unwrap();
    let server = Unlock(memory.range(), AtomicUsize::new(0));
    // SAFETY: `server` outlives the trap and does one system call at most.
    let trap = unsafe { Trap::set(Signal::Segv, memory.range(), &server) }.unwrap();
    for round in 1..=3 {
        close(&memory);
        // SAFETY: the mapping is ours; the trap makes it writable again at the first write.
        unsafe {
            memory.as_ptr().write_volatile(round);
            assert_eq!(memory.as_ptr().read_volatile(), round);
        }
        assert_eq!(server.1.load(SeqCst), round as usize);
    }
    drop(trap);
    // A new trap over the same memory is asked at once, though the old one is remembered.
    // SAFETY: as above.
    let again = unsafe { Trap::set(Signal::Segv, memory.range(), &server) }.unwrap();
    close(&memory);
    // SAFETY: as above.
    unsafe { memory.as_ptr().write_volatile(9) };
    assert_eq!(server.1.load(SeqCst), 4);
    drop(again);
}

#[test]
fn errno_is_as_it_was_when_the_access_goes_on() {
    let _alone = alone();
    struct Spoil(PageRange);
    impl Serve for Spoil {
        fn serve(&self, _: Access) -> bool {
            // SAFETY: a call that fails and sets errno; then the test's own mapping is made
            // writable.
            unsafe {
                libc::close(-1);
                set_writable(self.0, true).is_ok()
            }
        }
    }
    let memory = Mapping::new(4096).unwrap();
    let server = Spoil(memory.range());
    // SAFETY: `server` outlives the trap.
    let _trap = unsafe { Trap::set(Signal::Segv, memory.range(), &server) }.unwrap();
    close(&memory);
    // SAFETY: errno of this thread; the mapping is ours and the trap opens it.
    unsafe {
        *libc::__errno_location() = libc::EXDEV;
        memory.as_ptr().write_volatile(1);
        assert_eq!(*libc::__errno_location(), libc::EXDEV);
    }
}

#[test]
fn the_trap_that_covers_the_address_is_found_among_many_and_their_number_is_bounded() {
    let _alone = alone();
    let pages = 64;
    let memory = Mapping::new(pages * 4096).unwrap();
    let servers: Vec<Unlock> = memory
        .range()
        .iter()
        .map(|page| Unlock(PageRange::one(page), AtomicUsize::new(0)))
        .collect();
    let set = |server: &Unlock| {
        // SAFETY: the servers outlive their traps.
        unsafe { Trap::set(Signal::Segv, server.0, server) }
    };
    let mut traps: Vec<Trap> = servers.iter().map(|server| set(server).unwrap()).collect();
    close(&memory);
    for index in (0..pages).rev() {
        // SAFETY: the mapping is ours, and each page's trap opens it.
        unsafe { memory.as_ptr().add(index * 4096).write_volatile(1) };
    }
    assert!(servers.iter().all(|server| server.1.load(SeqCst) == 1));
    // Other tests have a few traps as well.
    let refused = std::iter::repeat_with(|| set(&servers[0])).take(TRAPS_MAX);
    let refused = refused
        .map(|trap| trap.map(|trap| traps.push(trap)))
        .find(Result::is_err);
    assert_eq!(refused, Some(Err(Errno::NOSPC)));
}

/// A process that faults for good after its trap is gone ends by the signal, at once, and not in
/// endless tries.
#[test]
fn a_fault_that_stays_ends_the_process_and_one_under_way_is_tried_again() {
    let _alone = alone();
    // SAFETY: the child makes plain system calls and takes locks that no other test holds while
    // this one forks, and ends itself.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: limits and alarms of the child's own: no core file, and an end in any case.
        unsafe {
            let none: libc::rlimit = std::mem::zeroed();
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::alarm(20);
        }
        let memory = Mapping::new(4096).unwrap();
        close(&memory);
        // As if its trap had gone while the fault was raised: tried again once; nobody has opened
        // the memory, so the next is the end.
        stale::note(memory.range());
        handler::install(Signal::Segv).unwrap();
        // SAFETY: the child's own mapping; the write ends the child.
        unsafe {
            memory.as_ptr().write_volatile(1);
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
        "{status:#x}"
    );
    let address = 0x7000_0000_0000 - 4096;
    let page = crate::page::PageNumber::containing(address);
    for _ in 0..3 {
        stale::note(PageRange::one(page));
        assert!(stale::try_again(address), "each removal gives one more try");
        assert!(!stale::try_again(address));
    }
    assert!(!stale::try_again(address + 4096));
}

/// Traps come and go while threads fault in them: every access goes on, whichever trap or none it
/// finds.
#[test]
fn traps_come_and_go_under_threads_that_fault() {
    let _alone = alone();
    use std::sync::atomic::AtomicBool;
    struct Open(PageRange);
    impl Serve for Open {
        fn serve(&self, _: Access) -> bool {
            // SAFETY: the test's own mapping.
            unsafe { set_writable(self.0, true) }.is_ok()
        }
    }
    let (memory, stop) = (Mapping::new(4096).unwrap(), AtomicBool::new(false));
    let address = memory.as_ptr() as usize;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    // SAFETY: the mapping outlives the scope; when it is closed a trap, or who
                    // removes it, opens it.
                    unsafe { (*(address as *const AtomicUsize)).fetch_add(1, SeqCst) };
                }
            });
        }
        for _ in 0..3000 {
            let server = Box::new(Open(memory.range()));
            // SAFETY: the box is freed after the trap is gone.
            let trap = unsafe { Trap::set(Signal::Segv, memory.range(), &raw const *server) };
            let trap = trap.unwrap();
            close(&memory);
            std::thread::yield_now();
            // SAFETY: the test's own mapping.
            unsafe { set_writable(memory.range(), true) }.unwrap();
            drop(trap);
            drop(server);
        }
        stop.store(true, SeqCst);
    });
}
