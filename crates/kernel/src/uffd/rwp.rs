//! Read-write protection (`UFFD_FEATURE_RWP`, Linux 7.3): a page that is there keeps its bytes and may not be touched, so that whoever does is
//! told of, or leaves a trace.
//!
//! Synchronous, a touch is a fault message that names the page as protected, and its thread waits until protection is ended. Asynchronous, the
//! kernel ends protection itself, and [`crate::pagemap::Pagemap::not_accessed`] tells the pages that nobody touched. The two modes are
//! switched at run time. A way to find pages that are not used: protect asynchronously, wait, switch to synchronous so that nothing slips by,
//! take those that were not touched.
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Setter, Updater, opcode};

use super::feature;
use super::{GROUP, REGISTER, REGISTER_MODE_MISSING, RangeArg, RegisterArg, Stop, Uffd, range_arg};
use crate::page::PageRange;

#[repr(C)]
struct ProtectArg {
    range: RangeArg,
    mode: u64,
}
#[repr(C)]
struct SetModeArg {
    enable: u64,
    disable: u64,
}

const RWPROTECT: Opcode = opcode::read_write::<ProtectArg>(GROUP, 9);
const SET_MODE: Opcode = opcode::write::<SetModeArg>(GROUP, 10);
const _: () = assert!(RWPROTECT == 0xC018_AA09 && SET_MODE == 0x4010_AA0A);

const REGISTER_MODE_RWP: u64 = 1 << 3;
const PROTECT_MODE_RWP: u64 = 1 << 0;
const PROTECT_MODE_DONTWAKE: u64 = 1 << 1;

/// What a touch of a protected page does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTouch {
    /// A fault message, and the thread waits.
    Report,
    /// The kernel ends the page's protection, and the thread goes on.
    Note,
}

impl Uffd {
    /// Registers private anonymous memory for read-write protection alone: nothing changes for the program before something is protected.
    /// [`feature::RWP`] must have been negotiated.
    ///
    /// # Errors
    /// `EINVAL` on kernels before 7.3, without the feature, and for memory registered for write-protection; `EBUSY` for memory of
    /// another userfaultfd.
    pub fn register_read_write_protect(&self, range: PageRange) -> Result<(), Errno> {
        self.register_modes(range, REGISTER_MODE_RWP)
    }

    /// The same, and for missing faults.
    ///
    /// # Errors
    /// As [`Uffd::register_read_write_protect`].
    ///
    /// # Safety
    /// As [`Uffd::register`].
    pub unsafe fn register_missing_and_read_write_protect(
        &self,
        range: PageRange,
    ) -> Result<(), Errno> {
        self.register_modes(range, REGISTER_MODE_MISSING | REGISTER_MODE_RWP)
    }

    fn register_modes(&self, range: PageRange, mode: u64) -> Result<(), Errno> {
        let mut arg = RegisterArg {
            range: range_arg(range),
            mode,
            ioctls: 0,
        };
        // SAFETY: opcode and struct belong together; what missing faults do to `range` the caller answers for.
        unsafe { ioctl::ioctl(&self.fd, Updater::<REGISTER, _>::new(&mut arg)) }
    }

    /// Protects the present pages of `range`, or ends that and wakes the threads that wait for them.
    ///
    /// # Errors
    /// [`Stop::Absent`] where nothing is registered for it; [`Stop::EventPending`] to be tried again.
    pub fn read_write_protect(&self, range: PageRange, protect: bool) -> Result<(), Stop> {
        self.protect_in_mode(range, if protect { PROTECT_MODE_RWP } else { 0 })
    }

    /// Ends protection without waking anybody: for who wakes many at once ([`Uffd::wake`]).
    ///
    /// # Errors
    /// As [`Uffd::read_write_protect`].
    pub fn end_read_write_protect_quietly(&self, range: PageRange) -> Result<(), Stop> {
        self.protect_in_mode(range, PROTECT_MODE_DONTWAKE)
    }

    fn protect_in_mode(&self, range: PageRange, mode: u64) -> Result<(), Stop> {
        let mut arg = ProtectArg {
            range: range_arg(range),
            mode,
        };
        // SAFETY: opcode and struct belong together; protection changes no bytes.
        unsafe { ioctl::ioctl(&self.fd, Updater::<RWPROTECT, _>::new(&mut arg)) }
            .map_err(Stop::from)
    }

    /// What touches of protected pages do from now on; whoever negotiates [`feature::RWP_ASYNC`] begins with [`OnTouch::Note`], and both modes
    /// can be chosen where [`feature::RWP`] was negotiated.
    ///
    /// # Errors
    /// `EINVAL` where it was not, and on kernels before 7.3.
    pub fn set_on_touch(&self, on_touch: OnTouch) -> Result<(), Errno> {
        let arg = match on_touch {
            OnTouch::Note => SetModeArg {
                enable: feature::RWP_ASYNC,
                disable: 0,
            },
            OnTouch::Report => SetModeArg {
                enable: 0,
                disable: feature::RWP_ASYNC,
            },
        };
        // SAFETY: opcode and struct belong together; the kernel only reads the struct.
        unsafe { ioctl::ioctl(&self.fd, Setter::<SET_MODE, _>::new(arg)) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::own::Mapping;
    use crate::page::{PAGE_SIZE, PageNumber};
    use crate::pagemap::Pagemap;
    use crate::uffd::{Event, Message, open_for_user_mode};

    /// Pages of a scratch mapping, all present, page i full of bytes i + 1, and a userfaultfd for them.
    fn scratch(pages: usize, features: u64) -> Option<(Mapping, Uffd)> {
        let kernel = Uffd::kernel_features(open_for_user_mode().ok()?).unwrap();
        if kernel & feature::RWP == 0 {
            eprintln!("SKIPPED: this kernel has no read-write protection (Linux 7.3)");
            return None;
        }
        let memory = Mapping::new(pages * PAGE_SIZE).unwrap();
        for index in 0..pages {
            // SAFETY: in our own mapping, which nobody else uses.
            unsafe {
                memory
                    .as_ptr()
                    .add(index * PAGE_SIZE)
                    .write_bytes(index as u8 + 1, PAGE_SIZE)
            };
        }
        let uffd = Uffd::negotiate(open_for_user_mode().unwrap(), features).unwrap();
        uffd.register_read_write_protect(memory.range()).unwrap();
        Some((memory, uffd))
    }

    fn read(memory: &Mapping, index: usize) -> u8 {
        // SAFETY: in our own mapping.
        unsafe { memory.as_ptr().add(index * PAGE_SIZE + 7).read_volatile() }
    }

    fn write(memory: &Mapping, index: usize, byte: u8) {
        // SAFETY: in our own mapping, of which every byte is only ever read again.
        unsafe { memory.as_ptr().add(index * PAGE_SIZE).write_volatile(byte) }
    }

    fn next_fault(uffd: &Uffd) -> Event {
        let begun = Instant::now();
        loop {
            let mut messages = [Message::default()];
            if uffd.read(&mut messages).unwrap() == 1 {
                return messages[0].decode();
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "no fault is reported"
            );
            std::thread::yield_now();
        }
    }

    fn untouched(memory: &Mapping) -> Vec<u64> {
        let mut found = Vec::new();
        let report =
            |run: PageRange| found.extend(run.iter().map(|page| page.0 - memory.range().start.0));
        Pagemap::open()
            .not_accessed(memory.range(), report)
            .unwrap();
        found
    }

    fn one(memory: &Mapping, index: u64) -> (PageNumber, PageRange) {
        let page = memory.range().start.add(index);
        (page, PageRange::one(page))
    }

    #[test]
    fn a_touch_is_reported_and_goes_on_when_protection_ends() {
        let Some((memory, uffd)) = scratch(4, feature::RWP) else {
            return;
        };
        uffd.read_write_protect(memory.range(), true).unwrap();
        for (index, is_write) in [(1, false), (2, true)] {
            let went_on = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    match is_write {
                        true => write(&memory, index, 99),
                        false => assert_eq!(read(&memory, index), index as u8 + 1),
                    }
                    went_on.store(true, SeqCst);
                });
                let (page, range) = one(&memory, index as u64);
                match next_fault(&uffd) {
                    Event::Fault {
                        page: faulted,
                        read_write_protect: true,
                        write,
                        ..
                    } => assert_eq!((faulted, write), (page, is_write)),
                    other => panic!("{other:?}"),
                }
                assert!(!went_on.load(SeqCst), "it waits");
                uffd.read_write_protect(range, false).unwrap();
            });
            assert!(went_on.load(SeqCst));
        }
        uffd.read_write_protect(memory.range(), false).unwrap();
        assert_eq!([0, 1, 3].map(|index| read(&memory, index)), [1, 2, 4]);
        // SAFETY: in our own mapping.
        assert_eq!(unsafe { memory.as_ptr().add(2 * PAGE_SIZE).read() }, 99);
    }

    #[test]
    fn what_nobody_touched_is_known_and_bytes_stay() {
        let Some((memory, uffd)) = scratch(16, feature::RWP | feature::RWP_ASYNC) else {
            return;
        };
        assert_eq!(untouched(&memory), [0; 0], "nothing is protected yet");
        uffd.read_write_protect(memory.range(), true).unwrap();
        assert_eq!(untouched(&memory), (0..16).collect::<Vec<u64>>());
        assert_eq!(read(&memory, 3), 4);
        write(&memory, 5, 5);
        let rest = (0..16).filter(|index| ![3, 5].contains(index));
        let rest: Vec<u64> = rest.collect();
        assert_eq!(untouched(&memory), rest);
        // From here on nothing slips by.
        uffd.set_on_touch(OnTouch::Report).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(read(&memory, 9), 10));
            let (page, range) = one(&memory, 9);
            assert!(
                matches!(next_fault(&uffd), Event::Fault { page: faulted, .. } if faulted == page)
            );
            assert_eq!(untouched(&memory), rest, "it still waits");
            uffd.read_write_protect(range, false).unwrap();
        });
        uffd.set_on_touch(OnTouch::Note).unwrap();
        for index in 0..16 {
            assert_eq!(read(&memory, index), index as u8 + 1);
        }
        assert_eq!(untouched(&memory), [0; 0]);
    }

    #[test]
    fn a_page_that_was_dropped_is_no_page_that_nobody_touched() {
        let Some((memory, uffd)) = scratch(4, feature::RWP | feature::RWP_ASYNC) else {
            return;
        };
        uffd.read_write_protect(memory.range(), true).unwrap();
        let (_, range) = one(&memory, 2);
        // SAFETY: nobody needs the page's bytes.
        unsafe { crate::memory::drop_pages(range) }.unwrap();
        assert_eq!(untouched(&memory), [0, 1, 3]);
        assert_eq!(read(&memory, 2), 0);
        assert_eq!(untouched(&memory), [0, 1, 3]);
    }

    #[test]
    fn what_it_is_not_for_is_an_error() {
        let Some((memory, uffd)) = scratch(2, feature::RWP | feature::PAGEFAULT_FLAG_WP) else {
            return;
        };
        let other = Mapping::new(PAGE_SIZE).unwrap();
        assert_eq!(
            uffd.read_write_protect(other.range(), true),
            Err(Stop::Absent),
            "not registered"
        );
        uffd.register_write_protect(other.range()).unwrap();
        assert!(
            uffd.read_write_protect(other.range(), true).is_err(),
            "registered for write-protection"
        );
        let both = super::super::REGISTER_MODE_WP | REGISTER_MODE_RWP;
        assert_eq!(uffd.register_modes(memory.range(), both), Err(Errno::INVAL));
        let without = Uffd::negotiate(open_for_user_mode().unwrap(), 0);
        let without = without.unwrap();
        assert_eq!(without.set_on_touch(OnTouch::Note), Err(Errno::INVAL));
    }
}
