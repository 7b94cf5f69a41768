//! Layer for tests: makes a store fail on purpose, below the checksums, so that whole programs can
//! be tested against it.
//!
//! `fault:RULE,RULE,...:URI`, for example
//! `fault:get-corrupt-after=100,get-corrupt-count=1:ram:?max=1G`. Pages are counted from zero over
//! the life of the store; `AFTER` is how many go well first, `COUNT` how many then fail (all, if
//! not said).
//!
//! | rule | effect |
//! |---|---|
//! | `put-fail-after`, `put-fail-count` | the put fails |
//! | `put-fail-every` | of those that would fail, one call in so many does |
//! | `put-full-after`, `put-full-count` | the put fails for lack of room |
//! | `get-fail-after`, `get-fail-count` | the get fails |
//! | `get-corrupt-after`, `get-corrupt-count` | one bit of the page read is wrong |
//! | `get-short-after`, `get-short-count` | only the first half of the page is read |
//! | `fail-kind` | what failing puts and gets say: `io` (if not said) or `temporary` |
//! | `put-delay-us`, `get-delay-us` | every call takes this much longer |

use super::retry::sleep;
use crate::device::Device;
use crate::uri::config;
use crate::{Capabilities, ErrorKind, PAGE_SIZE, Page, Slot, StoreError, Usage};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const RULES: [&str; 14] = [
    "put-fail-after",
    "put-fail-count",
    "put-fail-every",
    "put-full-after",
    "put-full-count",
    "get-fail-after",
    "get-fail-count",
    "get-corrupt-after",
    "get-corrupt-count",
    "get-short-after",
    "get-short-count",
    "fail-kind",
    "put-delay-us",
    "get-delay-us",
];

/// Fails from page `after` on, `count` times, one call in `every`.
#[derive(Default)]
struct Rule {
    after: Option<u64>,
    count: Option<u64>,
    every: Option<u64>,
    seen: AtomicU64,
    due: AtomicU64,
    hits: AtomicU64,
}

impl Rule {
    /// Counts `pages` and says whether this call fails.
    fn hits(&self, pages: usize) -> bool {
        let Some(after) = self.after else {
            return false;
        };
        let seen = self.seen.fetch_add(pages as u64, Relaxed) + pages as u64;
        let allowed = self.count.unwrap_or(u64::MAX);
        seen > after
            && self
                .due
                .fetch_add(1, Relaxed)
                .is_multiple_of(self.every.unwrap_or(1).max(1))
            && self
                .hits
                .fetch_update(Relaxed, Relaxed, |hits| {
                    (hits < allowed).then_some(hits + 1)
                })
                .is_ok()
    }
}

/// Passes calls on, except those its rules make fail.
pub(crate) struct Faulty<D> {
    inner: D,
    put_fail: Rule,
    put_full: Rule,
    get_fail: Rule,
    get_corrupt: Rule,
    get_short: Rule,
    fail_kind: ErrorKind,
    put_delay: Duration,
    get_delay: Duration,
}

impl<D: Device> Faulty<D> {
    /// `rules` is the part between `fault:` and the inner URI.
    pub(crate) fn new(rules: &str, inner: D) -> Result<Faulty<D>, StoreError> {
        let mut faulty = Faulty {
            inner,
            put_fail: Rule::default(),
            put_full: Rule::default(),
            get_fail: Rule::default(),
            get_corrupt: Rule::default(),
            get_short: Rule::default(),
            fail_kind: ErrorKind::Io,
            put_delay: Duration::ZERO,
            get_delay: Duration::ZERO,
        };
        for rule in rules.split(',').filter(|rule| !rule.is_empty()) {
            let (name, value) = rule.split_once('=').unwrap_or((rule, ""));
            faulty.apply(name, value)?;
        }
        Ok(faulty)
    }

    fn apply(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        if name == "fail-kind" {
            self.fail_kind = match value {
                "io" => ErrorKind::Io,
                "temporary" => ErrorKind::Temporary,
                _ => {
                    return Err(config(format!(
                        "fault rule `fail-kind`: `{value}` is neither io nor temporary"
                    )));
                }
            };
            return Ok(());
        }
        if !RULES.contains(&name) {
            let known = RULES.join(", ");
            return Err(config(format!(
                "unknown rule `{name}` of the fault store; its rules are: {known}"
            )));
        }
        let number: u64 = value.parse().map_err(|_| {
            config(format!(
                "fault rule `{name}`: `{value}` is not a whole number"
            ))
        })?;
        match name {
            "put-delay-us" => self.put_delay = Duration::from_micros(number),
            "get-delay-us" => self.get_delay = Duration::from_micros(number),
            _ => {
                let rule = match &name[..name.rfind('-').unwrap_or(0)] {
                    "put-fail" => &mut self.put_fail,
                    "put-full" => &mut self.put_full,
                    "get-fail" => &mut self.get_fail,
                    "get-corrupt" => &mut self.get_corrupt,
                    _ => &mut self.get_short,
                };
                let bound = match &name[name.rfind('-').unwrap_or(0)..] {
                    "-after" => &mut rule.after,
                    "-every" => &mut rule.every,
                    _ => &mut rule.count,
                };
                *bound = Some(number);
            }
        }
        Ok(())
    }
}

#[cold]
fn injected(kind: ErrorKind, doing: &str) -> StoreError {
    StoreError::new(kind, format!("{doing}: injected fault"))
}

impl<D: Device> Device for Faulty<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn put(&self, pages: &[&Page], slots: &mut [Slot]) -> Result<(), StoreError> {
        if !self.put_delay.is_zero() {
            sleep(self.put_delay);
        }
        if self.put_fail.hits(pages.len()) {
            return Err(injected(self.fail_kind, "put pages"));
        }
        if self.put_full.hits(pages.len()) {
            return Err(injected(ErrorKind::Full, "put pages"));
        }
        self.inner.put(pages, slots)
    }

    fn get(&self, slot: Slot, page: &mut Page) -> Result<(), StoreError> {
        if !self.get_delay.is_zero() {
            sleep(self.get_delay);
        }
        if self.get_fail.hits(1) {
            return Err(injected(self.fail_kind, "get a page"));
        }
        if self.get_short.hits(1) {
            let mut whole = Page::ZERO;
            self.inner.get(slot, &mut whole)?;
            page.0[..PAGE_SIZE / 2].copy_from_slice(&whole.0[..PAGE_SIZE / 2]);
            // What the caller's buffer held before must not happen to be the right bytes.
            page.0[PAGE_SIZE / 2..]
                .iter_mut()
                .zip(&whole.0[PAGE_SIZE / 2..])
                .for_each(|(byte, right)| *byte = !right);
            return Ok(());
        }
        self.inner.get(slot, page)?;
        if self.get_corrupt.hits(1) {
            page.0[PAGE_SIZE / 3] ^= 1;
        }
        Ok(())
    }

    fn delete(&self, slots: &[Slot]) {
        self.inner.delete(slots);
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn hold_at_most(&self, shared_bytes: u64) {
        self.inner.hold_at_most(shared_bytes);
    }

    fn set_frozen(&self, frozen: bool) {
        self.inner.set_frozen(frozen);
    }

    fn server_cpu(&self) -> Option<u32> {
        self.inner.server_cpu()
    }

    fn descriptors(&self) -> Vec<i32> {
        self.inner.descriptors()
    }

    fn inherit(&self, fds: &[i32]) {
        self.inner.inherit(fds);
    }
}
