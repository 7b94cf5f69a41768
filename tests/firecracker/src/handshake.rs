//! What Firecracker says to the handler of its page faults, in one message, and in other ways of
//! saying the same.
use std::io::Write as _;
use std::mem::forget;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::Serialize;
use userfaultfd::Uffd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket as _;

use crate::memory::{HUGE, Memory};
use crate::{Options, image, stop_at};

/// A region, by the names of Firecracker's.
#[derive(Serialize)]
struct GuestRegionUffdMapping {
    base_host_virt_addr: u64,
    size: usize,
    offset: u64,
    page_size: usize,
    page_size_kib: usize,
}

/// Connects, says where the memory is, and hands over the userfaultfd.
pub fn send(socket: &Path, memory: &Memory, uffd: &Uffd, options: &Options) -> Result<(), String> {
    let page_size = if options.is_huge {
        HUGE
    } else {
        image::PAGE_SIZE
    };
    let mut offset = 0;
    let mut mappings = Vec::new();
    for (address, size) in memory.places() {
        mappings.push(GuestRegionUffdMapping {
            base_host_virt_addr: address as u64,
            size,
            offset,
            page_size,
            page_size_kib: page_size,
        });
        offset += size as u64;
    }
    let mut said = serde_json::to_string(&mappings).expect("numbers alone");
    if options.handshake == "padded" {
        said.insert_str(0, &" ".repeat(100_000));
    }
    let mut connection =
        UnixStream::connect(socket).map_err(|error| format!("{}: {error}", socket.display()))?;
    if options.stop == "connected" {
        stop_at("connected");
    }
    let other = memfd::MemfdOptions::default().create("guest_mem");
    let other = other.map_err(|error| format!("no memfd: {error}"))?;
    let descriptors: Vec<RawFd> = match options.memfd.as_deref() {
        None => vec![uffd.as_raw_fd()],
        Some("first") => vec![other.as_raw_fd(), uffd.as_raw_fd()],
        Some(_) => vec![uffd.as_raw_fd(), other.as_raw_fd()],
    };
    let whole = said.as_bytes();
    let is_split = options.handshake == "split" || options.stop == "half";
    let (first, rest) = whole.split_at(if is_split { 21 } else { whole.len() });
    let sent = if let [one] = descriptors[..] {
        connection.send_with_fd(first, one)
    } else {
        connection.send_with_fds(&[first], &descriptors)
    };
    match sent {
        // The rest of a message that was not taken whole.
        Ok(count) => connection
            .write_all(&first[count..])
            .map_err(|error| error.to_string())?,
        Err(error) => return Err(format!("the descriptors were not sent: {error}")),
    }
    if options.stop == "half" {
        stop_at("half");
    }
    for part in rest.chunks(13) {
        connection
            .write_all(part)
            .map_err(|error| error.to_string())?;
    }
    // Firecracker neither reads from it nor closes it.
    forget(connection);
    Ok(())
}
