//! `/proc/PID/smaps`: mappings with what is resident and locked, and how.
use std::io::{self, Read};

use crate::page::PageRange;
use crate::syscall::syscall;

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Area {
    /// First address.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// `rwxp` or `rw-s`, as the kernel writes it.
    pub permissions: String,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device, `major:minor`.
    pub device: String,
    /// Inode of the file; 0 for none.
    pub inode: u64,
    /// Path or `[name]`; empty for plain anonymous memory.
    pub name: String,
    /// Bytes present in this process's page table.
    pub resident: u64,
    /// The kernel's `Locked`: the process's proportional share of the present pages of a locked
    /// mapping, in bytes.
    pub locked_share: u64,
    /// In swap, in bytes.
    pub swapped: u64,
    /// The mapping is locked, in either mode (`lo`).
    pub locked: bool,
    /// It is locked on fault (`lf`), where [`tells_mode`].
    pub on_fault: bool,
    /// Huge pages of the `hugetlb` kind, which are never swapped and never counted as locked.
    pub hugetlb: bool,
    /// It is registered with a userfaultfd.
    pub watched: bool,
}

impl Area {
    /// Memory of `memfd_secret`, which the kernel never takes out.
    pub fn is_secret(&self) -> bool {
        self.name.starts_with("/secretmem")
    }

    /// Its pages.
    pub fn range(&self) -> PageRange {
        PageRange::covering(self.start, self.end - self.start)
    }
}

/// The list, opened but not read yet: for those who must know that they can read it before they do
/// something.
#[derive(Debug)]
pub struct Listing(std::fs::File);

impl Listing {
    /// Of process `pid`, or of this one.
    pub fn open(pid: Option<u32>) -> io::Result<Listing> {
        let path = match pid {
            Some(pid) => format!("/proc/{pid}/smaps"),
            None => "/proc/self/smaps".to_owned(),
        };
        std::fs::File::open(path).map(Listing)
    }

    /// Calls `visit` with every mapping, as it is now, in address order. Reading walks the page
    /// tables: a millisecond for some ten thousand resident pages.
    pub fn for_each(self, mut visit: impl FnMut(Area)) -> io::Result<()> {
        let mut area: Option<Area> = None;
        self.for_each_line(|line| {
            let text = String::from_utf8_lossy(line);
            match head(&text) {
                Some(next) => {
                    if let Some(done) = area.replace(next) {
                        visit(done);
                    }
                }
                None => {
                    if let Some(area) = &mut area {
                        detail(area, &text);
                    }
                }
            }
        })?;
        area.into_iter().for_each(visit);
        Ok(())
    }

    /// With a buffer on the stack: where future locking has used up the lock limit, there may be no
    /// new memory.
    fn for_each_line(mut self, mut visit: impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = [0u8; 1 << 14];
        let mut filled = 0;
        loop {
            let read = self.0.read(&mut buffer[filled..])?;
            if read == 0 {
                return Ok(());
            }
            filled += read;
            let end = buffer[..filled].iter().rposition(|byte| *byte == b'\n');
            let Some(end) = end else {
                if filled == buffer.len() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                continue;
            };
            buffer[..end]
                .split(|byte| *byte == b'\n')
                .for_each(&mut visit);
            buffer.copy_within(end + 1..filled, 0);
            filled -= end + 1;
        }
    }

    /// The locked mappings, as they are now.
    pub fn locked(self) -> io::Result<Vec<Area>> {
        let mut areas = Vec::new();
        self.for_each(|area| {
            if area.locked {
                areas.push(area);
            }
        })?;
        Ok(areas)
    }
}

/// Calls `visit` with every mapping of process `pid` (this one if `None`): [`Listing::for_each`].
pub fn for_each(pid: Option<u32>, visit: impl FnMut(Area)) -> io::Result<()> {
    Listing::open(pid)?.for_each(visit)
}

/// The locked mappings of process `pid` (this one if `None`).
pub fn locked(pid: Option<u32>) -> io::Result<Vec<Area>> {
    Listing::open(pid)?.locked()
}

/// `start-end perms offset dev inode  name`.
fn head(line: &str) -> Option<Area> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let permissions = fields.next()?.to_owned();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let device = fields.next()?.to_owned();
    let inode = fields.next()?.parse().ok()?;
    let name = fields.next().unwrap_or_default().trim_start().to_owned();
    Some(Area {
        start,
        end,
        permissions,
        offset,
        device,
        inode,
        name,
        ..Area::default()
    })
}

fn detail(area: &mut Area, line: &str) {
    let Some((name, value)) = line.split_once(':') else {
        return;
    };
    let bytes = || {
        let number = value.trim().strip_suffix(" kB").unwrap_or_default();
        number.trim().parse::<u64>().unwrap_or(0) * 1024
    };
    match name {
        "Rss" => area.resident = bytes(),
        "Locked" => area.locked_share = bytes(),
        "Swap" => area.swapped = bytes(),
        "VmFlags" => {
            for flag in value.split_whitespace() {
                match flag {
                    "lo" => area.locked = true,
                    "lf" => area.on_fault = true,
                    "ht" => area.hugetlb = true,
                    "um" | "uw" | "ui" => area.watched = true,
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// Whether this kernel's smaps tells on-fault locks from full ones (`lf`). Found out by locking a
/// page; no for now where that cannot be done.
pub fn tells_mode() -> bool {
    use std::sync::OnceLock;
    static TELLS: OnceLock<bool> = OnceLock::new();
    if let Some(tells) = TELLS.get() {
        return *tells;
    }
    let found = finds_mode();
    found
        .inspect(|tells| _ = TELLS.set(*tells))
        .unwrap_or(false)
}

/// `None` if no page can be locked, or the list cannot be read.
fn finds_mode() -> Option<bool> {
    const SYS_MLOCK2: usize = 325;
    const MLOCK_ONFAULT: usize = 1;
    let page = crate::own::Mapping::new(crate::PAGE_SIZE).ok()?;
    let address = page.as_ptr() as usize;
    // SAFETY: locking changes no byte.
    unsafe { syscall(SYS_MLOCK2, [address, crate::PAGE_SIZE, MLOCK_ONFAULT]) }.ok()?;
    let areas = locked(None).ok()?;
    let here = |area: &&Area| (area.start..area.end).contains(&address);
    areas.iter().find(here).map(|area| area.on_fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_read_with_its_details() {
        let mut area =
            head("7f00-9f00 rw-p 00001000 fe:00 123                    /a b/c (deleted)").unwrap();
        assert_eq!((area.start, area.end, area.offset), (0x7f00, 0x9f00, 4096));
        assert_eq!(area.name, "/a b/c (deleted)");
        for line in [
            "Rss:                  12 kB",
            "Locked:                4 kB",
            "VmFlags: rd wr lo lf ",
        ] {
            assert!(head(line).is_none());
            detail(&mut area, line);
        }
        assert_eq!((area.resident, area.locked_share), (12 * 1024, 4096));
        assert!(area.locked && area.on_fault && !area.hugetlb);
    }

    #[test]
    fn own_mappings_are_in_order_and_hold_this_code() {
        let code = head as *const () as usize;
        let (mut found, mut last) = (false, 0);
        for_each(None, |area| {
            assert!(area.start >= last && area.end > area.start);
            last = area.end;
            found |= (area.start..area.end).contains(&code);
        })
        .unwrap();
        assert!(found);
    }
}
