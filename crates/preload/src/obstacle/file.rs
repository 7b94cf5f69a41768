//! What the kernel says of a file and of this process, by bare system calls.
use std::ffi::{CStr, c_char};

use libc::c_long;
use pagetide_kernel::syscall::syscall;

/// A bare system call; `None` if it failed.
fn call<const N: usize>(number: c_long, args: [usize; N]) -> Option<usize> {
    // SAFETY: this file makes calls only that look at files and processes, or sleep. They write
    // into buffers of this file, and read no pointers of the program but paths, which the kernel
    // checks.
    unsafe { syscall(number as usize, args) }.ok()
}

/// An opened file, closed when dropped.
pub struct Opened(usize);

impl Opened {
    /// Opens `path`, below `directory`.
    pub fn new(directory: i32, path: *const c_char) -> Option<Opened> {
        // Neither waiting for the other end of a FIFO nor taking a terminal.
        let quietly = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let open = |how: i32| {
            let args = [directory as usize, path as usize, (how | quietly) as usize];
            call(libc::SYS_openat, args)
        };
        // Without the right to read there are its owner and mode.
        open(libc::O_RDONLY)
            .or_else(|| open(libc::O_PATH))
            .map(Opened)
    }

    /// Reads bytes at an offset; how many there were.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> usize {
        let args = [
            self.0,
            bytes.as_mut_ptr() as usize,
            bytes.len(),
            at as usize,
        ];
        call(libc::SYS_pread64, args).unwrap_or(0)
    }

    /// The file's own path, put into `buffer`; empty where `/proc` is out of reach.
    pub fn path<'b>(&self, buffer: &'b mut [u8]) -> &'b [u8] {
        let link = of_number(b"/proc/self/fd/", self.0, b"");
        let args = [
            libc::AT_FDCWD as usize,
            link.as_ptr() as usize,
            buffer.as_mut_ptr() as usize,
            buffer.len(),
        ];
        let len = call(libc::SYS_readlinkat, args).unwrap_or(0);
        &buffer[..len]
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        call(libc::SYS_close, [self.0]);
    }
}

/// `before`, `number` and `after`, and zeros.
pub fn of_number(before: &[u8], number: usize, after: &[u8]) -> [u8; 64] {
    let mut text = [0; 64];
    text[..before.len()].copy_from_slice(before);
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    for (place, at) in (before.len()..before.len() + digits).rev().enumerate() {
        text[at] = b'0' + (number / 10usize.pow(place as u32) % 10) as u8;
    }
    text[before.len() + digits..][..after.len()].copy_from_slice(after);
    text
}

/// Owner, group and mode of a file.
pub struct Owner {
    uid: u32,
    gid: u32,
    mode: u32,
}

/// Of a regular file that somebody may execute.
pub fn owner(directory: i32, path: *const c_char) -> Option<Owner> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    let args = [
        directory as usize,
        path as usize,
        stat.as_mut_ptr() as usize,
    ];
    call(libc::SYS_newfstatat, args)?;
    // SAFETY: all zeros before the call, which is a value, as is what the kernel wrote.
    let stat = unsafe { stat.assume_init() };
    let is_program = stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_mode & 0o111 != 0;
    is_program.then_some(Owner {
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode,
    })
}

/// The real and the effective of three numbers that `number` asks for.
fn real_and_effective(number: c_long) -> Option<(u32, u32)> {
    let mut ids = [0u32; 3];
    let at = ids.as_mut_ptr() as usize;
    call(number, [at, at + 4, at + 8])?;
    Some((ids[0], ids[1]))
}

/// Whether the kernel will tell the dynamic linker to load nothing that the environment names.
pub fn changes_privilege(file: &Opened, owner: &Owner) -> bool {
    const SETGID_AND_GROUP_EXECUTE: u32 = libc::S_ISGID | 0o010;
    let (Some((uid, euid)), Some((gid, egid))) = (
        real_and_effective(libc::SYS_getresuid),
        real_and_effective(libc::SYS_getresgid),
    ) else {
        return false;
    };
    let setuid = owner.mode & libc::S_ISUID != 0;
    let setgid = owner.mode & SETGID_AND_GROUP_EXECUTE == SETGID_AND_GROUP_EXECUTE;
    let capabilities = || {
        let mut value = [0u8; 64];
        let args = [
            file.0,
            c"security.capability".as_ptr() as usize,
            value.as_mut_ptr() as usize,
            value.len(),
        ];
        call(libc::SYS_fgetxattr, args).is_some_and(|len| len > 0)
    };
    let gains = setuid || setgid || uid != 0 && capabilities();
    if !gains || !privilege_is_given(file) {
        return euid != uid || egid != gid;
    }
    let after = (
        if setuid { owner.uid } else { euid },
        if setgid { owner.gid } else { egid },
    );
    after != (uid, gid) || uid != 0 && capabilities()
}

/// Neither this process nor the file system has it that executing a file gives no privilege.
fn privilege_is_given(file: &Opened) -> bool {
    const ST_NOSUID: u64 = 2;
    let refused_here = call(
        libc::SYS_prctl,
        [libc::PR_GET_NO_NEW_PRIVS as usize, 0, 0, 0, 0],
    ) == Some(1);
    // `struct statfs`, whose eleventh word is the flags.
    let mut words = [0u64; 15];
    let args = [file.0, words.as_mut_ptr() as usize];
    let known = call(libc::SYS_fstatfs, args).is_some();
    let nosuid = known && words[10] & ST_NOSUID != 0;
    !(refused_here || nosuid)
}

/// With the privileges this process acts with.
fn may(path: *const c_char, how: i32) -> bool {
    let args = [
        libc::AT_FDCWD as usize,
        path as usize,
        how as usize,
        libc::AT_EACCESS as usize,
    ];
    call(libc::SYS_faccessat2, args).is_some()
}

/// Whether this process may read the file.
pub fn is_readable(path: &CStr) -> bool {
    may(path.as_ptr(), libc::R_OK)
}

/// Whether process `pid` has this process's memory for its own. False where the kernel does not
/// tell.
pub fn shares_memory_with(pid: u32) -> bool {
    const KCMP_VM: usize = 1;
    let own = std::process::id() as usize;
    call(libc::SYS_kcmp, [own, pid as usize, KCMP_VM]) == Some(0)
}

/// Sleeps for a tenth of a millisecond.
pub fn nap() {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 100_000,
    };
    call(libc::SYS_nanosleep, [&raw const time as usize, 0]);
}

/// Whether `path` is a file that this process may execute.
pub fn is_executable(path: *const c_char) -> bool {
    may(path, libc::X_OK) && owner(libc::AT_FDCWD, path).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_into_paths() {
        for (number, text) in [
            (0, "/proc/0/exe"),
            (9, "/proc/9/exe"),
            (4194304, "/proc/4194304/exe"),
        ] {
            let path = of_number(b"/proc/", number, b"/exe");
            let end = path.iter().position(|byte| *byte == 0).unwrap();
            assert_eq!(&path[..end], text.as_bytes());
        }
    }
}
