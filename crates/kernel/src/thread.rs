//! Threads the program does not see: made with `clone(2)` alone, on memory of our own.
//!
//! `pthread_create` would take the thread's descriptor table from the program's `malloc` (memory
//! the pager itself pages), count as a thread of the program (which then would not end with its own
//! last thread) and share the program's file descriptors. A raw thread has all signals blocked, a
//! stack and a thread-local block in excluded memory, and, if asked, a descriptor table of its own,
//! so that no `close` of the program can reach the pager's descriptors.
use std::arch::asm;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::loaded::{DTV_ENTRIES, TLS_BYTES, TlsImage, tls_images};
use crate::own::Mapping;
pub use crate::procfs::stat::{began_at, began_now, processor_of};
use crate::syscall::{syscall, syscall6};
use crate::thread_id;
/// Address of the calling thread's control block: its static thread-local variables lie just below,
/// glibc's descriptor above.
pub use crate::thread_id::thread_pointer as control_block;

/// Processors that this process may use, as they were when that was asked first: the answer takes a
/// handful of files to be read, in every process that is started.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

const CLONE_VM: usize = 0x100;
const CLONE_FS: usize = 0x200;
const CLONE_FILES: usize = 0x400;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_SYSVSEM: usize = 0x4_0000;
const CLONE_SETTLS: usize = 0x8_0000;
const CLONE_PARENT_SETTID: usize = 0x10_0000;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;

const STACK_BYTES: usize = 256 << 10;
/// At and above the thread pointer: glibc's thread descriptor (2.3 KiB in 2.36), and our dynamic
/// thread vector.
const DESCRIPTOR_BYTES: usize = 16 << 10;
const DTV_OFFSET: usize = 12 << 10;

/// Memory for one raw thread, reusable once the thread is gone.
#[derive(Debug)]
pub struct RawThread {
    memory: Mapping,
    tls: Vec<TlsImage>,
    id_offset: Option<usize>,
    /// What the loader had loaded when this was made.
    generation: usize,
    /// The thread's ID while it lives, 0 after (the kernel clears it).
    tid: AtomicU32,
}

impl RawThread {
    /// Sets aside the memory. Call on a thread of the program, early: it looks at how the loader
    /// placed this library.
    pub fn new() -> Result<RawThread, Errno> {
        Ok(RawThread {
            memory: Mapping::new(STACK_BYTES + TLS_BYTES + DESCRIPTOR_BYTES)?,
            tls: tls_images(),
            id_offset: thread_id::offset(),
            generation: tls_generation(),
            tid: AtomicU32::new(0),
        })
    }

    /// The thread's ID, or 0 when it does not run.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Acquire)
    }

    /// Touches nothing of the program's but the calling thread's descriptor. In a forked child its
    /// vector may be in memory that is not there yet, and would be zeros from then on.
    fn prepare_tls(&self) -> usize {
        let pointer = self.memory.as_ptr() as usize + STACK_BYTES + TLS_BYTES;
        let dtv = pointer + DTV_OFFSET;
        let here = control_block();
        // The descriptor area is DESCRIPTOR_BYTES long, the vector ends within it, and the
        // thread-local block lies within TLS_BYTES below (checked when found).
        // SAFETY: so all writes land in our own mapping; all reads are of the calling thread's own
        // descriptor (ABI: fs:0x28 stack guard, fs:0x30 pointer guard) and of loaded TLS images.
        unsafe {
            let word = |address: usize| address as *mut usize;
            std::ptr::write_bytes(
                (pointer - TLS_BYTES) as *mut u8,
                0,
                TLS_BYTES + DESCRIPTOR_BYTES,
            );
            word(pointer).write(pointer);
            word(pointer + 0x10).write(pointer);
            word(pointer + 0x28).write(word(here + 0x28).read());
            word(pointer + 0x30).write(word(here + 0x30).read());
            word(pointer + 8).write(dtv);
            if let Some(offset) = self.id_offset {
                ((pointer + offset) as *mut u32).write(thread_id::made_of(pointer));
            }
            word(dtv - 16).write(DTV_ENTRIES);
            word(dtv).write(self.generation);
            for module in 1..DTV_ENTRIES {
                word(dtv + module * 16).write(usize::MAX);
            }
            for tls in &self.tls {
                let block = pointer - tls.offset_below;
                std::ptr::copy_nonoverlapping(
                    tls.image as *const u8,
                    block as *mut u8,
                    tls.image_len.min(tls.offset_below),
                );
                word(dtv + tls.module * 16).write(block);
            }
        }
        pointer
    }

    /// Starts the thread in `entry(argument)`. With `share_files` it shares the caller's descriptor
    /// table, else it starts with a copy.
    ///
    /// # Safety
    /// `entry` never returns or unwinds, and the thread uses no thread-local state of other
    /// libraries. `self` outlives it, and no thread made from `self` runs yet.
    pub unsafe fn spawn(
        &self,
        entry: extern "C" fn(*const ()) -> !,
        argument: *const (),
        share_files: bool,
    ) -> Result<u32, Errno> {
        let tls = self.prepare_tls();
        let stack = self.memory.as_ptr() as usize + STACK_BYTES - 64;
        // SAFETY: the top of our own stack area, 16-byte aligned, unused.
        unsafe {
            (stack as *mut usize).write(entry as usize);
            ((stack + 8) as *mut usize).write(argument as usize);
        }
        let mut flags = CLONE_VM
            | CLONE_FS
            | CLONE_SIGHAND
            | CLONE_THREAD
            | CLONE_SYSVSEM
            | CLONE_SETTLS
            | CLONE_PARENT_SETTID
            | CLONE_CHILD_CLEARTID;
        if share_files {
            flags |= CLONE_FILES;
        }
        let previous = set_signal_mask(u64::MAX);
        let tid = self.tid.as_ptr();
        let result: isize;
        // SAFETY: clone(2) with a fresh stack and thread pointer. The child pops its entry and
        // argument from that stack and never comes back to this frame; the parent goes on after
        // `2:` with only the clobbers declared.
        unsafe {
            asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "xor ebp, ebp",
                "pop rax",
                "pop rdi",
                "call rax",
                "ud2",
                "2:",
                inlateout("rax") 56isize => result,
                in("rdi") flags, in("rsi") stack, in("rdx") tid, in("r10") tid, in("r8") tls,
                lateout("rcx") _, lateout("r11") _,
            );
        }
        set_signal_mask(previous);
        if result < 0 {
            Err(Errno::from_raw_os_error(-result as i32))
        } else {
            Ok(result as u32)
        }
    }
}

/// The generation of what is loaded that the calling thread's vector is up to. That of a later one
/// makes no difference: the library is of an earlier one.
fn tls_generation() -> usize {
    let vector = control_block() + 8;
    // SAFETY: ABI: fs:0x8 is the address of the vector, whose first word this is.
    unsafe { **(vector as *const *const usize) }
}

/// Calls `f(data)` on another stack, whose highest address is `top`.
///
/// # Safety
/// `top` is 16-byte aligned, with enough unused memory below it for `f`, which nobody else uses
/// meanwhile. `f` returns and does not unwind.
pub unsafe fn call_on_stack(top: *mut u8, f: extern "C" fn(*mut ()), data: *mut ()) {
    // SAFETY: the stack pointer is put back from a register the callee preserves; all others are
    // declared clobbered.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {f}",
            "mov rsp, r12",
            top = in(reg) top, f = in(reg) f, in("rdi") data, out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Signals that the C library sends to threads it has started: to cancel one, and to have all of
/// them change their users or groups, for which it waits. A thread that it knows must not block
/// them.
pub const C_LIBRARY_SIGNALS: u64 = 0b11 << 31;

/// Replaces the calling thread's signal mask and returns the one before.
pub fn set_signal_mask(mask: u64) -> u64 {
    const SYS_RT_SIGPROCMASK: usize = 14;
    const SIG_SETMASK: usize = 2;
    let mut previous = 0u64;
    let words = [&raw const mask as usize, &raw mut previous as usize];
    // SAFETY: rt_sigprocmask(SIG_SETMASK) reads one word and writes one.
    unsafe {
        syscall6(
            SYS_RT_SIGPROCMASK,
            [SIG_SETMASK, words[0], words[1], 8, 0, 0],
        )
    };
    previous
}

/// How the scheduler is to treat a thread of the pager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Others wait for it: it runs little and soon after it is woken.
    Prompt,
    /// Nobody waits for it: it takes a processor from nobody, and whoever wakes up takes its.
    Yielding,
}

/// Tells the scheduler how to treat the calling thread. Of two threads the one with the shorter
/// time slice (6.12) may interrupt the other when it wakes up; one of the batch policy interrupts
/// nobody. Needs no privilege; where the kernel knows less it has less effect. A thread that runs
/// under another policy than the normal one stays as it is.
pub fn set_urgency(urgency: Urgency) {
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    const SYS_GETPRIORITY: usize = 140;
    const SYS_SCHED_SETATTR: usize = 314;
    /// The shortest there is.
    const SLICE_MIN_NS: u64 = 100_000;
    if scheduling_policy(0) != Ok(SCHED_NORMAL) {
        return;
    }
    // SAFETY: getpriority(2) of the calling thread has no effects; the raw call returns 20 - nice.
    let nice = 20 - unsafe { syscall6(SYS_GETPRIORITY, [0; 6]) } as i32;
    let attributes = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: match urgency {
            Urgency::Prompt => SCHED_NORMAL as u32,
            Urgency::Yielding => SCHED_BATCH as u32,
        },
        flags: 0,
        nice,
        priority: 0,
        runtime_ns: match urgency {
            Urgency::Prompt => SLICE_MIN_NS,
            // The usual one. A long one lets a thread fall behind by as much, and that counts many
            // times over where it is moved to another group of the scheduler, as it is when it
            // ends: it then does not get to the end for minutes (decision 0007).
            Urgency::Yielding => 0,
        },
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: sched_setattr(2) reads the struct, for the calling thread.
    let _ = unsafe { syscall(SYS_SCHED_SETATTR, [0, &raw const attributes as usize, 0]) };
}

/// Whether `thread`, by its ID, shares its processor with threads of the normal policies; a
/// real-time thread does not let them run beside it.
pub fn shares_processor(thread: u32) -> bool {
    matches!(scheduling_policy(thread), Ok(SCHED_NORMAL | SCHED_BATCH))
}

const SCHED_NORMAL: usize = 0;
const SCHED_BATCH: usize = 3;

/// Of a thread by its ID; 0 is the calling one.
fn scheduling_policy(thread: u32) -> Result<usize, Errno> {
    const SYS_SCHED_GETSCHEDULER: usize = 145;
    // SAFETY: sched_getscheduler(2) has no effects.
    unsafe { syscall(SYS_SCHED_GETSCHEDULER, [thread as usize]) }
}

/// Gives the calling thread a descriptor table of its own that holds nothing but `keep` (in any
/// order).
pub fn isolate_descriptors(keep: &[i32]) -> Result<(), Errno> {
    const SYS_CLOSE_RANGE: usize = 436;
    const CLOSE_RANGE_UNSHARE: usize = 2;
    let mut first = 0usize;
    let mut flags = CLOSE_RANGE_UNSHARE;
    loop {
        let next = keep
            .iter()
            .map(|fd| *fd as usize)
            .filter(|fd| *fd >= first)
            .min();
        let last = match next {
            Some(fd) if fd == first => {
                first += 1;
                continue;
            }
            Some(fd) => fd - 1,
            None => u32::MAX as usize,
        };
        // SAFETY: close_range(2) acts on this thread's table, which the first call makes its own.
        unsafe { syscall(SYS_CLOSE_RANGE, [first, last, flags]) }?;
        flags = 0;
        match next {
            Some(fd) => first = fd + 1,
            None => return Ok(()),
        }
    }
}
