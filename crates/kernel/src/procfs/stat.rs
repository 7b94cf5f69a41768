//! `/proc/PID/stat`: whether a process lives, where a thread runs, and since when. Nothing here
//! allocates.
use std::ffi::CStr;
use std::io::Write as _;

use rustix::fs::{Mode, OFlags, open};
use rustix::time::{ClockId, clock_gettime};

/// What the kernel says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its first thread's state, as a letter.
    pub state: char,
    /// Its threads; the first one counts as long as there are others.
    pub threads: u64,
    /// When it started on `CLOCK_MONOTONIC`, in nanoseconds.
    pub start_ns: u64,
}

impl Stat {
    /// Of process `pid`; `None` if there is none.
    pub fn of(pid: u32) -> Option<Stat> {
        let (state, threads, start_ticks) = read("", pid, parse)??;
        let now = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        // The kernel counts from boot, time asleep included.
        let asleep_ns = now(ClockId::Boottime).saturating_sub(now(ClockId::Monotonic));
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        Some(Stat {
            state,
            threads,
            start_ns: (start_ticks * tick_ns).saturating_sub(asleep_ns),
        })
    }
}

/// State, threads, and start in ticks.
fn parse(line: &[u8]) -> Option<(char, u64, u64)> {
    let state = fields(line)?
        .next()?
        .first()
        .map(|letter| *letter as char)?;
    Some((state, number(line, 20)?, number(line, 22)?))
}

/// The processor that `thread`, by its ID, runs on or ran on last. `None` when it has ended, or
/// where `/proc` is not to be seen.
pub fn processor_of(thread: u32) -> Option<u32> {
    read("self/task/", thread, |line| number(line, 39))?.map(|cpu| cpu as u32)
}

/// When the thread or process `id` began, in hundredths of a second since the machine did, rounded
/// down. `None` as for [`processor_of`].
pub fn began_at(id: u32) -> Option<u64> {
    read("", id, |line| number(line, 22))?
}

/// Now, in the unit of [`began_at`].
pub fn began_now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 100 + now.tv_nsec as u64 / 10_000_000
}

/// The wait status that an ended thread left, from the text of its `stat`.
pub fn exit_status(line: &[u8]) -> Option<i32> {
    number(line, 52).map(|status| status as i32)
}

/// Reads `stat` of `id`, which is in that directory of `/proc`.
fn read<R>(directory: &str, id: u32, of: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let mut path = [0; 48];
    write!(&mut path[..], "/proc/{directory}{id}/stat\0").ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 1024];
    let len = rustix::io::read(&file, &mut text).ok()?;
    Some(of(&text[..len]))
}

/// From the third field on. Field 2, the name, may contain anything; the last parenthesis ends it.
fn fields(line: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let after_name = line.iter().rposition(|byte| *byte == b')')? + 1;
    let words = line[after_name..].split(u8::is_ascii_whitespace);
    Some(words.filter(|word| !word.is_empty()))
}

/// A number, counted as proc(5) does.
fn number(line: &[u8], field: usize) -> Option<u64> {
    let word = fields(line)?.nth(field - 3)?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let line = b"42 (a) b (c)) S 1 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 777 1 2 3 4 5 \
            6 7 8 9 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 256\n";
        assert_eq!(parse(line), Some(('S', 1, 777)));
        assert_eq!(number(line, 39), Some(1));
        assert_eq!(exit_status(line), Some(256));
        assert_eq!(number(line, 60), None);
        assert_eq!(parse(b"12 (a"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn a_thread_runs_somewhere_and_began_before_now() {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let began = began_at(own).unwrap();
        assert!(began <= began_now() && began + 360_000 > began_now());
        assert!(processor_of(own).is_some());
        let stat = Stat::of(std::process::id()).unwrap();
        assert!(stat.start_ns <= crate::sync::now_ns() && stat.threads > 0);
        assert_eq!(Stat::of(u32::MAX), None);
    }
}
