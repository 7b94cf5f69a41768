//! The ID by which the C library knows a thread.
//!
//! It tells by it who holds a lock of its own, and 0 is nobody: a raw thread of that number would
//! give back locks it did not take (`strerror` takes one for reading), and the program would then
//! wait for them for ever.
use std::arch::asm;

/// Where the calling thread's control block is.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 the word at fs:0 is the thread pointer itself (System V ABI, thread-local
    // storage).
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly)) };
    pointer
}

/// Where glibc's descriptor of a thread has it, found in that of the calling thread, which is one
/// of the C library's: behind the part that the ABI fixes.
pub(crate) fn offset() -> Option<usize> {
    let (here, own) = (thread_pointer(), rustix::thread::gettid());
    // SAFETY: the descriptor of a thread of the C library's is larger than that.
    let at = |offset: usize| unsafe { ((here + offset) as *const i32).read_volatile() };
    (0x2C0..0x340)
        .step_by(4)
        .find(|offset| at(*offset) == own.as_raw_nonzero().get())
}

/// One for a raw thread with this thread pointer: above the greatest that the kernel gives.
pub(crate) fn made_of(pointer: usize) -> u32 {
    0x4000_0000 | (pointer >> 12) as u32 & 0x3FFF_FFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_in_the_same_place_in_every_thread() {
        let here = offset();
        assert!(here.is_some());
        assert_eq!(std::thread::spawn(offset).join().unwrap(), here);
        assert_ne!(made_of(0x7FFF_F000_0000), made_of(0x7FFF_F000_1000));
    }
}
