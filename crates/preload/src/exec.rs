//! Execs: a program started with an environment of its choice is governed all the same.
use std::ffi::{CStr, c_char};

use pagetide_pager::protocol::environment::{AGENT, LD_PRELOAD};

use crate::agent::agent;
use crate::executing::{Executing, Spawned};
use crate::lock_all;
use crate::next::Next;
use crate::obstacle::{judge, judge_at, judge_descriptor, judge_found};
use crate::processors;
use crate::scratch_stack;

type Strings = *const *const c_char;

static EXECVE: Next = Next::new(c"execve");
static EXECVPE: Next = Next::new(c"execvpe");
static FEXECVE: Next = Next::new(c"fexecve");
static EXECVEAT: Next = Next::new(c"execveat");
static SPAWN: Next = Next::new(c"posix_spawn");
static SPAWNP: Next = Next::new(c"posix_spawnp");

unsafe extern "C" {
    static environ: Strings;
}

/// Looks up what will be needed after `vfork`, when looking up would not be safe.
pub fn prepare() {
    Next::prepare(&[&EXECVE, &EXECVPE, &FEXECVE, &EXECVEAT, &SPAWN, &SPAWNP]);
}

/// The environment to pass on: `given`, or a copy of it with the agent's variables where some are
/// missing.
struct Environment {
    pointers: Vec<*const c_char>,
    _strings: Vec<Vec<u8>>,
    given: Strings,
    /// What is executed with it is another launcher's to govern.
    theirs: bool,
}

impl Environment {
    /// # Safety
    /// `given` is null or a null-terminated array of C strings.
    unsafe fn new(given: Strings) -> Environment {
        processors::let_go();
        // Allocates: with the program's stack missing, that could wait for a pager that waits for
        // the allocator.
        // SAFETY: by the caller's word.
        scratch_stack::with(|| unsafe { Environment::build(given) })
    }

    /// # Safety
    /// As `new`.
    unsafe fn build(given: Strings) -> Environment {
        let mut out = Environment {
            pointers: Vec::new(),
            _strings: Vec::new(),
            given,
            theirs: false,
        };
        let (variables, library) = match (agent(), lock_all::wish()) {
            (Some(agent), _) => (&agent.config.variables, agent.config.agent.as_bytes()),
            (None, Some(wish)) => (&wish.variables, &wish.agent[..]),
            (None, None) => return out,
        };
        // SAFETY: by the caller's word.
        let entries = || unsafe { strings(given) };
        let value_of = |name: &[u8]| {
            entries().find_map(|e| e.to_bytes().strip_prefix(name)?.strip_prefix(b"="))
        };
        let preloaded = value_of(LD_PRELOAD.as_bytes()).is_some_and(|list| contains(list, library));
        let name = |variable: &[u8]| {
            variable
                .iter()
                .position(|b| *b == b'=')
                .map_or(0, |i| i + 1)
        };
        // A complete set of other values is another launcher's, run by the program: what it starts
        // is its own to govern.
        let missing = |variable: &Vec<u8>| {
            let name = &variable[..name(variable)];
            !entries().any(|e| e.to_bytes().starts_with(name))
        };
        let of_theirs = value_of(AGENT.as_bytes())
            .zip(value_of(LD_PRELOAD.as_bytes()))
            .is_some_and(|(agent, list)| contains(list, agent));
        out.theirs = of_theirs
            && variables.iter().any(|variable| {
                let other = |e: &CStr| e.to_bytes() != &variable[..];
                entries().any(|e| e.to_bytes().starts_with(&variable[..name(variable)]) && other(e))
            });
        if (preloaded || of_theirs) && !variables.iter().any(missing) {
            return out;
        }
        let ours = |entry: &CStr| {
            let bytes = entry.to_bytes();
            bytes.starts_with(b"LD_PRELOAD=")
                || variables.iter().any(|v| bytes.starts_with(&v[..name(v)]))
        };
        out.pointers
            .extend(entries().filter(|e| !ours(e)).map(CStr::as_ptr));
        let mut preload = [LD_PRELOAD.as_bytes(), b"=", library].concat();
        if let Some(list) = value_of(LD_PRELOAD.as_bytes()).filter(|list| !list.is_empty()) {
            if preloaded {
                preload.truncate(LD_PRELOAD.len() + 1);
            } else {
                preload.push(b':');
            }
            preload.extend_from_slice(list);
        }
        out._strings = variables.iter().cloned().chain([preload]).collect();
        for string in &mut out._strings {
            string.push(0);
            out.pointers.push(string.as_ptr().cast());
        }
        out.pointers.push(std::ptr::null());
        out
    }

    fn pointer(&self) -> Strings {
        if self.pointers.is_empty() {
            self.given
        } else {
            self.pointers.as_ptr()
        }
    }
}

/// # Safety
/// `array` is null or a null-terminated array of C strings that outlive the iterator.
unsafe fn strings(array: Strings) -> impl Iterator<Item = &'static CStr> {
    let mut next = array;
    std::iter::from_fn(move || {
        // SAFETY: by the caller's word; the end is never passed.
        unsafe {
            if next.is_null() || (*next).is_null() {
                return None;
            }
            let string = CStr::from_ptr(*next);
            next = next.add(1);
            Some(string)
        }
    })
}

fn contains(list: &[u8], library: &[u8]) -> bool {
    list.split(|b| *b == b':' || *b == b' ')
        .any(|entry| entry == library)
}

/// Stands before `execve`.
///
/// # Safety
/// As `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> i32 {
    // SAFETY: the C library's `execve`, with the caller's arguments and an environment built from
    // the caller's.
    unsafe {
        let environment = Environment::new(envp);
        let _executing = Executing::begin(environment.theirs, |library| {
            judge(libc::AT_FDCWD, path, false, library)
        });
        let next: unsafe extern "C" fn(*const c_char, Strings, Strings) -> i32 =
            std::mem::transmute(EXECVE.address());
        next(path, argv, environment.pointer())
    }
}

/// For the variadic entry points.
///
/// # Safety
/// As `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_execve(path: *const c_char, argv: Strings, envp: Strings) -> i32 {
    // SAFETY: passed through.
    unsafe { execve(path, argv, envp) }
}

/// For the variadic entry points.
///
/// # Safety
/// As `execvpe`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagetide_execvpe(
    file: *const c_char,
    argv: Strings,
    envp: Strings,
) -> i32 {
    // SAFETY: passed through.
    unsafe { execvpe(file, argv, envp) }
}

/// Stands before `execv`.
///
/// # Safety
/// As `execv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> i32 {
    // SAFETY: passed through, with the process's environment as `execv` uses it.
    unsafe { execve(path, argv, environ) }
}

/// Stands before `execvp`.
///
/// # Safety
/// As `execvp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> i32 {
    // SAFETY: passed through, with the process's environment as `execvp` uses it.
    unsafe { execvpe(file, argv, environ) }
}

/// Stands before `execvpe`.
///
/// # Safety
/// As `execvpe`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> i32 {
    // SAFETY: the C library's `execvpe`, as above.
    unsafe {
        let environment = Environment::new(envp);
        let _executing = Executing::begin(environment.theirs, |library| {
            judge_found(file, true, library)
        });
        let next: unsafe extern "C" fn(*const c_char, Strings, Strings) -> i32 =
            std::mem::transmute(EXECVPE.address());
        next(file, argv, environment.pointer())
    }
}

/// Stands before `fexecve`.
///
/// # Safety
/// As `fexecve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: i32, argv: Strings, envp: Strings) -> i32 {
    // SAFETY: the C library's `fexecve`, as above.
    unsafe {
        let environment = Environment::new(envp);
        let _executing =
            Executing::begin(environment.theirs, |library| judge_descriptor(fd, library));
        let next: unsafe extern "C" fn(i32, Strings, Strings) -> i32 =
            std::mem::transmute(FEXECVE.address());
        next(fd, argv, environment.pointer())
    }
}

/// Stands before `execveat`.
///
/// # Safety
/// As `execveat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    fd: i32,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: i32,
) -> i32 {
    // SAFETY: the C library's `execveat`, as above.
    unsafe {
        let environment = Environment::new(envp);
        let _executing = Executing::begin(environment.theirs, |library| {
            judge_at(fd, path, flags, library)
        });
        let next: unsafe extern "C" fn(i32, *const c_char, Strings, Strings, i32) -> i32 =
            std::mem::transmute(EXECVEAT.address());
        next(fd, path, argv, environment.pointer(), flags)
    }
}

type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const libc::c_void,
    *const libc::c_void,
    Strings,
    Strings,
) -> i32;

/// Stands before `posix_spawn`.
///
/// # Safety
/// As `posix_spawn`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const libc::c_void,
    attributes: *const libc::c_void,
    argv: Strings,
    envp: Strings,
) -> i32 {
    // SAFETY: the C library's `posix_spawn`, as above.
    unsafe {
        let environment = Environment::new(envp);
        let next: Spawn = std::mem::transmute(SPAWN.address());
        let mut spawned = Spawned::begin(environment.theirs, |library| {
            judge(libc::AT_FDCWD, path, false, library)
        });
        let pid = spawned.place(pid);
        let start = || next(pid, path, actions, attributes, argv, environment.pointer());
        let result = processors::with_none_held(start);
        if result == 0 {
            let started = *pid;
            spawned.started_as(started);
        }
        result
    }
}

/// Stands before `posix_spawnp`.
///
/// # Safety
/// As `posix_spawnp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const libc::c_void,
    attributes: *const libc::c_void,
    argv: Strings,
    envp: Strings,
) -> i32 {
    // SAFETY: the C library's `posix_spawnp`, as above.
    unsafe {
        let environment = Environment::new(envp);
        let next: Spawn = std::mem::transmute(SPAWNP.address());
        let mut spawned = Spawned::begin(environment.theirs, |library| {
            judge_found(file, false, library)
        });
        let pid = spawned.place(pid);
        let start = || next(pid, file, actions, attributes, argv, environment.pointer());
        let result = processors::with_none_held(start);
        if result == 0 {
            let started = *pid;
            spawned.started_as(started);
        }
        result
    }
}

unsafe extern "C" {
    fn pagetide_c_execl();
    fn pagetide_c_execlp();
    fn pagetide_c_execle();
}

/// Stands before `execl`: on to the C code that gathers the arguments, registers and stack
/// untouched.
///
/// # Safety
/// As `execl`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execl() {
    std::arch::naked_asm!("jmp {}", sym pagetide_c_execl)
}

/// Stands before `execlp`.
///
/// # Safety
/// As `execlp`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execlp() {
    std::arch::naked_asm!("jmp {}", sym pagetide_c_execlp)
}

/// Stands before `execle`.
///
/// # Safety
/// As `execle`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execle() {
    std::arch::naked_asm!("jmp {}", sym pagetide_c_execle)
}
