//! Mapping only the page that is touched.
//!
//! At a fault on a file the kernel maps what the page cache holds around the page as well
//! (*fault-around*: 16 pages; a whole folio of 2 MiB), and in a locked mapping all of that is
//! locked. It does not do so where `userfaultfd` looks after writes, because each page must be met
//! there. Registered with `WP_ASYNC`, of which nothing is ever asked here, any memory is mapped
//! page by page, and no fault is delivered to anybody.
use std::io;

use pagetide_kernel::PageRange;
use pagetide_kernel::mlock::{self, Hint};
use pagetide_kernel::uffd::{self, Uffd, feature};

/// Ends fault-around, and mapping by huge pages, in `range`, which is a private mapping, for as
/// long as what is returned lives.
pub(super) fn without_fault_around(range: PageRange) -> io::Result<Uffd> {
    let open = || {
        uffd::open_for_user_mode().map_err(|error| {
            io::Error::other(format!(
                "Access::Exact: {error}; expected userfaultfd to be permitted (a container's \
                 seccomp profile may forbid it); Access::Random needs none"
            ))
        })
    };
    let has = Uffd::kernel_features(open()?)?;
    if has & feature::WP_ASYNC == 0 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "Access::Exact: userfaultfd here lacks WP_ASYNC; expected Linux 6.7 or later; \
             Access::Random works on every kernel",
        ));
    }
    // A folio of 2 MiB is mapped whole at a touch, userfaultfd or not. A kernel without huge pages
    // refuses the hint; then there is nothing to prevent.
    let _ = mlock::hint(range, Hint::NoHugePage);
    let uffd = Uffd::negotiate(open()?, feature::WP_ASYNC)?;
    uffd.register_write_protect(range)?;
    Ok(uffd)
}
