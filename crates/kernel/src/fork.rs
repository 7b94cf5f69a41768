//! Catching the one `clone` system call inside the C library's `fork`.
//!
//! A forked child's copy of registered memory is not registered: until the child has a pager of its
//! own, a missing page there reads as zeros. The C library touches the heap right after the system
//! call returns in the child (it unlocks malloc's arenas and runs `pthread_atfork` handlers), long
//! before a wrapper around `fork` sees the child. So the wrapper must stand at the system call.
//! Syscall User Dispatch (5.11; see the kernel's admin guide) does that for one thread and one
//! call, without privilege: system calls made outside our own text raise SIGSYS, whose handler
//! makes the call itself and can work before and after it.
use std::arch::global_asm;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::loaded::own_text;
use crate::thread::set_signal_mask;

pub use crate::syscall::syscall6;

const SYS_RT_SIGACTION: usize = 13;
const SYS_RT_SIGPROCMASK: usize = 14;
const SYS_CLONE: usize = 56;
const SYS_FORK: usize = 57;
const SYS_PRCTL: usize = 157;
const SYS_GETTID: usize = 186;
const CLONE_VM: usize = 0x100;
const SIGSYS: usize = 31;
const SIGSYS_BIT: u64 = 1 << (SIGSYS - 1);
const SYS_USER_DISPATCH: i32 = 2;
const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;

/// The kernel's `struct sigaction` on x86-64.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct KernelSigaction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

global_asm!(
    ".hidden pagetide_sigreturn",
    ".globl pagetide_sigreturn",
    "pagetide_sigreturn:",
    "mov eax, 15",
    "syscall",
    "ud2"
);
unsafe extern "C" {
    fn pagetide_sigreturn();
}

/// What to do around the system call that forks.
pub trait AroundFork: Sync {
    /// In the parent, just before. An error is returned to the program instead of forking.
    fn before(&self) -> Result<(), Errno>;
    /// In the parent, just after; `child` is the child's process ID or the errno. An error is
    /// returned to the program instead of the child, of which nothing is left then.
    fn parent(&self, child: Result<u32, Errno>) -> Result<(), Errno>;
    /// In the child, before any code of the program or the C library runs.
    fn child(&self);
}

/// Carries a `&dyn AroundFork` to the handler, with the saved SIGSYS disposition and the thread it
/// is for.
struct Context<'a> {
    around: &'a dyn AroundFork,
    tid: usize,
    saved: KernelSigaction,
}

static CONTEXT: AtomicPtr<Context<'static>> = AtomicPtr::new(std::ptr::null_mut());
/// Read by the kernel at each system call of the dispatched thread: 1 raises SIGSYS, 0 lets the
/// call through.
static SELECTOR: AtomicU8 = AtomicU8::new(0);
static FORKS: AtomicU64 = AtomicU64::new(0);

fn gettid() -> usize {
    // SAFETY: gettid(2) has no effects.
    unsafe { syscall6(SYS_GETTID, [0; 6]) as usize }
}

/// Makes one forking system call with `around` about it; for callers that hold the arguments
/// themselves.
///
/// # Safety
/// `number` and `args` are a `fork` or a `clone` without `CLONE_VM` and without a new stack.
pub unsafe fn forking_call(around: &dyn AroundFork, number: usize, args: [usize; 6]) -> isize {
    let negated = |errno: Errno| -(errno.raw_os_error() as isize);
    if let Err(errno) = around.before() {
        return negated(errno);
    }
    // SAFETY: a plain fork: the child goes on here with a copy of this stack.
    let result = unsafe { syscall6(number, args) };
    let forked = match result {
        0 => {
            around.child();
            return 0;
        }
        child if child > 0 => Ok(child as u32),
        errno => Err(Errno::from_raw_os_error(-errno as i32)),
    };
    around.parent(forked).map_or_else(negated, |()| result)
}

/// Runs `action`, which forks through the C library on this thread, with `around` about the forking
/// system call itself. Returns what `action` returned, in the parent and, if it got there, in the
/// child; an error if the dispatch cannot be set up.
///
/// # Safety
/// Calls must not overlap: the caller holds a lock of its own from before until after, in parent
/// and child alike. `action` makes no other use of SIGSYS.
pub unsafe fn with_forks_caught<R>(
    around: &dyn AroundFork,
    action: impl FnOnce() -> R,
) -> Result<R, Errno> {
    let mut context = Context {
        around,
        tid: gettid(),
        saved: KernelSigaction::default(),
    };
    let handler: extern "C" fn(i32, *const libc::siginfo_t, *mut libc::ucontext_t) = on_sigsys;
    let ours = KernelSigaction {
        handler: handler as usize,
        flags: SA_SIGINFO | SA_RESTORER,
        restorer: pagetide_sigreturn as *const () as usize,
        mask: u64::MAX,
    };
    // All blocked, to learn what was: with any open, one that is pending would be delivered.
    let mask = set_signal_mask(u64::MAX);
    set_signal_mask(mask & !SIGSYS_BIT);
    CONTEXT.store((&raw mut context).cast(), Ordering::Release);
    let (text, text_len) = own_text();
    // SAFETY: installs a handler whose code and restorer live in this library for good, saving the
    // one before.
    let installed = unsafe { set_sigsys_action(&ours, &mut context.saved) };
    let selector = SELECTOR.as_ptr() as usize;
    // SAFETY: from here system calls of this thread outside our text go to the handler just
    // installed.
    let on = unsafe { set_dispatch([1, text, text_len, selector]) };
    SELECTOR.store(1, Ordering::SeqCst);
    let result = if installed == 0 && on == 0 {
        Ok(action())
    } else {
        Err(Errno::from_raw_os_error(-on.min(installed) as i32))
    };
    SELECTOR.store(0, Ordering::SeqCst);
    // SAFETY: ends the dispatch (a no-op in a child, which does not inherit it) and restores the
    // disposition; both are made from our text.
    unsafe {
        set_dispatch([0; 4]);
        set_sigsys_action(&context.saved, std::ptr::null_mut());
    }
    CONTEXT.store(std::ptr::null_mut(), Ordering::Release);
    if mask & SIGSYS_BIT != 0 {
        let now = set_signal_mask(u64::MAX);
        set_signal_mask(now | SIGSYS_BIT);
    }
    result
}

/// # Safety
/// As `rt_sigaction`, for SIGSYS; `old` may be null.
#[inline(always)]
unsafe fn set_sigsys_action(new: *const KernelSigaction, old: *mut KernelSigaction) -> isize {
    let args = [SIGSYS, new as usize, old as usize, 8, 0, 0];
    // SAFETY: by the caller's word.
    unsafe { syscall6(SYS_RT_SIGACTION, args) }
}

/// Syscall User Dispatch of the calling thread: mode, exempt text and its length, selector.
///
/// # Safety
/// As the `prctl` asks; a thread whose calls are dispatched has a handler for SIGSYS.
#[inline(always)]
unsafe fn set_dispatch([mode, text, len, selector]: [usize; 4]) -> isize {
    let args = [PR_SET_SYSCALL_USER_DISPATCH, mode, text, len, selector, 0];
    // SAFETY: by the caller's word.
    unsafe { syscall6(SYS_PRCTL, args) }
}

/// How many forks were caught in this process and its ancestors; for tests and reports.
pub fn forks_caught() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn on_sigsys(
    signal: i32,
    info: *const libc::siginfo_t,
    ucontext: *mut libc::ucontext_t,
) {
    let context = CONTEXT.load(Ordering::Acquire);
    // SAFETY: the kernel passes valid pointers to an SA_SIGINFO handler; the context is set and
    // cleared around the dispatch by the thread it names, on whose stack it lives.
    unsafe {
        let ours = !context.is_null()
            && (*info).si_code == SYS_USER_DISPATCH
            && gettid() == (*context).tid;
        if !ours {
            return chain(context, signal, info, ucontext);
        }
        // What runs around the fork may make system calls through the C library.
        SELECTOR.store(0, Ordering::SeqCst);
        dispatch(&*context, &mut *ucontext);
        SELECTOR.store(1, Ordering::SeqCst);
    }
}

/// A SIGSYS that is not ours (a seccomp filter's, say, on another thread): the program's own
/// handler gets it.
///
/// # Safety
/// Arguments as the kernel passed them.
unsafe fn chain(
    context: *const Context<'_>,
    signal: i32,
    info: *const libc::siginfo_t,
    ucontext: *mut libc::ucontext_t,
) {
    if context.is_null() {
        return;
    }
    // SAFETY: the context outlives the dispatch; a disposition other than default or ignore is a
    // function of the matching type.
    unsafe {
        let saved = (*context).saved;
        match saved.handler {
            0 | 1 => {}
            handler if saved.flags & (SA_SIGINFO | SA_ONSTACK) & SA_SIGINFO != 0 => {
                let call: extern "C" fn(i32, *const libc::siginfo_t, *mut libc::ucontext_t) =
                    std::mem::transmute(handler);
                call(signal, info, ucontext);
            }
            handler => {
                let call: extern "C" fn(i32) = std::mem::transmute(handler);
                call(signal);
            }
        }
    }
}

fn dispatch(context: &Context<'_>, ucontext: &mut libc::ucontext_t) {
    use libc::{REG_R8, REG_R9, REG_R10, REG_RAX, REG_RDI, REG_RDX, REG_RSI};
    let register = |index: i32| ucontext.uc_mcontext.gregs[index as usize] as usize;
    let number = register(REG_RAX);
    let args = [
        register(REG_RDI),
        register(REG_RSI),
        register(REG_RDX),
        register(REG_R10),
        register(REG_R8),
        register(REG_R9),
    ];
    let forks =
        number == SYS_FORK || number == SYS_CLONE && args[0] & CLONE_VM == 0 && args[1] == 0;
    let result = if forks {
        FORKS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: checked to be a plain fork. The child returns from this handler as the parent
        // does, on its copy of the stack.
        unsafe { forking_call(context.around, number, args) }
    } else if number == SYS_RT_SIGPROCMASK {
        change_saved_mask(args, ucontext)
    } else {
        // SAFETY: the program's own call, made unchanged on its behalf.
        unsafe { syscall6(number, args) }
    };
    ucontext.uc_mcontext.gregs[REG_RAX as usize] = result as i64;
}

/// `rt_sigprocmask` applied to the mask the handler returns to, leaving SIGSYS open: a blocked
/// SIGSYS would end the process at the next dispatched call. `fork` blocks all signals around its
/// system call, which is why this matters.
fn change_saved_mask(args: [usize; 6], ucontext: &mut libc::ucontext_t) -> isize {
    const EINVAL: isize = -22;
    let [how, new, old, size, ..] = args;
    if size != 8 {
        return EINVAL;
    }
    let mask: *mut u64 = (&raw mut ucontext.uc_sigmask).cast();
    // SAFETY: `uc_sigmask` starts with the kernel's 64-bit mask; `new` and `old` are the C
    // library's own pointers (this runs only inside its fork), null or valid.
    unsafe {
        let current = mask.read();
        if new != 0 {
            let set = (new as *const u64).read();
            let next = match how {
                0 => current | set,
                1 => current & !set,
                2 => set,
                _ => return EINVAL,
            };
            mask.write(next & !SIGSYS_BIT);
        }
        if old != 0 {
            (old as *mut u64).write(current);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[derive(Default)]
    struct Count {
        before: AtomicU32,
        parent: AtomicU32,
        child: AtomicU32,
    }
    impl AroundFork for Count {
        fn before(&self) -> Result<(), Errno> {
            self.before.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
        fn parent(&self, child: Result<u32, Errno>) -> Result<(), Errno> {
            self.parent.fetch_add(1, Ordering::SeqCst);
            child.map(drop)
        }
        fn child(&self) {
            self.child.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_system_call_inside_fork_is_caught_in_parent_and_child() {
        if let Err(errno) = crate::probe::syscall_user_dispatch() {
            return eprintln!("SKIPPED: no syscall user dispatch (Linux 5.11): {errno}");
        }
        let count = Count::default();
        // SAFETY: the only fork in this test binary at this time; the child only exits.
        let pid = unsafe { with_forks_caught(&count, || libc::fork()) }
            .expect("syscall user dispatch needs Linux 5.11");
        if pid == 0 {
            let seen = count.before.load(Ordering::SeqCst) * 100
                + count.child.load(Ordering::SeqCst) * 10
                + count.parent.load(Ordering::SeqCst);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if seen == 110 { 42 } else { 1 }) };
        }
        assert!(pid > 0);
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 42);
        assert_eq!(
            (
                count.before.load(Ordering::SeqCst),
                count.parent.load(Ordering::SeqCst),
                count.child.load(Ordering::SeqCst)
            ),
            (1, 1, 0)
        );
    }
}
