//! Memory that has grown in place and is not known yet.
//!
//! `mremap` and `brk` lengthen a mapping, and the new part has what the mapping has: it is
//! registered, and marked to be left out of forked children. Until the scanner has attached it, a
//! fork would not know to take that mark off.
use pagetide_kernel::maps::{Backing, Maps};
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::{PageRange, each_gap, own};
use pagetide_pager::Pager;
use rustix::io::Errno;

use crate::requests;

/// How long a fork waits for such memory to be attached.
const PATIENCE_NS: u64 = 2_000_000_000;

/// While the pager holds still, which has then acted on every event: whether a mapping that is
/// under it in part has a part that is not, nor is Pagetide's own. Where the list cannot be read,
/// nothing is known of any.
pub fn is_there(pager: &Pager) -> bool {
    let managed = pager.managed_ranges();
    let mut found = false;
    let read = Maps::open_by_path().and_then(|mut maps| {
        maps.for_each(|mapping| {
            if mapping.backing != Backing::Anonymous || found {
                return;
            }
            let first = managed.partition_point(|m| m.end <= mapping.range.start);
            let inside = managed[first..]
                .iter()
                .take_while(|m| m.start < mapping.range.end);
            let mut known: Vec<PageRange> = inside.copied().collect();
            if known.is_empty() {
                return;
            }
            own::overlapping(mapping.range, |own| known.push(own));
            known.sort_unstable_by_key(|part| part.start);
            each_gap(mapping.range, known.into_iter(), |_| found = true);
        })
    });
    read.is_ok() && found
}

/// What `hold` gives once nothing has grown unknown; `EAGAIN` if that is so for two seconds.
pub fn until_known<H>(hold: impl Fn() -> Option<H>) -> Result<H, Errno> {
    let until_ns = now_ns() + PATIENCE_NS;
    loop {
        if let Some(held) = hold() {
            return Ok(held);
        }
        if now_ns() > until_ns {
            return Err(Errno::AGAIN);
        }
        requests::look_now();
    }
}
