//! A client as Firecracker is one: anonymous memory, a userfaultfd over it, one message.
use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use pagetide_kernel::uffd::{Uffd, feature, open};
use pagetide_kernel::{PAGE_SIZE, PageNumber, PageRange};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed, munmap,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::support::patience::up_to;

/// What page `number` of every image here holds; one in five is zeros.
pub fn expected(number: u64) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    if number % 5 != 3 {
        for (at, word) in page.chunks_exact_mut(8).enumerate() {
            let mixed = (number * 512 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&mixed.to_le_bytes());
        }
    }
    page
}

/// Does `work` in a thread of its own: a page that does not come is a failure, and no test hangs.
pub fn within_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(work()));
    let result = result.recv_timeout(up_to(60));
    result.expect("a page did not come, or what it holds is wrong")
}

/// Some memory whose pages the server brings.
pub struct Guest {
    base: usize,
    pages: u64,
    page_bytes: u64,
    pub uffd: Uffd,
    connection: Option<UnixStream>,
    /// Some of it is unmapped, and may be memory of others by now.
    torn: AtomicBool,
}

impl Guest {
    /// Its memory and userfaultfd; nobody has heard of it yet.
    pub fn new(pages: u64, features: u64) -> Guest {
        let len = pages as usize * PAGE_SIZE;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(null_mut(), len, rights, flags) }.unwrap();
        // A page is a page: no huge one is to come of it.
        // SAFETY: advice that changes no bytes, over this mapping.
        unsafe { madvise(base, len, Advice::LinuxNoHugepage) }.ok();
        Guest::over(base as usize, pages, PAGE_SIZE as u64, features)
    }

    /// Memory of huge pages of 2 MiB, as many of these as make `pages`; `None` where there are none
    /// to be had.
    pub fn huge(pages: u64) -> Option<Guest> {
        let len = pages as usize * PAGE_SIZE;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let flags = flags | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(null_mut(), len, rights, flags) }.ok()?;
        let features = feature::EVENT_REMOVE;
        Some(Guest::over(base as usize, pages, 2 << 20, features))
    }

    fn over(base: usize, pages: u64, page_bytes: u64, features: u64) -> Guest {
        let uffd = Uffd::negotiate(open(None).unwrap(), features).unwrap();
        let range = PageRange::of(PageNumber::containing(base), pages);
        // SAFETY: only threads of these tests touch it, and the server serves it.
        unsafe { uffd.register_missing(range) }.unwrap();
        Guest {
            base,
            pages,
            page_bytes,
            uffd,
            connection: None,
            torn: AtomicBool::new(false),
        }
    }

    /// With the features Firecracker asks for, connected and told of as one region.
    pub fn connected(pages: u64, socket: &Path) -> Guest {
        let mut guest = Guest::new(pages, feature::EVENT_REMOVE);
        let regions = guest.regions(&[(0, pages, 0)]);
        guest.connect(socket, &[&regions]);
        guest
    }

    /// Regions (first page here, pages, first page in the image) as Firecracker tells of them.
    pub fn regions(&self, regions: &[(u64, u64, u64)]) -> String {
        let region = |(first, pages, image): &(u64, u64, u64)| {
            serde_json::json!({
                "base_host_virt_addr": self.base as u64 + first * 4096,
                "size": pages * 4096,
                "offset": image * 4096,
                "page_size": self.page_bytes,
                "page_size_kib": self.page_bytes,
            })
        };
        serde_json::Value::Array(regions.iter().map(region).collect()).to_string()
    }

    /// Says `parts` one by one, with the userfaultfd at the last.
    pub fn connect(&mut self, socket: &Path, parts: &[&str]) {
        let connection = UnixStream::connect(socket).unwrap();
        for (number, part) in parts.iter().enumerate() {
            let descriptors = [self.uffd.as_fd()];
            let is_last = number + 1 == parts.len();
            send(
                &connection,
                part.as_bytes(),
                &descriptors[..usize::from(is_last)],
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        self.connection = Some(connection);
    }

    /// Closes its connection, and lives on.
    pub fn hang_up(&mut self) {
        drop(self.connection.take().unwrap());
    }

    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Nothing is in it any more, and a new userfaultfd is over it.
    pub fn renew(&mut self, features: u64) {
        self.give_up(0, self.pages);
        self.uffd = Uffd::negotiate(open(None).unwrap(), features).unwrap();
        let range = PageRange::of(PageNumber::containing(self.base), self.pages);
        // SAFETY: only threads of these tests touch it, and the server serves it.
        unsafe { self.uffd.register_missing(range) }.unwrap();
    }

    pub fn address(&self, page: u64) -> usize {
        assert!(page < self.pages);
        self.base + page as usize * PAGE_SIZE
    }

    /// What page `page` holds; it comes by a fault if it is not there.
    pub fn read(&self, page: u64) -> [u8; PAGE_SIZE] {
        // SAFETY: the page is in this mapping, which lives until this value is dropped; other
        // threads write no page that is read at that time.
        unsafe { *(self.address(page) as *const [u8; PAGE_SIZE]) }
    }

    pub fn write(&self, page: u64, byte: u8) {
        // SAFETY: as above.
        unsafe { (self.address(page) as *mut u8).write_bytes(byte, PAGE_SIZE) };
    }

    /// What a balloon does.
    pub fn give_up(&self, first: u64, pages: u64) {
        let (address, len) = (self.address(first), pages as usize * PAGE_SIZE);
        // SAFETY: pages of this mapping; the tests expect zeros afterwards.
        unsafe { madvise(address as *mut c_void, len, Advice::LinuxDontNeed) }.unwrap();
    }

    /// For good. What is left then is not unmapped at the end.
    pub fn unmap(&self, first: u64, pages: u64) {
        self.torn.store(true, SeqCst);
        let (address, len) = (self.address(first), pages as usize * PAGE_SIZE);
        // SAFETY: pages of this mapping, which nobody touches any more.
        unsafe { munmap(address as *mut c_void, len) }.unwrap();
    }

    /// Maps page `page` anew, which unmaps what it was, and registers it.
    pub fn map_anew(&self, page: u64) {
        let (address, rights) = (self.address(page), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the place of a page of this mapping, which is touched again by one thread only.
        unsafe { mmap_anonymous(address as *mut c_void, PAGE_SIZE, rights, flags) }.unwrap();
        let range = PageRange::one(PageNumber::containing(address));
        // SAFETY: one thread touches it, which is left waiting.
        unsafe { self.uffd.register_missing(range) }.unwrap();
    }

    /// Moves pages to where `place` is, which they take.
    pub fn move_to(&self, first: u64, pages: u64, place: &Guest, at: u64) {
        self.torn.store(true, SeqCst);
        let (from, len) = (
            self.address(first) as *mut c_void,
            pages as usize * PAGE_SIZE,
        );
        let (to, flags) = (place.address(at) as *mut c_void, MremapFlags::MAYMOVE);
        // SAFETY: pages of this mapping, which nobody touches there any more, to pages of another,
        // which nobody has touched.
        unsafe { mremap_fixed(from, len, len, flags, to) }.unwrap();
    }

    /// Hands over the userfaultfd: it is not held here any more.
    pub fn hand_over(&mut self) -> Uffd {
        let other = Uffd::negotiate(open(None).unwrap(), 0).unwrap();
        std::mem::replace(&mut self.uffd, other)
    }

    pub fn verify(&self, first: u64, pages: u64, image: u64) {
        for number in 0..pages {
            let (page, expected) = (self.read(first + number), expected(image + number));
            assert!(
                page == expected,
                "page {} is not page {}",
                first + number,
                image + number
            );
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if self.torn.load(SeqCst) {
            return;
        }
        // Nobody may read any more that it is unmapped.
        drop(self.hand_over());
        let len = self.pages as usize * PAGE_SIZE;
        // SAFETY: this mapping, which is whole; nobody has its address any more.
        let _ = unsafe { munmap(self.base as *mut c_void, len) };
    }
}

/// Sends bytes with descriptors.
pub fn send(connection: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let sent = sendmsg(
        connection,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    assert_eq!(sent, Ok(bytes.len()));
}

/// Receives a byte with a descriptor.
pub fn receive(connection: &UnixStream) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    recvmsg(
        connection,
        &mut slices,
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .unwrap();
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// Whether the server closes the connection, as it does with those it refuses.
pub fn is_closed(mut connection: &UnixStream) -> bool {
    connection.set_read_timeout(Some(up_to(30))).unwrap();
    match connection.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}
