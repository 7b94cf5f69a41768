//! `mremap` of what is one mapping to the program and several to the kernel.
//!
//! The kernel keeps two neighbours apart for good when their first pages were touched while one was
//! under the pager and the other was not yet: each then has an `anon_vma` of its own. It resizes
//! one mapping at a time, and of several it moves (from 6.17) those that are not under a
//! userfaultfd, one after the other, and stops at the first that is: EFAULT, with a part moved. So
//! here they go piece by piece, and back if that fails. And each call is for one mapping only, as
//! far as is known: where the kernel has moved a part and refused the rest, another thread may get
//! memory at the place of that part, and what is the caller's cannot be told from it.
use pagetide_kernel::maps::Maps;
use pagetide_kernel::mlock::{is_mapped, mremap as kernel_mremap};
use pagetide_kernel::syscall::syscall;
use pagetide_kernel::{PAGE_SIZE, PageRange};
use rustix::io::Errno;

use crate::agent::agent;
use crate::next::returned_address;
use crate::requests;

/// How often a mapping may be found divided while it is moved.
const DIVIDED_MAX: u32 = 8;

/// Arguments of one `mremap`, lengths in bytes.
#[derive(Clone, Copy)]
struct Remap {
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: i32,
    new: usize,
}

impl Remap {
    /// # Safety
    /// As `mremap`.
    unsafe fn call(self) -> Result<usize, Errno> {
        let flags = self.flags as u32;
        // SAFETY: by the caller's word.
        unsafe { kernel_mremap(self.old, self.old_len, self.new_len, flags, self.new) }
    }

    fn has(self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// The part of a move after its first `len` bytes.
    fn after(self, len: usize) -> Remap {
        Remap {
            old: self.old + len,
            old_len: self.old_len - len,
            new_len: self.new_len - len,
            new: self.new.wrapping_add(len),
            ..self
        }
    }

    /// The first `len` bytes of a move.
    fn first(self, len: usize) -> Remap {
        Remap {
            old_len: len,
            new_len: len,
            ..self
        }
    }

    /// Piece by piece what the kernel does not do at once. EFAULT if not all of it is mapped. What
    /// is to be cut off is, once.
    ///
    /// # Safety
    /// As `mremap`. None of it was moved, except by a call with MREMAP_FIXED, from its start on.
    unsafe fn by_pieces(&mut self) -> Result<usize, Errno> {
        if self.new_len < self.old_len {
            // Only with MREMAP_FIXED: otherwise the kernel shrinks any number of mappings.
            let tail = [self.old + self.new_len, self.old_len - self.new_len];
            // SAFETY: by the caller's word: the rest goes first.
            unsafe { syscall(libc::SYS_munmap as usize, tail) }?;
            self.old_len = self.new_len;
        }
        if self.has(libc::MREMAP_FIXED) {
            // SAFETY: by the caller's word.
            return unsafe { self.move_pieces() }.map(|()| self.new);
        }
        // SAFETY: by the caller's word; what is mapped stays where it is.
        match unsafe { self.grow_last() } {
            Err(Errno::NOMEM) if self.has(libc::MREMAP_MAYMOVE) => {}
            done => return done,
        }
        let target = reserve(0, self.new_len)?;
        let fixed = Remap {
            flags: self.flags | libc::MREMAP_FIXED,
            new: target,
            ..*self
        };
        // SAFETY: by the caller's word; the target is nobody's yet.
        let moved = unsafe { fixed.move_pieces() };
        if moved.is_err() {
            fixed.unreserve();
        }
        moved.map(|()| target)
    }

    /// Gives the reserved target of a move that failed back, unless a part of it could not go back:
    /// that is the program's only copy.
    fn unreserve(self) {
        if is_mapped(self.old, self.old_len) {
            let reserved = [self.new, self.new_len];
            // SAFETY: reserved for this move; all that was moved there is at its old place again,
            // which is mapped throughout.
            let _ = unsafe { syscall(libc::SYS_munmap as usize, reserved) };
        }
    }

    /// Grows in place what is at the end, if all before it is mapped.
    ///
    /// # Safety
    /// As `mremap` with no flags.
    unsafe fn grow_last(self) -> Result<usize, Errno> {
        if !is_mapped(self.old, self.old_len) {
            return Err(Errno::FAULT);
        }
        let mut len = self.old_len;
        while len > 0 {
            let last = Remap {
                flags: 0,
                ..self.after(self.old_len - len)
            };
            // SAFETY: by the caller's word.
            match unsafe { last.call() } {
                Err(Errno::FAULT) => len = half(len),
                done => return done.map(|_| self.old),
            }
        }
        Err(Errno::FAULT)
    }

    /// Moves one mapping at a time, the last growing; back with it when one does not.
    ///
    /// # Safety
    /// As `mremap` with MREMAP_FIXED.
    unsafe fn move_pieces(self) -> Result<(), Errno> {
        let (mut done, mut divided) = (0, 0);
        while done < self.old_len {
            let rest = self.after(done);
            let piece = pieces(PageRange::covering(rest.old, rest.old_len))
                .first()
                .copied();
            let error = match piece {
                None => Errno::FAULT,
                Some(piece) => {
                    let is_last = piece.bytes() == rest.old_len;
                    let one = if is_last {
                        rest
                    } else {
                        rest.first(piece.bytes())
                    };
                    // SAFETY: by the caller's word.
                    match unsafe { one.call() } {
                        Ok(_) => {
                            done += piece.bytes();
                            continue;
                        }
                        Err(errno) => errno,
                    }
                }
            };
            // Divided since it was looked up: some of it is under the pager now.
            if error == Errno::FAULT && divided < DIVIDED_MAX {
                divided += 1;
                // SAFETY: by the caller's word.
                done += unsafe { rest.moved_by_the_kernel() };
                continue;
            }
            // SAFETY: by the caller's word.
            unsafe { self.back(done) };
            return Err(error);
        }
        Ok(())
    }

    /// Whether it is a move, to a place of its own, that the kernel would not refuse for its
    /// arguments.
    fn is_sound_move(self) -> bool {
        let ends = (
            self.old.checked_add(self.old_len),
            self.new.checked_add(self.new_len),
        );
        let (Some(old_end), Some(new_end)) = ends else {
            return false;
        };
        self.flags == libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED
            && self.new.is_multiple_of(PAGE_SIZE)
            && self.new_len > 0
            && (new_end <= self.old || old_end <= self.new)
    }

    /// Bytes at the start that are no longer at the old place and are at the new one: a call that
    /// failed has moved them.
    ///
    /// # Safety
    /// As `mremap` with MREMAP_FIXED.
    unsafe fn moved_by_the_kernel(self) -> usize {
        if is_mapped(self.old, PAGE_SIZE) {
            return 0;
        }
        let (mut gone, mut there) = (0, self.old_len);
        // The first page that is still mapped, by bisection: those before it went.
        while there - gone > PAGE_SIZE {
            let middle = gone + (there - gone) / 2 / PAGE_SIZE * PAGE_SIZE;
            match is_mapped(self.old + middle, PAGE_SIZE) {
                true => there = middle,
                false => gone = middle,
            }
        }
        match is_mapped(self.new, there) {
            true => there,
            false => 0,
        }
    }

    /// Moves the first `len` bytes back to where they were a moment ago, as far as that goes: the
    /// caller's error is the first one's.
    ///
    /// # Safety
    /// As `mremap` with MREMAP_FIXED.
    unsafe fn back(self, len: usize) {
        let mut back = Remap {
            old: self.new,
            old_len: len,
            new_len: len,
            flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            new: self.old,
        };
        let mut part = len;
        while back.old_len > 0 && part > 0 {
            // SAFETY: by the caller's word.
            match unsafe { back.first(part).call() } {
                Ok(_) => {
                    back = back.after(part);
                    part = back.old_len;
                }
                Err(_) => part = half(part),
            }
        }
    }

    /// With MREMAP_DONTUNMAP what was moved does not show at the old place, so nothing may be tried
    /// twice: the pieces first, then each once.
    ///
    /// # Safety
    /// As `mremap` with MREMAP_DONTUNMAP.
    unsafe fn keeping_the_old_place(self) -> Result<usize, Errno> {
        let pieces = pieces(PageRange::covering(self.old, self.old_len));
        if pieces.len() < 2 || self.old_len != self.new_len {
            // SAFETY: by the caller's word.
            return unsafe { self.call() };
        }
        let target = match self.has(libc::MREMAP_FIXED) {
            true => self.new,
            false => reserve(self.new, self.new_len)?,
        };
        let fixed = Remap {
            flags: self.flags | libc::MREMAP_FIXED,
            new: target,
            ..self
        };
        for piece in pieces {
            let offset = piece.start.address() - self.old;
            let one = fixed.after(offset).first(piece.bytes());
            // SAFETY: by the caller's word; the target is the caller's to give, or nobody's yet.
            if let Err(errno) = unsafe { one.call() } {
                // SAFETY: the old place of what was moved is mapped, and nothing is there. A
                // reserved target stays: it costs address space only, and what did not go back is
                // in it.
                unsafe { fixed.back(offset) };
                return Err(errno);
            }
        }
        Ok(target)
    }
}

/// Half of `len` in whole pages, rounded down.
fn half(len: usize) -> usize {
    len / 2 / PAGE_SIZE * PAGE_SIZE
}

/// The mappings that `whole` consists of, in order, if all of it is mapped; otherwise none.
fn pieces(whole: PageRange) -> Vec<PageRange> {
    let mut pieces = Vec::new();
    let mut end = whole.start;
    let read = Maps::open_by_path().and_then(|mut maps| {
        maps.for_each(|mapping| {
            let piece = whole.intersection(mapping.range);
            if !piece.is_empty() && piece.start == end {
                pieces.push(piece);
                end = piece.end;
            }
        })
    });
    match read.is_ok() && end == whole.end {
        true => pieces,
        false => Vec::new(),
    }
}

/// Address space that nobody else will be given, at `hint` if that is free.
fn reserve(hint: usize, len: usize) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let none = libc::PROT_NONE as usize;
    let args = [hint, len, none, flags as usize, usize::MAX];
    // SAFETY: a new mapping, wherever there is room.
    unsafe { syscall(libc::SYS_mmap as usize, args) }
}

/// Stands before `mremap`.
///
/// # Safety
/// As `mremap`. It is variadic in C; on x86-64 an argument that was not given is a register with
/// anything in it, so it is used only where the flags say that it may have been given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: i32,
    new: usize,
) -> *mut libc::c_void {
    let asked = Remap {
        old,
        old_len,
        new_len,
        flags,
        new,
    };
    // SAFETY: by the caller's word.
    returned_address(unsafe { remap(asked) })
}

/// # Safety
/// As `mremap`.
unsafe fn remap(mut asked: Remap) -> Result<usize, Errno> {
    const TRIES: u32 = 3;
    let call = agent().map(|agent| {
        agent.pager.space.throttle.pass();
        agent.pager.space.mapping_lock.enter_call()
    });
    let is_governed = call.is_some();
    let [old_len, new_len] =
        [asked.old_len, asked.new_len].map(|len| len.checked_next_multiple_of(PAGE_SIZE));
    let (Some(old_len), Some(new_len)) = (old_len, new_len) else {
        // SAFETY: by the caller's word.
        return unsafe { asked.call() };
    };
    if is_governed && asked.has(libc::MREMAP_DONTUNMAP) {
        let mut done = Err(Errno::FAULT);
        // The pieces change while the scanner attaches some; what was moved by a call that failed
        // is back.
        for tried in 0..TRIES {
            if tried > 0 {
                requests::look_now();
            }
            // SAFETY: by the caller's word.
            done = unsafe { asked.keeping_the_old_place() };
            if done != Err(Errno::FAULT) {
                break;
            }
        }
        return done;
    }
    // What was never mapped at its start is an error of the caller's.
    let may_have_pieces = is_governed && old_len > PAGE_SIZE && asked.old.is_multiple_of(PAGE_SIZE);
    let is_there = may_have_pieces && is_mapped(asked.old, PAGE_SIZE);
    let whole = Remap {
        old_len,
        new_len,
        ..asked
    };
    let pieces_of_whole = || pieces(PageRange::covering(asked.old, old_len)).len();
    let mut done = match is_there && whole.is_sound_move() && pieces_of_whole() > 1 {
        true => Err(Errno::FAULT),
        // SAFETY: by the caller's word.
        false => unsafe { asked.call() },
    };
    asked = whole;
    for tried in 0..TRIES {
        if done != Err(Errno::FAULT) || !is_there {
            break;
        }
        if tried > 0 {
            requests::look_now();
        }
        // SAFETY: by the caller's word; what the first call has moved is at the new place, what
        // another has is back.
        done = unsafe { asked.by_pieces() };
    }
    done
}
