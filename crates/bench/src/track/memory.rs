//! Plain memory to measure on, and a forked process that writes it out.
// Mapping memory, writing to it from several threads and forking cannot be had without.
#![allow(unsafe_code)]
use std::io::{Error, Read as _, Result};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

use pagetide::track::snapshot::format::{BLOCK_PAGES_MAX, RegionEntry, SnapshotId};
use pagetide::track::snapshot::sink::FileSink;
use pagetide::track::snapshot::writer::Writer;
use pagetide::track::{Memory, TrackError};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::content::{self, PAGE_BYTES, PAGE_WORDS};
use crate::undo;

/// What the system's huge pages may do to the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePages {
    /// Not here.
    Never,
    /// As the system decides.
    System,
    /// Asked for.
    Asked,
}

/// A private anonymous mapping.
#[derive(Debug)]
pub struct Plain {
    address: usize,
    len: usize,
}

impl Plain {
    /// Maps `len` bytes.
    pub fn new(len: usize, huge: HugePages) -> Result<Plain> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Huge pages need aligned memory: the kernel aligns large mappings by itself since 6.7;
        // before, a part at either end has small pages.
        // SAFETY: a new mapping at a place of the kernel's choice.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }
            .map_err(|errno| {
                let error = Error::from(errno);
                Error::other(format!(
                    "{len} bytes of memory cannot be mapped: {error}; name a smaller --size"
                ))
            })?;
        let advice = match huge {
            HugePages::Never => Some(Advice::LinuxNoHugepage),
            HugePages::System => None,
            HugePages::Asked => Some(Advice::LinuxHugepage),
        };
        if let Some(advice) = advice {
            // SAFETY: advice about our own mapping that changes no bytes.
            unsafe { madvise(address, len, advice) }?;
        }
        Ok(Plain {
            address: address as usize,
            len,
        })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pages.
    pub fn pages(&self) -> usize {
        self.len / PAGE_BYTES
    }

    /// Its pages, as the kernel contract has them.
    pub fn range(&self) -> pagetide_kernel::PageRange {
        pagetide_kernel::PageRange::covering(self.address, self.len)
    }

    /// For a tracker or a snapshotter, which is dropped before this is.
    pub fn memory(&self) -> std::result::Result<Memory, TrackError> {
        // SAFETY: mapped as long as this lives; the callers keep to the order.
        unsafe { Memory::from_raw_parts("data", self.address as *mut u8, self.len) }
    }

    /// Fills every page with half-compressible data.
    pub fn populate(&self, seed: u64) {
        for page in 0..self.pages() {
            let words = (self.address + page * PAGE_BYTES) as *mut u64;
            // SAFETY: within the mapping, which nobody else uses yet.
            let words = unsafe { std::slice::from_raw_parts_mut(words, PAGE_WORDS) };
            content::fill(seed, page, words);
        }
    }

    /// Reads one byte of each page.
    pub fn read_each_page(&self) {
        for page in 0..self.pages() {
            // SAFETY: within the mapping.
            unsafe { ((self.address + page * PAGE_BYTES) as *const u8).read_volatile() };
        }
    }

    /// Writes a word of `page`.
    #[inline]
    pub fn write(&self, page: usize, value: u64) {
        debug_assert!(page < self.pages());
        // SAFETY: within the mapping; writers may meet in the same word, so it is an atomic one.
        let word = unsafe {
            &*((self.address + page * PAGE_BYTES) as *const std::sync::atomic::AtomicU64)
        };
        word.store(value, std::sync::atomic::Ordering::Relaxed);
    }

    /// All bytes, for a restore to write to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the whole mapping, borrowed with it.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.len) }
    }

    /// The bytes of some pages. What other threads write meanwhile may be seen in part.
    fn pages_bytes(&self, first: usize, count: usize) -> &[u8] {
        assert!(first + count <= self.pages());
        // SAFETY: within the mapping; used in a forked child, where nobody writes.
        unsafe {
            std::slice::from_raw_parts(
                (self.address + first * PAGE_BYTES) as *const u8,
                count * PAGE_BYTES,
            )
        }
    }

    /// Writes everything into a snapshot file at `path`, as the snapshotter would.
    pub fn write_file(&self, path: &Path) -> Result<u64> {
        let region = RegionEntry {
            name: "data".into(),
            address: self.address as u64,
            pages: self.pages() as u64,
        };
        let sink = Box::new(FileSink::create(path)?);
        let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region])?;
        for first in (0..self.pages()).step_by(BLOCK_PAGES_MAX) {
            let count = BLOCK_PAGES_MAX.min(self.pages() - first);
            let pages: [u64; BLOCK_PAGES_MAX] = std::array::from_fn(|i| (first + i) as u64);
            writer.put(0, &pages[..count], self.pages_bytes(first, count))?;
        }
        Ok(writer.finish()?.file_bytes)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody uses it any more.
        let _ = unsafe { munmap(self.address as *mut _, self.len) };
    }
}

/// Reads a byte of page `page` of the region `data` that was restored.
pub fn touch(restored: &pagetide::track::Restored, page: usize) -> u8 {
    let data = restored
        .region("data")
        .expect("the benchmark wrote this region");
    std::hint::black_box(data.as_slice()[page * PAGE_BYTES])
}

/// The child that was forked last and is not waited for yet; 0 for none.
static CHILD: AtomicI32 = AtomicI32::new(0);

/// Ends the forked child, if there is one, and returns when it is gone.
pub fn end_child() {
    let pid = CHILD.swap(0, SeqCst);
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // Whoever else waits for it may be first.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    }
}

/// A child process that was forked to write the memory out.
pub struct Child {
    pid: rustix::process::Pid,
    report: std::fs::File,
}

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(code: i32) -> !;
}

impl Child {
    /// Forks; the child writes `memory` to `path`, and tells how much memory it had for itself at
    /// the end. Nothing is allocated before the fork.
    pub fn start(memory: &Plain, path: &Path) -> Result<Child> {
        // All other threads hold still, so undoing cannot begin between here and where the child is
        // known to it.
        if undo::has_begun() {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let mut ends = [0i32; 2];
        let (reader, writer) = rustix::pipe::pipe()?;
        use std::os::fd::IntoRawFd as _;
        (ends[0], ends[1]) = (reader.into_raw_fd(), writer.into_raw_fd());
        // SAFETY: fork(2) by the C library, whose allocator stays usable in the child; the child
        // uses this thread's state only and ends by _exit.
        let pid = unsafe { fork() };
        let failure = (pid < 0).then(Error::last_os_error);
        if pid == 0 {
            // SAFETY: the child's own copy of the descriptor.
            let pipe = unsafe { OwnedFd::from_raw_fd(ends[1]) };
            let (written, why) = match memory.write_file(path) {
                Ok(written) => (written, String::new()),
                Err(error) => (0, error.to_string()),
            };
            let mut text = [written.to_le_bytes(), private_bytes().to_le_bytes()].concat();
            text.extend_from_slice(why.as_bytes());
            let told = rustix::io::write(&pipe, &text).is_ok();
            // SAFETY: ends the child without running anything else of the program.
            unsafe { _exit(if told && written > 0 { 0 } else { 1 }) };
        }
        // SAFETY: both ends are fresh and ours; the writer's is closed here, so that the child's
        // end is the last.
        let (reader, _writer) = unsafe {
            (
                std::fs::File::from_raw_fd(ends[0]),
                OwnedFd::from_raw_fd(ends[1]),
            )
        };
        if let Some(failure) = failure {
            return Err(failure);
        }
        CHILD.store(pid, SeqCst);
        let pid = rustix::process::Pid::from_raw(pid).expect("neither the child nor a failure");
        Ok(Child {
            pid,
            report: reader,
        })
    }

    /// Waits until the file is complete: its bytes, and the bytes of memory that the child did not
    /// share any more.
    pub fn wait(mut self) -> Result<(u64, u64)> {
        let mut text = Vec::new();
        let read = self.report.read_to_end(&mut text);
        let status =
            rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty());
        CHILD.store(0, SeqCst);
        read?;
        let status = status?.map(|(_, status)| (status.exit_status(), status.terminating_signal()));
        let why = match (status, text.as_chunks::<8>()) {
            (Some((Some(0), _)), ([written, extra], [])) => {
                return Ok((u64::from_le_bytes(*written), u64::from_le_bytes(*extra)));
            }
            (Some((_, Some(signal))), _) => format!("signal {signal} ended it"),
            _ => String::from_utf8_lossy(text.get(16..).unwrap_or_default()).into_owned(),
        };
        Err(Error::other(format!(
            "the forked child could not write its file: {why}"
        )))
    }
}

/// Memory of this process that no other shares.
fn private_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let kib = field("Private_Clean:").unwrap_or(0) + field("Private_Dirty:").unwrap_or(0);
    let tables = crate::sysfs::status_bytes(std::process::id(), "VmPTE").unwrap_or(0);
    kib * 1024 + tables
}
