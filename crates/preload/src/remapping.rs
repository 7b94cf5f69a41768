//! `mremap` of what is one mapping to the program and several to the kernel.
//!
//! The kernel keeps two neighbours apart for good when their first pages were touched while one was under the pager and the other was not yet: each then
//! has an `anon_vma` of its own. It moves and resizes one mapping at a time (EFAULT), so here they go one after the other.
use pagetide_kernel::fork::syscall6;
use pagetide_kernel::maps::{Backing, Maps};
use pagetide_kernel::{PAGE_SIZE, PageRange};
use rustix::io::Errno;

use crate::next::set_errno;
use crate::start::agent;
use crate::warden;

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
        let flags = self.flags as usize;
        let args = [self.old, self.old_len, self.new_len, flags, self.new, 0];
        // SAFETY: by the caller's word.
        result(unsafe { syscall6(libc::SYS_mremap as usize, args) })
    }

    fn has(self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// One mapping after the other. EFAULT if they are not all private and anonymous, or are not several.
    ///
    /// # Safety
    /// As `mremap`.
    unsafe fn by_pieces(mut self) -> Result<usize, Errno> {
        self.old_len = self.old_len.next_multiple_of(PAGE_SIZE);
        self.new_len = self.new_len.next_multiple_of(PAGE_SIZE);
        let whole = PageRange::covering(self.old, self.old_len);
        let pieces = pieces(whole)?;
        let growth = self.new_len.saturating_sub(self.old_len);
        if self.new_len < self.old_len {
            // Without MREMAP_FIXED the kernel shrinks any number of mappings.
            return Err(Errno::FAULT);
        }
        if !self.has(libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) {
            let last = pieces[pieces.len() - 1];
            let len = bytes(last);
            let grown = Remap {
                old: address(last),
                old_len: len,
                new_len: len + growth,
                flags: 0,
                new: 0,
            };
            // SAFETY: by the caller's word; what is mapped stays where it is.
            match unsafe { grown.call() } {
                Ok(_) => return Ok(self.old),
                Err(Errno::NOMEM) if self.has(libc::MREMAP_MAYMOVE) => {}
                Err(errno) => return Err(errno),
            }
        }
        let target = if self.has(libc::MREMAP_FIXED) {
            self.new
        } else {
            reserve(self.new_len)?
        };
        // SAFETY: by the caller's word; the target is the caller's to give, or nobody's yet.
        let moved = unsafe { self.move_pieces(&pieces, growth, target) };
        if moved.is_err() && !self.has(libc::MREMAP_FIXED) {
            // SAFETY: reserved above, and what was moved there is back.
            unsafe {
                syscall6(
                    libc::SYS_munmap as usize,
                    [target, self.new_len, 0, 0, 0, 0],
                )
            };
        }
        moved.map(|()| target)
    }

    /// Moves `pieces` to `target`, the last growing by `growth` bytes; those that were moved go back when one cannot be.
    ///
    /// # Safety
    /// As `mremap` with MREMAP_FIXED.
    unsafe fn move_pieces(
        self,
        pieces: &[PageRange],
        growth: usize,
        target: usize,
    ) -> Result<(), Errno> {
        let flags = self.flags | libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        for (index, piece) in pieces.iter().enumerate() {
            let len = bytes(*piece);
            let is_last = index + 1 == pieces.len();
            let one = Remap {
                old: address(*piece),
                old_len: len,
                new_len: if is_last { len + growth } else { len },
                flags,
                new: target + (address(*piece) - self.old),
            };
            // SAFETY: by the caller's word.
            let Err(errno) = (unsafe { one.call() }) else {
                continue;
            };
            for piece in &pieces[..index] {
                let back = Remap {
                    old: target + (address(*piece) - self.old),
                    old_len: bytes(*piece),
                    new_len: bytes(*piece),
                    flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                    new: address(*piece),
                };
                // SAFETY: back to where it was a moment ago. Should that fail too, the caller's error is the first one's.
                let _ = unsafe { back.call() };
            }
            return Err(errno);
        }
        Ok(())
    }
}

fn address(range: PageRange) -> usize {
    range.start.address()
}

fn bytes(range: PageRange) -> usize {
    range.pages() as usize * PAGE_SIZE
}

fn result(returned: isize) -> Result<usize, Errno> {
    match returned {
        -4095..0 => Err(Errno::from_raw_os_error(-returned as i32)),
        address => Ok(address as usize),
    }
}

/// The mappings that `whole` consists of, in order: several, without a hole, all private and anonymous; otherwise EFAULT.
fn pieces(whole: PageRange) -> Result<Vec<PageRange>, Errno> {
    let mut pieces = Vec::new();
    let mut end = whole.start;
    Maps::open_by_path()
        .and_then(|mut maps| {
            maps.for_each(|mapping| {
                let piece = whole.intersection(mapping.range);
                if mapping.backing == Backing::Anonymous && !piece.is_empty() && piece.start == end
                {
                    pieces.push(piece);
                    end = piece.end;
                }
            })
        })
        .map_err(|_| Errno::FAULT)?;
    match pieces.len() > 1 && end == whole.end {
        true => Ok(pieces),
        false => Err(Errno::FAULT),
    }
}

/// Address space that nobody else will be given.
fn reserve(len: usize) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let none = libc::PROT_NONE as usize;
    // SAFETY: a new mapping, wherever there is room.
    result(unsafe {
        syscall6(
            libc::SYS_mmap as usize,
            [0, len, none, flags as usize, usize::MAX, 0],
        )
    })
}

/// Stands before `mremap`. A mapping that grows while it comes under the pager is for a moment two in the kernel's eyes, and those it does
/// not move or resize together (EFAULT); once the warden has looked they are mostly one again. What never is goes piece by piece.
///
/// # Safety
/// As `mremap`. It is variadic in C; on x86-64 an argument that was not given is a register with anything in it, so it is used only
/// where the flags say that it was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: i32,
    new: usize,
) -> *mut libc::c_void {
    const TRIES: u32 = 3;
    let new = match flags & libc::MREMAP_FIXED {
        0 => 0,
        _ => new,
    };
    let asked = Remap {
        old,
        old_len,
        new_len,
        flags,
        new,
    };
    // SAFETY: by the caller's word.
    let mut done = unsafe { asked.call() };
    for _ in 0..TRIES {
        if done != Err(Errno::FAULT) || agent().is_none() {
            break;
        }
        warden::look_now();
        // SAFETY: by the caller's word; nothing was moved or resized yet.
        done = unsafe { asked.call() };
        if done == Err(Errno::FAULT) {
            // SAFETY: by the caller's word.
            done = unsafe { asked.by_pieces() };
        }
    }
    match done {
        Ok(address) => address as *mut libc::c_void,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            libc::MAP_FAILED
        }
    }
}
