//! What the dynamic loader has loaded: our own code, the C library, and where the thread-local
//! variables of each object are.
use std::sync::atomic::{AtomicU32, Ordering};

use crate::thread_id::thread_pointer;

/// Below the thread pointer: the static thread-local blocks of every library loaded at start
/// (`errno` among them).
pub(crate) const TLS_BYTES: usize = 64 << 10;
/// Loaded objects that a raw thread's vector has room for.
pub(crate) const DTV_ENTRIES: usize = 250;

/// Where the thread-local variables of a loaded object lie relative to the thread pointer, as the
/// dynamic loader placed them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TlsImage {
    pub module: usize,
    pub offset_below: usize,
    pub image: usize,
    pub image_len: usize,
}

/// The thread-local images of everything loaded at start: with them `thread_local!` works on a raw
/// thread, and the C library finds its locale (which even formatting an error number needs).
pub(crate) fn tls_images() -> Vec<TlsImage> {
    thread_local!(static ANCHOR: AtomicU32 = const { AtomicU32::new(0) });
    ANCHOR.with(|a| a.store(1, Ordering::Relaxed));
    let mut images = Vec::with_capacity(64);
    for_each_object(|info| {
        let offset_below = thread_pointer().wrapping_sub(info.dlpi_tls_data as usize);
        if info.dlpi_tls_data.is_null()
            || offset_below > TLS_BYTES
            || info.dlpi_tls_modid >= DTV_ENTRIES
        {
            return;
        }
        for header in headers(info).iter().filter(|h| h.p_type == libc::PT_TLS) {
            let image = info.dlpi_addr as usize + header.p_vaddr as usize;
            images.push(TlsImage {
                module: info.dlpi_tls_modid,
                offset_below,
                image,
                image_len: header.p_filesz as usize,
            });
        }
    });
    images
}

fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the loader describes a live object; its program headers stay mapped while it is
    // loaded, which this one is.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) }
}

/// Calls `visit` with the loader's description of the object this code is in.
fn for_own_object(mut visit: impl FnMut(&libc::dl_phdr_info)) {
    for_each_object(|info| {
        let here = for_each_object::<fn(&libc::dl_phdr_info)> as *const () as usize;
        let holds = |h: &libc::Elf64_Phdr| {
            let start = info.dlpi_addr as usize + h.p_vaddr as usize;
            h.p_type == libc::PT_LOAD && (start..start + h.p_memsz as usize).contains(&here)
        };
        if headers(info).iter().any(holds) {
            visit(info);
        }
    });
}

fn for_each_object<F: FnMut(&libc::dl_phdr_info)>(mut visit: F) {
    unsafe extern "C" fn callback<F: FnMut(&libc::dl_phdr_info)>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        data: *mut libc::c_void,
    ) -> i32 {
        // SAFETY: the loader passes a valid description, and `data` is the closure handed in below.
        unsafe { (*data.cast::<F>())(&*info) };
        0
    }
    // SAFETY: the callback matches the closure type, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(callback::<F>), (&raw mut visit).cast()) };
}

/// The executable part of the object this code is in, as (address, bytes). Asks the loader once.
pub fn own_text() -> (usize, usize) {
    static TEXT: std::sync::OnceLock<(usize, usize)> = std::sync::OnceLock::new();
    *TEXT.get_or_init(find_own_text)
}

fn find_own_text() -> (usize, usize) {
    let mut text = (0, 0);
    for_own_object(|info| {
        for h in headers(info)
            .iter()
            .filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0)
        {
            text = (
                info.dlpi_addr as usize + h.p_vaddr as usize,
                h.p_memsz as usize,
            );
        }
    });
    text
}

/// Calls `visit` with the (address, bytes) of every loaded segment of this library, of the C
/// library and of the dynamic loader: the state that our own code may touch while no fault can be
/// served.
pub fn for_each_runtime_segment(mut visit: impl FnMut(usize, usize)) {
    let (own, _) = own_text();
    for_each_object(|info| {
        let name = match info.dlpi_name.is_null() {
            true => b"",
            // SAFETY: a name that is not null is a C string of the loader's.
            false => unsafe { std::ffi::CStr::from_ptr(info.dlpi_name) }.to_bytes(),
        };
        let file = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let segments = || headers(info).iter().filter(|h| h.p_type == libc::PT_LOAD);
        let span = |h: &libc::Elf64_Phdr| {
            (
                info.dlpi_addr as usize + h.p_vaddr as usize,
                h.p_memsz as usize,
            )
        };
        let ours = segments().any(|h| span(h).0 == own);
        if ours || file.starts_with(b"libc.so") || file.starts_with(b"ld-linux") {
            segments()
                .map(span)
                .for_each(|(address, len)| visit(address, len));
        }
    });
}
