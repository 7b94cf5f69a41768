//! A client as Firecracker is one, and the handler that it is compared with.
#![allow(unsafe_code)] // memory under a userfaultfd is read through raw pointers, as a guest's is
use std::fs::File;
use std::io::{Error, IoSlice, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use pagetide_kernel::uffd::{Event, Message, Uffd, feature, open};
use pagetide_kernel::{PageNumber, PageRange};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::content::PAGE_BYTES;
use crate::memory::{HugePages, Plain};

/// How long a handler may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Messages that the bare handler reads at once.
const MESSAGES: usize = 64;

/// Memory of so many bytes whose pages a handler brings.
pub struct Client {
    // Closed before the memory goes: nobody hears any more that it does.
    _uffd: Uffd,
    _connection: UnixStream,
    memory: Plain,
}

impl Client {
    /// Connects to the handler at `socket`, which may not listen yet, for an image of `len` bytes.
    pub fn connect(socket: &Path, len: usize) -> Result<Client> {
        let memory = Plain::new(len, HugePages::Never)?;
        let uffd = Uffd::negotiate(open(None).map_err(Error::other)?, feature::EVENT_REMOVE)?;
        // SAFETY: only this client touches the memory, and the handler serves it.
        unsafe { uffd.register_missing(memory.range()) }?;
        let base = memory.as_ptr() as usize;
        let region = format!(
            "[{{\"base_host_virt_addr\":{base},\"size\":{len},\"offset\":0,\"page_size\":4096}}]"
        );
        let until = Instant::now() + PATIENCE;
        let connection = loop {
            match UnixStream::connect(socket) {
                Err(_) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                result => break result?,
            }
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [uffd.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let said = [IoSlice::new(region.as_bytes())];
        sendmsg(&connection, &said, &mut control, SendFlags::NOSIGNAL)?;
        Ok(Client {
            _uffd: uffd,
            _connection: connection,
            memory,
        })
    }

    /// Reads a byte of page `page`.
    pub fn touch(&self, page: usize) {
        assert!(page < self.memory.pages());
        // SAFETY: a byte of the mapping, which nobody writes but the kernel, before it is read.
        unsafe { self.memory.as_ptr().add(page * PAGE_BYTES).read_volatile() };
    }
}

/// What the bare handler does.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bare {
    /// Where it listens.
    pub socket: PathBuf,
    /// The image, a raw file.
    pub image: PathBuf,
}

/// Serves one client to its end, each fault by a copy of its page from the mapped image.
pub fn bare(task: &Bare) -> std::result::Result<(), String> {
    serve(task).map_err(|error| error.to_string())
}

fn serve(task: &Bare) -> Result<()> {
    let listener = UnixListener::bind(&task.socket)?;
    let image = File::open(&task.image)?;
    let len = image.metadata()?.len() as usize;
    let (rights, flags) = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: a new mapping at a place of the kernel's choice, which stays.
    let image = unsafe { mmap(null_mut(), len, rights, flags, &image, 0) }?.cast::<u8>();
    let (connection, _) = listener.accept()?;
    let (base, descriptor) = receive(&connection)?;
    let uffd = Uffd::adopt(descriptor).map_err(Error::other)?;
    let first = PageNumber::containing(base).0;
    loop {
        let mut fds = [
            PollFd::new(&uffd, PollFlags::IN),
            PollFd::new(&connection, PollFlags::RDHUP),
        ];
        poll(&mut fds, None)?;
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        let mut messages = [Message::default(); MESSAGES];
        let read = uffd.read(&mut messages)?;
        for message in &messages[..read] {
            if let Event::Fault { page, .. } = message.decode() {
                let from = image.wrapping_add((page.0 - first) as usize * PAGE_BYTES);
                // SAFETY: the client's memory is an image of the file, which is mapped as a whole.
                unsafe { uffd.copy(PageRange::one(page), from, false) };
            }
        }
    }
}

/// Where the client's memory begins, and its userfaultfd.
fn receive(connection: &UnixStream) -> Result<(usize, OwnedFd)> {
    let mut said = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut said)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let count = recvmsg(connection, &mut slices, &mut control, flags)?.bytes;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let regions: serde_json::Value = serde_json::from_slice(&said[..count])?;
    let base = regions[0]["base_host_virt_addr"].as_u64();
    match (base, descriptor) {
        (Some(base), Some(descriptor)) => Ok((base as usize, descriptor)),
        _ => Err(Error::other("the client said something else")),
    }
}
