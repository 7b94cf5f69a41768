//! userfaultfd: fault and event messages, and the operations that install, protect and move pages.
//!
//! Errnos are named once here: `EEXIST` is [`Stop::Present`], `ENOENT` [`Stop::Absent`], `EAGAIN`
//! [`Stop::EventPending`], `EBUSY` [`Stop::Pinned`], `ESRCH` [`Stop::Gone`], `EINVAL`
//! [`Stop::Refused`].
mod abi;
mod descriptor;
pub mod event_log;
pub mod events;
pub mod feature;
mod foreign;
mod message;
mod moving;
mod open;
mod rwp;

pub use abi::{Progress, Stop};
pub use descriptor::Uffd;
pub use foreign::ForeignError;
pub use message::{Event, Message};
pub(crate) use open::open_by_syscall;
pub use open::{OpenError, open, open_device, open_for_user_mode};
pub use rwp::OnTouch;
