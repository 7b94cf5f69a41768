//! The signal handlers, and passing on what is not ours.
use std::sync::OnceLock;

use rustix::io::Errno;

use super::stale;
use super::table::{Access, Signal, serve};
use crate::sync::Mutex;

/// The actions before ours, by [`Signal`].
static BEFORE: [OnceLock<libc::sigaction>; 2] = [const { OnceLock::new() }; 2];

impl Signal {
    fn number(self) -> i32 {
        match self {
            Signal::Bus => libc::SIGBUS,
            Signal::Segv => libc::SIGSEGV,
        }
    }

    /// The code the kernel raises it with for a fault that may be ours; `kill`, bad memory and
    /// unmapped addresses have others.
    fn code(self) -> i32 {
        const SEGV_ACCERR: i32 = 2;
        match self {
            Signal::Bus => libc::BUS_ADRERR,
            Signal::Segv => SEGV_ACCERR,
        }
    }
}

/// Installs the handler, once; later calls change nothing.
pub(super) fn install(signal: Signal) -> Result<(), Errno> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock();
    let known = &BEFORE[signal as usize];
    if known.get().is_some() {
        return Ok(());
    }
    // SAFETY: sigaction is plain data, for which zeros are valid; the calls only read and write
    // these structs. The handler is async-signal-safe and passes on what is not its own.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal.number(), std::ptr::null(), &mut before) != 0 {
            return Err(last_error());
        }
        // Known before the first signal can come.
        let _ = known.set(before);
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = on_signal as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigfillset(&mut ours.sa_mask);
        if libc::sigaction(signal.number(), &ours, std::ptr::null_mut()) != 0 {
            return Err(last_error());
        }
    }
    Ok(())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Error code of a page fault on x86-64: the page was there; the access was a write.
const FAULT_PRESENT: i64 = 1 << 0;
const FAULT_WRITE: i64 = 1 << 1;

extern "C" fn on_signal(
    number: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the C library's errno of this thread, restored below; the interrupted code may be
    // about to read it.
    let errno_place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let errno = unsafe { *errno_place };
    let signal = match number {
        libc::SIGBUS => Signal::Bus,
        _ => Signal::Segv,
    };
    // SAFETY: the kernel passes valid pointers to a SA_SIGINFO handler.
    let (code, address, error_code) = unsafe {
        let registers = &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        (
            (*info).si_code,
            (*info).si_addr() as usize,
            registers[libc::REG_ERR as usize],
        )
    };
    let access = Access {
        address,
        write: error_code & FAULT_WRITE != 0,
        present: error_code & FAULT_PRESENT != 0,
    };
    let served =
        code == signal.code() && serve(signal, access).unwrap_or_else(|| stale::try_again(address));
    if !served && let Some(before) = BEFORE[signal as usize].get() {
        pass_on(before, number, info, context);
    }
    // SAFETY: as above.
    unsafe { *errno_place = errno };
}

/// Does what would have been done without us.
fn pass_on(
    before: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the handler that was there before is called as the kernel would have called it: with
    // its own signal mask, on the stack of signals, with the same arguments.
    unsafe {
        match before.sa_sigaction {
            libc::SIG_IGN if (*info).si_code <= 0 => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &default, std::ptr::null_mut());
                // Blocked until this handler returns; then it ends the process, as the first one
                // would have.
                libc::raise(signal);
            }
            handler => {
                let mut mask = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
                for other in 1..=64 {
                    if libc::sigismember(&before.sa_mask, other) == 1 {
                        libc::sigaddset(&mut mask, other);
                    }
                }
                if before.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&mut mask, signal);
                }
                let mut ours: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_SETMASK, &mask, &mut ours);
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(
                        libc::c_int,
                        *mut libc::siginfo_t,
                        *mut libc::c_void,
                    ) = std::mem::transmute(handler);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                    handler(signal);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &ours, std::ptr::null_mut());
            }
        }
    }
}
