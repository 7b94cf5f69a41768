//! Bare system calls: no `errno`, no C library, no cancellation.
use std::arch::asm;

use rustix::io::Errno;

/// A raw system call. Negative results are errnos.
///
/// # Safety
/// As the system call asks.
#[inline(always)]
pub unsafe fn syscall6(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the x86-64 system call ABI; what the call does the caller answers for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The same, with the arguments that there are (the others are 0), and errors told from answers.
///
/// # Safety
/// As the system call asks.
#[inline(always)]
pub unsafe fn syscall<const N: usize>(number: usize, args: [usize; N]) -> Result<usize, Errno> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&args);
    // SAFETY: by the caller's word.
    match unsafe { syscall6(number, all) } {
        errno @ -4095..0 => Err(Errno::from_raw_os_error(-errno as i32)),
        answer => Ok(answer as usize),
    }
}
