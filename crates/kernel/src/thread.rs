//! Threads the program does not see: made with `clone(2)` alone, on memory of our own.
//!
//! `pthread_create` would take the thread's descriptor table from the program's `malloc` (memory
//! the pager itself pages), count as a thread of the program (which then would not end with its own
//! last thread) and share the program's file descriptors. A raw thread has all signals blocked, a
//! stack and a thread-local block in excluded memory, and, if asked, a descriptor table of its own,
//! so that no `close` of the program can reach the pager's descriptors.
use std::arch::asm;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::fork::syscall6;
use crate::own::Mapping;
use crate::thread_id;

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
/// Below the thread pointer: the static thread-local blocks of every library loaded at start
/// (`errno` among them).
const TLS_BYTES: usize = 64 << 10;
/// At and above the thread pointer: glibc's thread descriptor (2.3 KiB in 2.36), and our dynamic
/// thread vector.
const DESCRIPTOR_BYTES: usize = 16 << 10;
const DTV_OFFSET: usize = 12 << 10;
const DTV_ENTRIES: usize = 250;

/// Where the thread-local variables of a loaded object lie relative to the thread pointer, as the
/// dynamic loader placed them.
#[derive(Debug, Clone, Copy, Default)]
struct TlsImage {
    module: usize,
    offset_below: usize,
    image: usize,
    image_len: usize,
}

pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 the word at fs:0 is the thread pointer itself (System V ABI, thread-local
    // storage).
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly)) };
    pointer
}

/// Address of the calling thread's control block: its static thread-local variables lie just below,
/// glibc's descriptor above.
pub fn control_block() -> usize {
    thread_pointer()
}

/// The thread-local images of everything loaded at start: with them `thread_local!` works on a raw
/// thread, and the C library finds its locale (which even formatting an error number needs).
fn tls_images() -> Vec<TlsImage> {
    thread_local!(static ANCHOR: AtomicU32 = const { AtomicU32::new(0) });
    ANCHOR.with(|a| a.store(1, Ordering::Relaxed));
    let mut images = Vec::with_capacity(64);
    for_each_object(|info| {
        let offset_below = thread_pointer().wrapping_sub(info.dlpi_tls_data as usize);
        if info.dlpi_tls_data.is_null()
            || offset_below > TLS_BYTES
            || info.dlpi_tls_modid >= DTV_ENTRIES
        {
            return;
        }
        for header in headers(info).iter().filter(|h| h.p_type == libc::PT_TLS) {
            let image = info.dlpi_addr as usize + header.p_vaddr as usize;
            images.push(TlsImage {
                module: info.dlpi_tls_modid,
                offset_below,
                image,
                image_len: header.p_filesz as usize,
            });
        }
    });
    images
}

fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the loader describes a live object; its program headers stay mapped while it is
    // loaded, which this one is.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) }
}

/// Calls `visit` with the loader's description of the object this code is in.
fn for_own_object(mut visit: impl FnMut(&libc::dl_phdr_info)) {
    for_each_object(|info| {
        let here = for_each_object::<fn(&libc::dl_phdr_info)> as *const () as usize;
        let holds = |h: &libc::Elf64_Phdr| {
            let start = info.dlpi_addr as usize + h.p_vaddr as usize;
            h.p_type == libc::PT_LOAD && (start..start + h.p_memsz as usize).contains(&here)
        };
        if headers(info).iter().any(holds) {
            visit(info);
        }
    });
}

fn for_each_object<F: FnMut(&libc::dl_phdr_info)>(mut visit: F) {
    unsafe extern "C" fn callback<F: FnMut(&libc::dl_phdr_info)>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        data: *mut libc::c_void,
    ) -> i32 {
        // SAFETY: the loader passes a valid description, and `data` is the closure handed in below.
        unsafe { (*data.cast::<F>())(&*info) };
        0
    }
    // SAFETY: the callback matches the closure type, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(callback::<F>), (&raw mut visit).cast()) };
}

/// The executable part of the object this code is in, as (address, bytes). Asks the loader once.
pub fn own_text() -> (usize, usize) {
    static TEXT: std::sync::OnceLock<(usize, usize)> = std::sync::OnceLock::new();
    *TEXT.get_or_init(find_own_text)
}

fn find_own_text() -> (usize, usize) {
    let mut text = (0, 0);
    for_own_object(|info| {
        for h in headers(info)
            .iter()
            .filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0)
        {
            text = (
                info.dlpi_addr as usize + h.p_vaddr as usize,
                h.p_memsz as usize,
            );
        }
    });
    text
}

/// Calls `visit` with the (address, bytes) of every loaded segment of this library, of the C
/// library and of the dynamic loader: the state that our own code may touch while no fault can be
/// served.
pub fn for_each_runtime_segment(mut visit: impl FnMut(usize, usize)) {
    let (own, _) = own_text();
    for_each_object(|info| {
        let name = match info.dlpi_name.is_null() {
            true => b"",
            // SAFETY: a name that is not null is a C string of the loader's.
            false => unsafe { std::ffi::CStr::from_ptr(info.dlpi_name) }.to_bytes(),
        };
        let file = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let segments = || headers(info).iter().filter(|h| h.p_type == libc::PT_LOAD);
        let span = |h: &libc::Elf64_Phdr| {
            (
                info.dlpi_addr as usize + h.p_vaddr as usize,
                h.p_memsz as usize,
            )
        };
        let ours = segments().any(|h| span(h).0 == own);
        if ours || file.starts_with(b"libc.so") || file.starts_with(b"ld-linux") {
            segments()
                .map(span)
                .for_each(|(address, len)| visit(address, len));
        }
    });
}

/// Memory for one raw thread, reusable once the thread is gone.
#[derive(Debug)]
pub struct RawThread {
    memory: Mapping,
    tls: Vec<TlsImage>,
    id_offset: Option<usize>,
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
            tid: AtomicU32::new(0),
        })
    }

    /// The thread's ID, or 0 when it does not run.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Acquire)
    }

    fn prepare_tls(&self) -> usize {
        let pointer = self.memory.as_ptr() as usize + STACK_BYTES + TLS_BYTES;
        let dtv = pointer + DTV_OFFSET;
        let here = thread_pointer();
        // SAFETY: all writes land in our own mapping: the descriptor area is DESCRIPTOR_BYTES long,
        // the vector ends within it, and the thread-local block lies within TLS_BYTES below
        // (checked when found). All reads are of the calling thread's own descriptor (ABI: fs:0x8
        // vector, fs:0x28 stack guard, fs:0x30 pointer guard) and of loaded TLS images.
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
            word(dtv).write(word(word(here + 8).read()).read());
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
        let mut mask = [u64::MAX];
        let previous = set_signal_mask(mask[0]);
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
        mask[0] = previous;
        set_signal_mask(mask[0]);
        if result < 0 {
            Err(Errno::from_raw_os_error(-result as i32))
        } else {
            Ok(result as u32)
        }
    }
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
    let mut previous = 0u64;
    // SAFETY: rt_sigprocmask(SIG_SETMASK) reads one word and writes one.
    unsafe {
        syscall6(
            14,
            [
                2,
                &raw const mask as usize,
                &raw mut previous as usize,
                8,
                0,
                0,
            ],
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
    const SYS_SCHED_GETSCHEDULER: usize = 145;
    const SYS_SCHED_SETATTR: usize = 314;
    const SCHED_NORMAL: u32 = 0;
    const SCHED_BATCH: u32 = 3;
    /// The shortest there is.
    const SLICE_MIN_NS: u64 = 100_000;
    // SAFETY: sched_getscheduler(2) of the calling thread has no effects.
    if unsafe { syscall6(SYS_SCHED_GETSCHEDULER, [0; 6]) } != SCHED_NORMAL as isize {
        return;
    }
    // SAFETY: getpriority(2) of the calling thread has no effects; the raw call returns 20 - nice.
    let nice = 20 - unsafe { syscall6(SYS_GETPRIORITY, [0; 6]) } as i32;
    let attributes = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: match urgency {
            Urgency::Prompt => SCHED_NORMAL,
            Urgency::Yielding => SCHED_BATCH,
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
    unsafe {
        syscall6(
            SYS_SCHED_SETATTR,
            [0, &raw const attributes as usize, 0, 0, 0, 0],
        )
    };
}

/// Whether `thread`, by its ID, shares its processor with threads of the normal policies; a
/// real-time thread does not let them run beside it.
pub fn shares_processor(thread: u32) -> bool {
    const SYS_SCHED_GETSCHEDULER: usize = 145;
    const SCHED_NORMAL: isize = 0;
    const SCHED_BATCH: isize = 3;
    // SAFETY: sched_getscheduler(2) has no effects.
    let policy = unsafe { syscall6(SYS_SCHED_GETSCHEDULER, [thread as usize, 0, 0, 0, 0, 0]) };
    policy == SCHED_NORMAL || policy == SCHED_BATCH
}

/// The processor that `thread`, by its ID, runs on or ran on last. `None` when it has ended, or
/// where `/proc` is not to be seen. Does not allocate.
pub fn processor_of(thread: u32) -> Option<u32> {
    stat_field("self/task/", thread, 39).map(|cpu| cpu as u32)
}

/// When the thread or process `id` began, in hundredths of a second since the machine did, rounded
/// down. `None` as for [`processor_of`].
pub fn began_at(id: u32) -> Option<u64> {
    stat_field("", id, 22)
}

/// Now, in the unit of [`began_at`].
pub fn began_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 100 + now.tv_nsec as u64 / 10_000_000
}

/// A number of `stat` of `id`, which is in that directory of `/proc`; counted as proc(5) does.
fn stat_field(directory: &str, id: u32, field: usize) -> Option<u64> {
    use std::io::Write;

    use rustix::fs::{Mode, OFlags, open};
    let mut path = [0; 48];
    write!(&mut path[..], "/proc/{directory}{id}/stat\0").ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 1024];
    let len = rustix::io::read(&file, &mut text).ok()?;
    field_of_stat(&text[..len], field)
}

/// Field 2, the name, may contain anything; the last parenthesis ends it.
fn field_of_stat(line: &[u8], field: usize) -> Option<u64> {
    let after_name = line.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = line[after_name..]
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty());
    std::str::from_utf8(fields.nth(field - 3)?)
        .ok()?
        .parse()
        .ok()
}

/// Gives the calling thread a descriptor table of its own that holds nothing but `keep` (in any
/// order).
pub fn isolate_descriptors(keep: &[i32]) -> Result<(), Errno> {
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
        let result = unsafe { syscall6(436, [first, last, flags, 0, 0, 0]) };
        if result < 0 {
            return Err(Errno::from_raw_os_error(-result as i32));
        }
        flags = 0;
        match next {
            Some(fd) => first = fd + 1,
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_stat_are_found_behind_any_name() {
        let line = b"42 (a) b (c)) S 1 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 777 1 2 3 4 5 \
            6 7 8 9 0 0 0 0 0 0 17 1 0";
        assert_eq!(field_of_stat(line, 22), Some(777));
        assert_eq!(field_of_stat(line, 39), Some(1));
        assert_eq!(field_of_stat(line, 60), None);
        assert_eq!(field_of_stat(b"", 22), None);
    }

    #[test]
    fn a_thread_runs_somewhere_and_began_before_now() {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let began = began_at(own).unwrap();
        assert!(began <= began_now() && began + 360_000 > began_now());
        assert!(processor_of(own).is_some());
    }
}
