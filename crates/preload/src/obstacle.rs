//! Whether a file that is about to be executed will load the agent, told from its first bytes.
//!
//! This runs in children made by `vfork`, in the memory of their parents, and may be ended there at
//! any moment: it takes no lock, allocates nothing, and its buffers are on the caller's stack. All
//! calls are bare ones, so `errno` stays as it is and pointers of the program that lead nowhere are
//! errors.
mod elf;
mod file;

use std::ffi::{CStr, c_char};

use pagetide_pager::ungoverned::{Obstacle, PATH_BYTES_MAX};

use elf::Elf;
use file::{
    Opened, changes_privilege, is_executable, is_readable, nap, of_number, owner,
    shares_memory_with,
};

/// Interpreters that may follow each other, as the kernel allows.
const INTERPRETERS_MAX: usize = 5;
/// Nearly always holds all headers and the dynamic linker's name.
const HEAD_BYTES: usize = 1024;
/// What the kernel looks at of a `#!` line.
const LINE_BYTES: usize = 256;
const PATH_BYTES: usize = libc::PATH_MAX as usize + 256;

/// What is known of a file.
pub enum Verdict {
    /// It loads the agent.
    Takes,
    /// It cannot be read, or may not be executed.
    Unknown,
    /// It does not load the agent.
    Refuses(Obstacle, Name),
}

/// The name of a file that is executed, or the end of a long one.
pub struct Name {
    bytes: [u8; PATH_BYTES_MAX],
    len: usize,
}

impl Name {
    fn new(path: &[u8]) -> Name {
        let end = &path[path.len().saturating_sub(PATH_BYTES_MAX)..];
        let mut bytes = [0; PATH_BYTES_MAX];
        bytes[..end.len()].copy_from_slice(end);
        Name {
            bytes,
            len: end.len(),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The interpreter in a `#!` line.
fn script_interpreter(head: &[u8]) -> Option<&[u8]> {
    let line = head[..head.len().min(LINE_BYTES)].strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    line.split(|byte| matches!(byte, b' ' | b'\t' | 0))
        .find(|word| !word.is_empty())
}

/// What `path`, below `directory`, is, with the agent in the file `library`. A file without a mark
/// is a script for the shell, if `scripts`.
pub fn judge(directory: i32, path: *const c_char, scripts: bool, library: &CStr) -> Verdict {
    let (mut directory, mut path) = (directory, path);
    let mut interpreter = [0; LINE_BYTES + 1];
    for _ in 0..=INTERPRETERS_MAX {
        let Some(owner) = owner(directory, path) else {
            return Verdict::Unknown;
        };
        let Some(file) = Opened::new(directory, path) else {
            return Verdict::Unknown;
        };
        let mut head = [0; HEAD_BYTES];
        let len = file.read(0, &mut head);
        let head = &head[..len];
        if let Some(name) = script_interpreter(head) {
            interpreter.fill(0);
            interpreter[..name.len()].copy_from_slice(name);
            (directory, path) = (libc::AT_FDCWD, interpreter.as_ptr().cast());
            continue;
        }
        if len > 0 && !head.starts_with(b"\x7fELF") {
            if !scripts {
                return Verdict::Unknown;
            }
            (directory, path) = (libc::AT_FDCWD, c"/bin/sh".as_ptr());
            continue;
        }
        let found = if changes_privilege(&file, &owner) {
            Elf::Refuses(Obstacle::Privilege)
        } else {
            elf::read(&file, head)
        };
        return match found {
            Elf::Unknown => Verdict::Unknown,
            Elf::Refuses(obstacle) => Verdict::Refuses(obstacle, name(&file, path)),
            Elf::Dynamic if is_readable(library) => Verdict::Takes,
            Elf::Dynamic => Verdict::Refuses(Obstacle::OutOfReach, name(&file, path)),
        };
    }
    Verdict::Unknown
}

/// The path that was asked for, if it tells which file it is.
fn name(file: &Opened, path: *const c_char) -> Name {
    // SAFETY: the kernel has found a file by it, so it is a C string.
    let asked = unsafe { CStr::from_ptr(path) }.to_bytes();
    let mut buffer = [0; 512];
    let own = match asked.first() {
        Some(b'/') if !asked.starts_with(b"/proc/") => asked,
        _ => file.path(&mut buffer),
    };
    Name::new(if own.is_empty() { asked } else { own })
}

/// As [`judge`], of what the C library finds of that name.
pub fn judge_found(file: *const c_char, scripts: bool, library: &CStr) -> Verdict {
    if file.is_null() {
        return Verdict::Unknown;
    }
    // SAFETY: the C library reads it as one, too.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') || name.is_empty() {
        return judge(libc::AT_FDCWD, file, scripts, library);
    }
    // SAFETY: reads the environment, as the C library will.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let path = match path.is_null() {
        true => c"/bin:/usr/bin",
        // SAFETY: a variable's value.
        false => unsafe { CStr::from_ptr(path) },
    };
    let mut candidate = [0; PATH_BYTES];
    for directory in path.to_bytes().split(|byte| *byte == b':') {
        let len = directory.len() + usize::from(!directory.is_empty());
        if len + name.len() >= candidate.len() {
            continue;
        }
        candidate[..directory.len()].copy_from_slice(directory);
        candidate[directory.len()..len].fill(b'/');
        candidate[len..len + name.len()].copy_from_slice(name);
        candidate[len + name.len()] = 0;
        if is_executable(candidate.as_ptr().cast()) {
            return judge(libc::AT_FDCWD, candidate.as_ptr().cast(), scripts, library);
        }
    }
    Verdict::Unknown
}

/// As [`judge`], of what `execveat` executes.
pub fn judge_at(directory: i32, path: *const c_char, flags: i32, library: &CStr) -> Verdict {
    if flags & libc::AT_EMPTY_PATH == 0 {
        return judge(directory, path, false, library);
    }
    match judge(directory, path, false, library) {
        Verdict::Unknown => judge_descriptor(directory, library),
        verdict => verdict,
    }
}

/// As [`judge`], of the file behind a descriptor.
pub fn judge_descriptor(fd: i32, library: &CStr) -> Verdict {
    let link = of_number(b"/proc/self/fd/", fd as u32 as usize, b"");
    judge(libc::AT_FDCWD, link.as_ptr().cast(), false, library)
}

/// Naps at most while a process that executes a program still has its parent's memory.
const NAPS_MAX: usize = 1000;

/// As [`judge`], of the program that process `pid`, started by `posix_spawn`, runs.
pub fn judge_process(pid: u32, library: &CStr) -> Verdict {
    // The kernel lets the parent go on a moment before the child has the new program's memory, by
    // which it knows what it runs.
    for _ in 0..NAPS_MAX {
        if !shares_memory_with(pid) {
            break;
        }
        nap();
    }
    let link = of_number(b"/proc/", pid as usize, b"/exe");
    judge(libc::AT_FDCWD, link.as_ptr().cast(), false, library)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &CStr = c"/etc/passwd";

    fn verdict(path: &CStr, scripts: bool) -> Verdict {
        judge(libc::AT_FDCWD, path.as_ptr(), scripts, AGENT)
    }

    fn written(name: &str, bytes: &[u8], mode: u32) -> std::ffi::CString {
        use std::os::unix::fs::PermissionsExt;
        let path = format!("/tmp/pagetide-obstacle-{}-{name}", std::process::id());
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        std::ffi::CString::new(path).unwrap()
    }

    fn obstacle_of(bytes: &[u8], name: &str) -> Option<Obstacle> {
        let file = written(name, bytes, 0o755);
        let found = match verdict(&file, false) {
            Verdict::Refuses(obstacle, name) => {
                assert_eq!(name.bytes(), file.to_bytes());
                Some(obstacle)
            }
            _ => None,
        };
        std::fs::remove_file(file.to_str().unwrap()).unwrap();
        found
    }

    #[test]
    fn the_system_s_programs_take_the_agent_and_what_is_none_is_not_judged() {
        assert!(matches!(verdict(c"/bin/true", false), Verdict::Takes));
        for none in [c"/nonexistent", c"/etc/passwd", c"/dev/null", c"/tmp"] {
            assert!(matches!(verdict(none, true), Verdict::Unknown), "{none:?}");
        }
        assert!(matches!(
            judge(libc::AT_FDCWD, 8 as _, true, AGENT),
            Verdict::Unknown
        ));
        assert!(matches!(
            judge_found(c"true".as_ptr(), true, AGENT),
            Verdict::Takes
        ));
        assert!(matches!(
            judge_found(c"no-such".as_ptr(), true, AGENT),
            Verdict::Unknown
        ));
        assert!(matches!(
            judge_process(std::process::id(), AGENT),
            Verdict::Takes
        ));
        let out = judge(
            libc::AT_FDCWD,
            c"/bin/true".as_ptr(),
            false,
            c"/nonexistent",
        );
        assert!(matches!(out, Verdict::Refuses(Obstacle::OutOfReach, _)));
    }

    #[test]
    fn headers_tell_what_takes_no_agent() {
        let good = std::fs::read("/bin/true").unwrap();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        assert_eq!(obstacle_of(&good, "good"), None);
        assert_eq!(obstacle_of(&with(4, 1), "narrow"), Some(Obstacle::Narrow));
        assert_eq!(
            obstacle_of(&with(18, 8), "foreign"),
            Some(Obstacle::Foreign)
        );
        // No program headers: nobody to load it.
        assert_eq!(obstacle_of(&with(56, 0), "static"), Some(Obstacle::Static));
        assert_eq!(obstacle_of(&good[..40], "short"), None);
        assert_eq!(obstacle_of(&good[..64], "cut"), None);
        let at = good
            .windows(8)
            .position(|part| part == b"ld-linux")
            .unwrap();
        let musl = [&good[..at], b"ld-musl-", &good[at + 8..]].concat();
        assert_eq!(obstacle_of(&musl, "musl"), Some(Obstacle::Musl));
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let mut program = std::fs::read("/bin/true").unwrap();
        program[56] = 0;
        let program = written("interpreter", &program, 0o755);
        let line = [b"#! ", program.to_bytes(), b" -x\n"].concat();
        let script = written("script", &line, 0o755);
        let Verdict::Refuses(Obstacle::Static, name) = verdict(&script, false) else {
            panic!("a script of a static interpreter");
        };
        assert_eq!(name.bytes(), program.to_bytes());
        let unmarked = written("unmarked", b"echo\n", 0o755);
        assert!(matches!(verdict(&unmarked, true), Verdict::Takes));
        assert!(matches!(verdict(&unmarked, false), Verdict::Unknown));
        let endless = written("endless", b"", 0o755);
        let line = [b"#!", endless.to_bytes(), b"\n"].concat();
        std::fs::write(endless.to_str().unwrap(), line).unwrap();
        assert!(matches!(verdict(&endless, false), Verdict::Unknown));
        for file in [program, script, unmarked, endless] {
            std::fs::remove_file(file.to_str().unwrap()).unwrap();
        }
    }
}
