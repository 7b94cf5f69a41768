//! Bringing a snapshot back page by page: the memory is there at once, and each page arrives when
//! it is touched, or when the background gets to it.
//!
//! A page is installed with `UFFDIO_COPY`, which never overwrites one that is there. So the threads
//! that fetch need not agree on who fetches what: a block fetched twice costs time, never bytes.
//! When everything has been fetched the memory is unregistered and is plain memory.
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;

use pagetide_kernel::memory::set_inherited;
use pagetide_kernel::uffd::{self, Uffd, feature};
use pagetide_kernel::{PAGE_SIZE, own};
use rustix::fd::OwnedFd;

use super::fetch::{Fetcher, Place};
use super::image::{Image, ImageRegion};
use super::restore_plan::{LazyPlan, RestoreError};
use super::working_set::WorkingSet;
use crate::error::{TrackError, system};
use crate::mapping::Mapping;
use crate::threads::{self, lock};

/// Memory that comes back from a snapshot: its regions, as mappings.
///
/// Until [`Restored::wait`] returns, the memory must not be emptied (`madvise`), unmapped or moved:
/// emptied pages would be fetched again. A child forked before that does not find the memory at
/// all, rather than zeros where pages had not arrived. A damaged block ends in SIGBUS for those who
/// touch it (Linux 6.6; before, the process is ended), never in zeros.
///
/// A mapping taken out of it is served until it is dropped itself.
///
/// ```
/// use pagetide::track::{Image, LazyPlan, Mapping, restore};
///
/// fn bring_back(path: &str) -> Result<Mapping, Box<dyn std::error::Error>> {
///     let mut restored = restore(Image::open(path)?, LazyPlan::default())?;
///     let table = restored.take_region("table").ok_or("the snapshot has no table")?;
///     println!("begins with {:?}", &table.as_slice()[..8]); // these bytes are fetched now
///     restored.wait()?; // all of it is there
///     Ok(table)
/// }
/// ```
pub struct Restored {
    regions: Vec<(String, Mapping)>,
    service: Arc<Service>,
}

/// The threads that bring pages. They end when nobody has the memory any more.
struct Service {
    shared: Arc<Fetcher>,
    threads: Vec<JoinHandle<()>>,
}

/// Restores all regions of `image` into new memory, which can be used when this returns.
///
/// # Errors
/// [`RestoreError`]; nothing is left mapped.
pub fn restore(image: Image, plan: LazyPlan) -> Result<Restored, RestoreError> {
    let has = Uffd::kernel_features(open()?).map_err(system("UFFDIO_API"))?;
    let uffd = Uffd::negotiate(open()?, has & feature::POISON).map_err(system("UFFDIO_API"))?;
    for (name, _) in &plan.addresses {
        image.region(name)?;
    }
    let mut places = Vec::new();
    for region in image.regions() {
        let memory = Arc::new(map(region, &plan)?);
        let first = region.first;
        places.push(Place { memory, first });
    }
    let shared = Arc::new(Fetcher::new(image, places, uffd, plan)?);
    let service = Arc::new(Service::start(&shared)?);
    let region = |(place, region): (&Place, &ImageRegion)| {
        let service = Arc::clone(&service) as Arc<dyn Any + Send + Sync>;
        let mapping = Mapping::of(Arc::clone(&place.memory), Some(service));
        (region.name.clone(), mapping)
    };
    let regions = shared.places.iter().zip(shared.image.regions());
    Ok(Restored {
        regions: regions.map(region).collect(),
        service,
    })
}

/// Memory for `region`, where the plan has it.
fn map(region: &ImageRegion, plan: &LazyPlan) -> Result<own::Mapping, RestoreError> {
    let failed = || RestoreError::Map(region.name.clone(), region.pages);
    let len = usize::try_from(region.pages)
        .ok()
        .and_then(|pages| pages.checked_mul(PAGE_SIZE))
        .filter(|len| *len < 1 << 46)
        .ok_or_else(failed)?;
    let mut addresses = plan.addresses.iter();
    match addresses.find(|(name, _)| *name == region.name) {
        None => own::Mapping::new(len).map_err(|_| failed()),
        Some((name, address)) => {
            own::Mapping::at(*address, len).map_err(|errno| RestoreError::Address {
                name: name.clone(),
                address: *address,
                why: std::io::Error::from(errno).to_string(),
            })
        }
    }
}

impl Service {
    fn start(shared: &Arc<Fetcher>) -> Result<Service, RestoreError> {
        // Dropped on an early return, it ends the threads that run.
        let mut service = Service {
            shared: Arc::clone(shared),
            threads: Vec::new(),
        };
        service.add("pagetide-lazy", Fetcher::serve_faults)?;
        for place in &shared.places {
            // SAFETY: the thread just started serves the faults and never touches this memory;
            // nobody else knows it yet.
            let registered = unsafe { shared.uffd.register_missing(place.memory.range()) };
            registered.map_err(system("registering memory for missing faults"))?;
            let _ = set_inherited(place.memory.range(), false);
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = match shared.plan.fetches_all() {
            true => processors.min(4),
            false => usize::from(shared.plan.working_set.is_some()),
        };
        shared.workers.store(workers, SeqCst);
        for _ in 0..workers {
            service.add("pagetide-fetch", Fetcher::fetch_rest)?;
        }
        Ok(service)
    }

    fn add(&mut self, name: &str, body: fn(&Fetcher)) -> Result<(), TrackError> {
        let shared = Arc::clone(&self.shared);
        self.threads
            .push(threads::start(name, move || body(&shared))?);
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.ending.come();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn open() -> Result<OwnedFd, TrackError> {
    uffd::open_for_user_mode().map_err(Into::into)
}

impl Restored {
    /// The memory of region `name`; none if there is no such region, or it was taken.
    pub fn region(&self, name: &str) -> Option<&Mapping> {
        let found = self.regions.iter().find(|(of, _)| of == name);
        found.map(|(_, mapping)| mapping)
    }

    /// The memory of region `name`, to be kept and written.
    pub fn take_region(&mut self, name: &str) -> Option<Mapping> {
        let number = self.regions.iter().position(|(of, _)| of == name)?;
        Some(self.regions.swap_remove(number).1)
    }

    /// The snapshot restored.
    pub fn image(&self) -> &Image {
        &self.service.shared.image
    }

    /// Pages that somebody had to wait for.
    pub fn faults(&self) -> u64 {
        self.service.shared.faults.load(SeqCst)
    }

    /// The pages touched so far, in order; for a restore that records.
    pub fn working_set(&self) -> WorkingSet {
        WorkingSet {
            snapshot: self.image().files()[0].header().id,
            pages: lock(&self.service.shared.touched).clone(),
        }
    }

    /// Whether all of it is there.
    pub fn is_complete(&self) -> bool {
        matches!(*self.service.shared.done.look(), Some(Ok(())))
    }

    /// Waits until all of it is there and the memory is plain memory. Without background, and when
    /// recording, this returns only after a failure.
    ///
    /// # Errors
    /// What made it fail first: [`RestoreError::File`] or [`RestoreError::Install`].
    pub fn wait(&self) -> Result<(), RestoreError> {
        let done = self.service.shared.done.wait();
        done.clone().expect("it was waited for")
    }
}

impl std::fmt::Debug for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restored")
            .field("image", &self.image().files()[0].name())
            .finish_non_exhaustive()
    }
}
