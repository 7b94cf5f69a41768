//! A guest's memory, of the types of Firecracker's (`vm-memory`), and what a balloon does to it.
use userfaultfd::{FeatureFlags, Uffd, UffdBuilder};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{
    Bytes as _, GuestAddress, GuestMemoryRegion as _, GuestRegionMmap, MemoryRegionAddress,
};

use crate::image::PAGE_SIZE;

/// The size of huge pages, where they are asked for.
pub const HUGE: usize = 2 << 20;

/// Guest memory in regions that follow each other in the image.
pub struct Memory {
    regions: Vec<GuestRegionMmap>,
    /// Pages of each but the last.
    stride: usize,
    pub pages: usize,
}

impl Memory {
    /// Anonymous, private, and without a reservation, as for a snapshot that is restored.
    pub fn anonymous(pages: usize, regions: usize, is_huge: bool) -> Result<Memory, String> {
        let unit = if is_huge { HUGE / PAGE_SIZE } else { 1 };
        let stride = (pages / regions).next_multiple_of(unit);
        let mut flags = libc::MAP_NORESERVE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if is_huge {
            flags |= libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        }
        let make = |number: usize| {
            let first = number * stride;
            let is_last = number + 1 == regions;
            let len = if is_last { pages - first } else { stride } * PAGE_SIZE;
            let region = MmapRegionBuilder::new(len)
                .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
                .with_mmap_flags(flags)
                .build()
                .map_err(|error| format!("memory of {len} bytes: {error}"))?;
            // With gaps between them, as the one below 4 GiB.
            let address = GuestAddress((first * PAGE_SIZE * 2) as u64);
            GuestRegionMmap::new(region, address).ok_or("an address beyond the end".to_string())
        };
        let regions = (0..regions).map(make).collect::<Result<_, String>>()?;
        Ok(Memory {
            regions,
            stride,
            pages,
        })
    }

    /// Address here and size of each.
    pub fn places(&self) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        self.regions
            .iter()
            .map(|region| (region.as_ptr(), region.size()))
    }

    /// A userfaultfd over all of it, made as Firecracker makes its own.
    pub fn userfaultfd(&self) -> Result<Uffd, String> {
        let uffd = UffdBuilder::new()
            .require_features(FeatureFlags::EVENT_REMOVE)
            .close_on_exec(true)
            .non_blocking(true)
            .user_mode_only(false)
            .create()
            .map_err(|error| format!("no userfaultfd: {error}"))?;
        for (address, size) in self.places() {
            uffd.register(address.cast(), size)
                .map_err(|error| format!("a region is not registered: {error}"))?;
        }
        Ok(uffd)
    }

    fn place(&self, page: usize) -> (&GuestRegionMmap, MemoryRegionAddress) {
        let number = (page / self.stride).min(self.regions.len() - 1);
        let offset = (page - number * self.stride) * PAGE_SIZE;
        (&self.regions[number], MemoryRegionAddress(offset as u64))
    }

    pub fn read(&self, page: usize) -> [u8; PAGE_SIZE] {
        let mut bytes = [0; PAGE_SIZE];
        let (region, address) = self.place(page);
        region
            .read_slice(&mut bytes, address)
            .expect("it is in the region");
        bytes
    }

    pub fn write(&self, page: usize, bytes: &[u8; PAGE_SIZE]) {
        let (region, address) = self.place(page);
        region
            .write_slice(bytes, address)
            .expect("it is in the region");
    }

    /// Gives a page up, as Firecracker does with what a balloon takes.
    pub fn discard(&self, page: usize) {
        let (region, address) = self.place(page);
        let place = region
            .get_host_address(address)
            .expect("it is in the region");
        // SAFETY: a page of this mapping, to which nobody holds a reference.
        let result = unsafe { libc::madvise(place.cast(), PAGE_SIZE, libc::MADV_DONTNEED) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}
