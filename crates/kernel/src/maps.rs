//! `/proc/self/maps`, read without allocation.
use std::os::fd::OwnedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, read};

use crate::page::PageRange;

/// What backs a mapping, as far as a pager cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Private anonymous memory: heap, mmap, bss, private `/dev/zero`.
    Anonymous,
    /// The main thread's stack.
    Stack,
    /// A file, shared memory, or a mapping of the kernel's.
    Other,
}

/// One mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Its pages.
    pub range: PageRange,
    /// What backs it.
    pub backing: Backing,
    /// Writable now.
    pub writable: bool,
}

/// An open `/proc/self/maps` with its buffer.
#[derive(Debug)]
pub struct Maps {
    file: OwnedFd,
    buffer: [u8; 8192],
}

impl Maps {
    /// Opens the list of this process's mappings.
    pub fn open() -> Result<Maps, Errno> {
        crate::procfs::open_self(c"/proc/self/maps").map(Maps::of)
    }

    /// As [`Maps::open`], for a thread whose table of descriptors is not that of
    /// [`procfs::keep`](crate::procfs::keep): by its absolute path.
    pub fn open_by_path() -> Result<Maps, Errno> {
        use rustix::fs::{CWD, Mode, OFlags, openat};
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        openat(CWD, c"/proc/self/maps", flags, Mode::empty()).map(Maps::of)
    }

    fn of(file: OwnedFd) -> Maps {
        Maps {
            file,
            buffer: [0; 8192],
        }
    }

    /// Calls `visit` with every mapping in address order. The list is consistent within a page of
    /// text, not as a whole.
    pub fn for_each(&mut self, mut visit: impl FnMut(Mapping)) -> Result<(), Errno> {
        seek(&self.file, SeekFrom::Start(0))?;
        let mut held = 0;
        // A line longer than the buffer (a very long path) is cut; its head says all we need, its
        // tail is skipped.
        let mut skipping = false;
        loop {
            let count = match read(&self.file, &mut self.buffer[held..]) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            if count == 0 {
                return Ok(());
            }
            let filled = held + count;
            let mut start = 0;
            while let Some(newline) = self.buffer[start..filled].iter().position(|b| *b == b'\n') {
                if !std::mem::take(&mut skipping) {
                    parse(&self.buffer[start..start + newline])
                        .into_iter()
                        .for_each(&mut visit);
                }
                start += newline + 1;
            }
            if start == 0 && filled == self.buffer.len() {
                if !skipping {
                    parse(&self.buffer).into_iter().for_each(&mut visit);
                }
                skipping = true;
                held = 0;
            } else {
                self.buffer.copy_within(start..filled, 0);
                held = filled - start;
            }
        }
    }
}

fn hexadecimal(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|t| usize::from_str_radix(t, 16).ok())
}

/// Parses `start-end perms offset dev inode  name`.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.splitn(6, |b| *b == b' ');
    let mut bounds = fields.next()?.split(|b| *b == b'-');
    let (start, end) = (hexadecimal(bounds.next()?)?, hexadecimal(bounds.next()?)?);
    let permissions = fields.next()?;
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or_default().trim_ascii_start();
    let private = permissions.get(3) == Some(&b'p');
    let backing = if name == b"[stack]" {
        Backing::Stack
    } else if private
        && (inode == b"0" && (name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:"))
            || name == b"/dev/zero")
    {
        Backing::Anonymous
    } else {
        Backing::Other
    };
    let range = PageRange::covering(start, end.checked_sub(start)?);
    Some(Mapping {
        range,
        backing,
        writable: permissions.get(1) == Some(&b'w'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        let backing = |line: &str| parse(line.as_bytes()).unwrap().backing;
        assert_eq!(
            backing("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 "),
            Backing::Anonymous
        );
        assert_eq!(
            backing(
                "55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]"
            ),
            Backing::Anonymous
        );
        assert_eq!(
            backing(
                "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]"
            ),
            Backing::Stack
        );
        assert_eq!(
            backing(
                "7ffc00000000-7ffc00021000 r-xp 00000000 00:00 0                          [vdso]"
            ),
            Backing::Other
        );
        assert_eq!(
            backing("7f0000000000-7f0000001000 rw-s 00000000 00:01 1027 /dev/zero (deleted)"),
            Backing::Other
        );
        assert_eq!(
            backing("7f0000000000-7f0000001000 rw-p 00000000 00:05 5 /dev/zero"),
            Backing::Anonymous
        );
        assert_eq!(
            backing("7f0000000000-7f0000001000 rw-p 00001000 fe:00 123  /usr/lib/libc.so.6"),
            Backing::Other
        );
    }

    #[test]
    fn own_mappings_are_listed() {
        let own = crate::own::Mapping::new(123 << 12).unwrap();
        let mut found = false;
        Maps::open()
            .unwrap()
            .for_each(|m| found |= m.range.intersection(own.range()) == own.range())
            .unwrap();
        assert!(found);
    }
}
