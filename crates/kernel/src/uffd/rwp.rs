//! Read-write protection (`UFFD_FEATURE_RWP`, Linux 7.3): a page that is there keeps its bytes and
//! may not be touched, so that whoever does is told of, or leaves a trace.
//!
//! Synchronous, a touch is a fault message that names the page as protected, and its thread waits
//! until protection is ended. Asynchronous, the kernel ends protection itself, and
//! [`crate::pagemap::Pagemap::not_accessed`] tells the pages that nobody touched. The two modes are
//! switched at run time. A way to find pages that are not used: protect asynchronously, wait,
//! switch to synchronous so that nothing slips by, take those that were not touched.
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Setter, Updater, opcode};

use super::abi::{GROUP, REGISTER_MODE_RWP, RangeArg, Stop, range_arg};
use super::descriptor::Uffd;
use super::feature;
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
    /// Registers private anonymous memory for read-write protection alone: nothing changes for the
    /// program before something is protected.
    /// [`feature::RWP`] must have been negotiated.
    ///
    /// # Errors
    /// `EINVAL` on kernels before 7.3, without the feature, and for memory registered for
    /// write-protection; `EBUSY` for memory of another userfaultfd.
    pub fn register_read_write_protect(&self, range: PageRange) -> Result<(), Errno> {
        self.register_modes(range, REGISTER_MODE_RWP)
    }

    /// Protects the present pages of `range`, or ends that and wakes the threads that wait for
    /// them.
    ///
    /// # Errors
    /// [`Stop::Absent`] where nothing is registered for it; [`Stop::EventPending`] to be tried
    /// again.
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

    /// What touches of protected pages do from now on; whoever negotiates [`feature::RWP_ASYNC`]
    /// begins with [`OnTouch::Note`], and both modes can be chosen where [`feature::RWP`] was
    /// negotiated.
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
