//! Faults served in signal handlers: whatever the faulting thread was doing, whoever else uses
//! signals.
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use pagetide::{Delivery, Region};
use patience::{fewer, is_slow};

#[path = "../../cli/tests/support/patience.rs"]
mod patience;

const PAGE: usize = 4096;

fn region(pages: usize, resident: usize) -> Option<Region> {
    let region = Region::builder()
        .length(pages * PAGE)
        .resident((resident * PAGE) as u64)
        .delivery(Delivery::Signal)
        .build();
    match region {
        Ok(region) => Some(region),
        Err(error) => {
            eprintln!("SKIPPED: no region can be made here: {error}");
            None
        }
    }
}

fn fill(region: &mut Region) {
    for (index, word) in region.as_mut_slice().chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(
            &(index as u64)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .to_le_bytes(),
        );
    }
}

fn check(region: &Region) {
    for (index, word) in region.as_slice().chunks_exact(8).enumerate() {
        let expected = (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        assert_eq!(
            u64::from_le_bytes(word.try_into().unwrap()),
            expected,
            "word {index}"
        );
    }
}

extern "C" fn compare(a: *const libc::c_void, b: *const libc::c_void) -> libc::c_int {
    // SAFETY: qsort passes pointers to elements of the array.
    let (a, b) = unsafe { (*a.cast::<u64>(), *b.cast::<u64>()) };
    a.cmp(&b) as libc::c_int
}

#[test]
fn inside_the_c_librarys_copying_and_sorting() {
    let Some(mut region) = region(512, 24) else {
        return;
    };
    fill(&mut region);
    let half = region.len() / 2;
    let start = region.as_mut_slice().as_mut_ptr();
    // SAFETY: both halves lie in the region and do not overlap; the array has half / 8 elements.
    unsafe {
        libc::memcpy(start.add(half).cast(), start.cast(), half);
        assert_eq!(libc::memcmp(start.add(half).cast(), start.cast(), half), 0);
        libc::qsort(start.cast(), half / 8, 8, Some(compare));
    }
    let words: Vec<u64> = region.as_slice()[..half]
        .chunks_exact(8)
        .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
        .collect();
    assert!(words.is_sorted());
    let mut expected: Vec<u64> = (0..half as u64 / 8)
        .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    expected.sort_unstable();
    assert_eq!(words, expected);
}

static SHARED: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
static SHARED_PAGES: AtomicUsize = AtomicUsize::new(0);
static TICKS: AtomicU64 = AtomicU64::new(0);

/// A handler of the program's own that touches the region: its faults nest in whatever was
/// interrupted.
extern "C" fn on_alarm(_: libc::c_int) {
    let pages = SHARED_PAGES.load(Ordering::Relaxed);
    if pages == 0 {
        return;
    }
    let tick = TICKS.fetch_add(1, Ordering::Relaxed);
    let page = tick.wrapping_mul(7919) as usize % pages;
    // SAFETY: the last word of a page of the region, which no other code of this test uses.
    unsafe {
        let word = SHARED.load(Ordering::Relaxed).add(page * 512 + 511);
        word.write_volatile(word.read_volatile() + 1);
    }
}

/// Has [`on_alarm`] called every so often; 0 ends that.
fn set_alarm(every_us: i64) {
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: every_us,
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: an ordinary handler, an ordinary timer.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_alarm as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        let (none, real) = (std::ptr::null_mut(), libc::ITIMER_REAL);
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, none), 0);
        assert_eq!(libc::setitimer(real, &timer, std::ptr::null_mut()), 0);
    }
}

/// The calling thread's alternate stack; none ends that.
fn set_alternate_stack(stack: Option<&mut [u8]>) {
    let flags = if stack.is_some() { 0 } else { libc::SS_DISABLE };
    let (start, len) = stack.map_or((std::ptr::null_mut(), 0), |s| (s.as_mut_ptr(), s.len()));
    let stack = libc::stack_t {
        ss_sp: start.cast(),
        ss_flags: flags,
        ss_size: len,
    };
    // SAFETY: the stack outlives its use: the caller takes it off, in no signal handler.
    assert_eq!(
        unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) },
        0
    );
}

/// Adds to its own word of random pages, on an alternate stack, and writes and reads a pipe now and
/// then.
fn count_on_alternate_stack(base: usize, thread: usize, ends: [i32; 2]) {
    let mut stack = vec![0u8; 256 * 1024];
    set_alternate_stack(Some(&mut stack));
    let mut state = thread as u64 + 1;
    for round in 0..fewer(40_000) {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let page = (state >> 33) as usize % 1024;
        let cell = (base + page * PAGE + 8 * thread) as *mut u64;
        // SAFETY: this thread's own word of the page.
        unsafe { cell.write_volatile(cell.read_volatile() + 1) };
        if round % 64 == 0 {
            let mut byte = [7u8];
            // SAFETY: reads and writes one byte of this stack frame; SA_RESTART keeps the calls
            // from failing.
            unsafe {
                assert_eq!(libc::write(ends[1], byte.as_ptr().cast(), 1), 1);
                assert_eq!(libc::read(ends[0], byte.as_mut_ptr().cast(), 1), 1);
            }
        }
    }
    set_alternate_stack(None);
}

#[test]
fn while_other_signals_arrive_on_alternate_stacks_during_restarted_calls() {
    let Some(mut region) = region(1024, 40) else {
        return;
    };
    SHARED.store(region.as_mut_slice().as_mut_ptr().cast(), Ordering::Relaxed);
    SHARED_PAGES.store(1024, Ordering::Relaxed);
    let base = region.as_ptr() as usize;
    let mut ends = [0; 2];
    // SAFETY: an ordinary pipe.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    set_alarm(if is_slow() { 5000 } else { 300 });
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            scope.spawn(move || count_on_alternate_stack(base, thread, ends));
        }
    });
    SHARED_PAGES.store(0, Ordering::SeqCst);
    set_alarm(0);
    // SAFETY: closes what was opened.
    ends.iter().for_each(|end| _ = unsafe { libc::close(*end) });
    std::thread::sleep(std::time::Duration::from_millis(5));
    let words = |of: &dyn Fn(usize) -> bool| -> u64 {
        region
            .as_slice()
            .chunks_exact(8)
            .enumerate()
            .filter(|(index, _)| of(index % 512))
            .map(|(_, word)| u64::from_le_bytes(word.try_into().unwrap()))
            .sum()
    };
    assert_eq!(words(&|index| index < 3), 3 * fewer(40_000));
    let ticks = TICKS.load(Ordering::SeqCst);
    assert!(ticks > 50, "only {ticks} alarms came: this proves little");
    // Alarms of two threads may meet at one word, where one addition is lost; never more are found
    // than were made.
    let counted = words(&|index| index == 511);
    assert!(
        counted <= ticks && counted * 10 >= ticks * 9,
        "{counted} of {ticks} counts were kept"
    );
}

#[test]
fn system_calls_fail_on_missing_pages_and_work_on_resident_ones() {
    let Some(mut region) = region(256, 32) else {
        return;
    };
    fill(&mut region);
    region.evict(0..256 * PAGE).unwrap();
    let null = std::fs::File::options()
        .write(true)
        .open("/dev/zero")
        .unwrap();
    use std::os::fd::AsRawFd;
    let mut ends = [0; 2];
    // SAFETY: a pipe, and a write from memory of the region's; the kernel checks it.
    let (result, errno) = unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let result = libc::write(ends[1], region.as_ptr().cast(), PAGE);
        (result, std::io::Error::last_os_error().raw_os_error())
    };
    assert_eq!((result, errno), (-1, Some(libc::EFAULT)));
    let random = std::fs::File::open("/dev/urandom").unwrap();
    let sum = |bytes: &[u8]| bytes.iter().map(|b| u64::from(*b)).sum::<u64>();
    let before = sum(&region.as_slice()[..8 * PAGE]);
    region.evict(0..256 * PAGE).unwrap();
    let read = region
        .with_resident(0..8 * PAGE, |memory| {
            // SAFETY: the memory is the region's, and this thread alone uses it.
            unsafe { libc::read(random.as_raw_fd(), memory.cast(), memory.len()) }
        })
        .unwrap();
    assert_eq!(read, 8 * PAGE as isize);
    assert_ne!(sum(&region.as_slice()[..8 * PAGE]), before);
    drop(null);
    // SAFETY: both are ours.
    unsafe {
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
}

#[test]
fn pages_are_got_without_a_fault() {
    let Some(mut region) = region(512, 32) else {
        return;
    };
    fill(&mut region);
    for round in 0..3 {
        for index in (0..512usize).map(|i| i * 167 % 512) {
            let page = region.get(index).unwrap();
            let expected = (index as u64 * 512).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            assert_eq!(
                u64::from_le_bytes(page[..8].try_into().unwrap()),
                expected,
                "round {round}"
            );
        }
    }
    check(&region);
}

#[test]
fn regions_come_and_go_beside_each_other() {
    if region(1, 1).is_none() {
        return;
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..12 {
                    let mut region = region(128, 8).unwrap();
                    fill(&mut region);
                    check(&region);
                }
            });
        }
    });
}

/// A fault that is not ours goes to the handler that was there before; without one it ends the
/// process as it would have.
#[test]
fn other_faults_go_where_they_went_before() {
    if region(1, 1).is_none() {
        return;
    }
    if let Ok(kind) = std::env::var(CHILD) {
        fault_past_the_end_of_a_file(kind == "handler");
    }
    // In a process of its own, where nothing has installed a handler yet.
    let run = |kind: &str| {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_faults_go_where_they_went_before"])
            .env(CHILD, kind)
            .output()
            .unwrap()
            .status
    };
    assert_eq!(run("handler").code(), Some(42));
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(run("default").signal(), Some(libc::SIGBUS));
}

const CHILD: &str = "PAGETIDE_TEST_FAULT";

extern "C" fn leave_with_42(_: libc::c_int) {
    // SAFETY: async-signal-safe.
    unsafe { libc::_exit(42) }
}

fn fault_past_the_end_of_a_file(with_handler: bool) -> ! {
    // SAFETY: dispositions of this process, a mapping of a file of ours that is then cut short, and
    // the access that must fault.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = if with_handler {
            leave_with_42 as *const () as usize
        } else {
            libc::SIG_DFL
        };
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        let no_core = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        let Some(mut region) = region(64, 4) else {
            libc::_exit(1)
        };
        fill(&mut region);
        check(&region);
        let file = libc::memfd_create(c"short".as_ptr(), 0);
        libc::ftruncate(file, PAGE as i64);
        let start = libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file,
            0,
        );
        libc::ftruncate(file, 0);
        start.cast::<u8>().read_volatile();
        libc::_exit(1)
    }
}
