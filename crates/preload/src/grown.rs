//! Memory that has grown in place and is not known yet.
//!
//! `mremap` lengthens a mapping, and the new part has what the mapping has: it is registered, and
//! marked to be left out of forked children. Until the scanner has attached it, a fork would not
//! know to take that mark off.
use pagetide_kernel::maps::{Backing, Maps};
use pagetide_kernel::sync::now_ns;
use pagetide_kernel::{PageRange, each_gap, own};
use pagetide_pager::Pager;
use rustix::io::Errno;

use crate::requests;

/// How long a fork waits for such memory to be attached.
const PATIENCE_NS: u64 = 2_000_000_000;

/// Those of `ranges`, which are in order, that are in `mapping`, at least in part.
pub fn parts_in(mapping: PageRange, ranges: &[PageRange]) -> &[PageRange] {
    let first = ranges.partition_point(|range| range.end <= mapping.start);
    let count = ranges[first..].partition_point(|range| range.start < mapping.end);
    &ranges[first..first + count]
}

/// Calls `visit` with the parts of `mapping` that are in none of `known`, which are in order, and
/// not Pagetide's own.
pub fn each_unknown(mapping: PageRange, known: &[PageRange], visit: impl FnMut(PageRange)) {
    let mut taken = parts_in(mapping, known).to_vec();
    own::overlapping(mapping, |own| taken.push(own));
    taken.sort_unstable_by_key(|part| part.start);
    each_gap(mapping, taken.into_iter(), visit);
}

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
            let known = parts_in(mapping.range, &managed);
            if !known.is_empty() {
                each_unknown(mapping.range, known, |_| found = true);
            }
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
