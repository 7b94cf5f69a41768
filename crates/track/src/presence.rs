//! What a snapshot finds before it protects memory: pages that were emptied since, which lost their
//! protection, and absent pages where those cannot be protected.
use pagetide_kernel::memory::populate;
use pagetide_kernel::pagemap::Pagemap;
use pagetide_kernel::uffd::{self, Uffd, feature};
use pagetide_kernel::{PageRange, each_gap};
use rustix::io::Errno;

use super::error::{TrackError, system};

/// Tells of pages what protecting them depends on.
#[derive(Debug)]
pub(crate) struct Presence {
    pagemap: Pagemap,
    /// The page map has a bit for it (5.14).
    tells_protected: bool,
    /// Absent pages can be protected (`WP_UNPOPULATED`, 6.4).
    protects_absent: bool,
}

impl Presence {
    /// For memory that `uffd` protects.
    pub fn new(uffd: &Uffd) -> Result<Presence, TrackError> {
        let has = Uffd::kernel_features(uffd::open(None)?).map_err(system("UFFDIO_API"))?;
        Ok(Presence {
            pagemap: Pagemap::open(),
            // Both came with 5.14.
            tells_protected: has & feature::MINOR_SHMEM != 0,
            protects_absent: uffd.features() & feature::WP_UNPOPULATED != 0,
        })
    }

    /// Calls `found` with each part of `range`, which was protected as a whole, that may not be: it
    /// was emptied since. Before Linux 5.14, and where this process may not read its page map,
    /// nothing tells, and that is all of it.
    pub fn unprotected(
        &self,
        range: PageRange,
        mut found: impl FnMut(PageRange),
    ) -> Result<(), TrackError> {
        let mut protected = Vec::new();
        let told = match self.tells_protected {
            true => (self.pagemap).write_protected(range, |run| protected.push(run)),
            false => Err(Errno::NOTSUP),
        };
        match told {
            Ok(()) => each_gap(range, protected.into_iter(), found),
            Err(Errno::NOTSUP) => found(range),
            Err(errno) => return Err(TrackError::System("asking what is protected", errno)),
        }
        Ok(())
    }

    /// Makes the absent pages of `range` present where they could not be protected otherwise.
    pub fn prepare(&self, range: PageRange) -> Result<(), TrackError> {
        if self.protects_absent {
            return Ok(());
        }
        let mut absent = Vec::new();
        let present = self.present(range)?;
        each_gap(range, present.into_iter(), |gap| absent.push(gap));
        absent.into_iter().try_for_each(read_every_page)
    }

    /// The parts of `range` that are present or swapped out.
    fn present(&self, range: PageRange) -> Result<Vec<PageRange>, TrackError> {
        let mut present = Vec::new();
        self.pagemap
            .populated(range, |run, _| present.push(run))
            .map_err(system("asking which pages are present"))?;
        Ok(present)
    }
}

/// Makes every page of `range` present, an absent one by the shared page of zeros.
pub(crate) fn read_every_page(range: PageRange) -> Result<(), TrackError> {
    populate(range).map_err(system("reading memory beforehand"))
}
