//! What is said while a program runs, once a run for each: that hardly any memory is saved, and
//! that the program does little but wait for pages.
use std::path::Path;
use std::time::{Duration, Instant};

use pagetide_pager::report::Statistics;

use crate::bound;
use crate::governed::{Governed, living};
use crate::size::{Bytes, PAGE_BYTES};
use crate::text::printable;

/// How often the ledgers of a run are looked at.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Of the time, one part in so many is spent on that at most: a run may have thousands of ledgers.
const LOOKING_PART: u32 = 100;
/// A program is watched for so many seconds before it is said to wait, and to the end if it ends
/// before.
const WATCHED_SECONDS: f64 = 10.0;
/// The share of its time that it waits then.
const STALLED: f64 = 0.5;
/// Nor is anything said of one that rests: less than this share of all time it waited.
const WAITED: f64 = 0.1;
/// A bound binds a program that has all of it but one part in so many.
const BINDING_PART: u64 = 8;
/// Less stored in memory is not worth a word.
const STORED_BYTES: u64 = 16 << 20;
/// Memory in all over what would be resident without Pagetide, and what is stored over what it is
/// stored of, when little is saved.
const LITTLE_SAVED: f64 = 0.9;
const HARDLY_PACKED: f64 = 0.75;

/// What was seen of a run, and what of it was said.
#[derive(Debug)]
pub struct Warnings {
    next: Instant,
    /// Of each process, when it was looked at first in this span, and its counters then.
    watched: Vec<Governed>,
    said_little: bool,
    said_stalled: bool,
}

impl Default for Warnings {
    fn default() -> Warnings {
        Warnings {
            next: Instant::now(),
            watched: Vec::new(),
            said_little: false,
            said_stalled: false,
        }
    }
}

impl Warnings {
    /// Looks at the processes of a run that live, if it is time to; what is to be said.
    pub fn look(&mut self, run: &Path) -> Vec<String> {
        let began = Instant::now();
        if began < self.next || self.said_little && self.said_stalled {
            return Vec::new();
        }
        let told = self.take(living(run));
        let took = began.elapsed();
        self.next = began + INTERVAL.max(took * LOOKING_PART);
        told
    }

    /// What is to be said at the end of what was not said before.
    pub fn at_end(&mut self, governed: &[Governed]) -> Vec<String> {
        let mut told = Vec::new();
        for process in governed {
            let s = &process.reading.statistics;
            let whole = Span {
                seconds: s.wall_seconds,
                waited: s.refault_seconds,
                stalled: s.stalled(),
            };
            // At its end a program may have given up what it had.
            let peak = Statistics {
                memory_bytes: s.memory_bytes_max,
                resident_bytes: s.resident_bytes_max,
                managed_bytes: s.managed_bytes_max,
                ..s.clone()
            };
            self.judge(process, whole, &peak, When::Ended, &mut told);
        }
        told
    }

    fn take(&mut self, living: Vec<Governed>) -> Vec<String> {
        let mut told = Vec::new();
        let mut watched = Vec::new();
        for process in living {
            let is_same = |before: &Governed| {
                before.pid == process.pid && before.reading.started_ns == process.reading.started_ns
            };
            let Some(before) = self.watched.iter().position(is_same) else {
                watched.push(process);
                continue;
            };
            let before = self.watched.swap_remove(before);
            let now = &process.reading.statistics;
            let span = Span::between(&before.reading.statistics, now);
            self.judge(&process, span, now, When::Living, &mut told);
            watched.push(match span.seconds < WATCHED_SECONDS {
                true => before,
                false => process,
            });
        }
        self.watched = watched;
        told
    }

    /// Says of `process` what follows from `span`, and from what it has in memory.
    fn judge(
        &mut self,
        process: &Governed,
        span: Span,
        has: &Statistics,
        when: When,
        told: &mut Vec<String>,
    ) {
        let name = || {
            let command = printable(&process.reading.statistics.command);
            format!("process {} ({command})", process.pid)
        };
        if !self.said_little && saves_little(has) {
            self.said_little = true;
            let alone = alone_bytes(has);
            let saved = match has.memory_bytes > alone {
                true => "no memory",
                false => "hardly any memory",
            };
            told.push(format!(
                "{}: {saved} is saved: its pages do not compress well, and it has {} in all where \
                 it would have about {} alone; --store file:DIR keeps pages on a disk, and --store \
                 'ram:?max=SIZE&then=file:DIR' those that have not been used for longest",
                name(),
                Bytes(has.memory_bytes),
                Bytes(alone)
            ));
        }
        let works = span.waited > WAITED * span.seconds;
        let stalls = span.stalled > STALLED && works;
        if !self.said_stalled && span.seconds >= WATCHED_SECONDS && stalls {
            self.said_stalled = true;
            told.push(format!(
                "{}: {:.0} % of its time is spent waiting for pages; {}",
                name(),
                100.0 * span.stalled,
                cure(process.pid, has, when)
            ));
        }
    }
}

/// When something is said of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Living,
    /// It is too late for anything but the next time.
    Ended,
}

/// What helps process `pid`, which waits for pages: more of what binds it.
fn cure(pid: u32, has: &Statistics, when: When) -> String {
    let near = |bound: u64| has.resident_bytes >= bound - bound / BINDING_PART;
    let limit = |pid: u32| match when {
        When::Living => format!("`pagetide limit {pid} SIZE` now, "),
        When::Ended => String::new(),
    };
    let measure = match when {
        When::Living => format!("`pagetide stat {pid} --curve` says how much"),
        When::Ended => "`pagetide run --measure` says how much".to_owned(),
    };
    if let Some(automatic) = bound::automatic(has) {
        let ceiling = Bytes(has.budget_bytes);
        return match near(has.budget_bytes) {
            true => format!(
                "it has all of the {ceiling} that --resident {automatic} may give it: {}a larger \
                 --ceiling the next time, and {measure}",
                limit(pid)
            ),
            false => format!(
                "it has {} of the {ceiling} that --resident {automatic} may give it, and is not \
                 followed well: a fixed --resident suits it better, and {measure}",
                Bytes(has.resident_bytes)
            ),
        };
    }
    match (has.memory_budget_bytes, has.cap_bytes()) {
        // Of the run's budget it may have no more, however large that is.
        (0, Some(cap)) if near(cap) => format!(
            "with more memory than {} it runs faster, and `pagetide limit {pid}` lets it have no \
             more of the run's {}: {}a larger limit the next time, and {measure}",
            Bytes(cap),
            Bytes(has.run_budget_bytes),
            limit(pid)
        ),
        (memory, _) => {
            let option = match memory {
                0 => "--resident",
                _ => "--memory",
            };
            // A budget that is the run's is changed by the launcher's number, which this is.
            let (limited, bound) = match has.run_budget_bytes {
                0 => (pid, has.bound_bytes()),
                bytes => (std::process::id(), bytes),
            };
            format!(
                "with more memory than {} it runs faster: {}a larger {option} the next time, and \
                 {measure}",
                Bytes(bound),
                limit(limited)
            )
        }
    }
}

/// How a program went for some time.
#[derive(Debug, Clone, Copy)]
struct Span {
    seconds: f64,
    /// Seconds that its threads waited for pages, all together.
    waited: f64,
    /// The share of that in what it worked and waited.
    stalled: f64,
}

impl Span {
    fn between(before: &Statistics, now: &Statistics) -> Span {
        let since = |of: fn(&Statistics) -> f64| (of(now) - of(before)).max(0.0);
        let passed = Statistics {
            refault_seconds: since(|s| s.refault_seconds),
            fetches: now.fetches.saturating_sub(before.fetches),
            cpu_seconds: since(|s| s.cpu_seconds),
            fault_thread_cpu_seconds: since(|s| s.fault_thread_cpu_seconds),
            evictor_cpu_seconds: since(|s| s.evictor_cpu_seconds),
            ..Statistics::default()
        };
        Span {
            seconds: since(|s| s.wall_seconds),
            waited: passed.refault_seconds,
            stalled: passed.stalled(),
        }
    }
}

/// About what a process would have in memory without Pagetide.
fn alone_bytes(s: &Statistics) -> u64 {
    let stored_of = s.store_pages.saturating_mul(PAGE_BYTES);
    let pages = s.resident_bytes.saturating_add(stored_of);
    pages.min(s.managed_bytes.max(s.resident_bytes)) + s.other_bytes
}

fn saves_little(s: &Statistics) -> bool {
    let kept = s.resident_bytes.saturating_add(s.other_bytes);
    let stored = s.memory_bytes.saturating_sub(kept);
    stored >= STORED_BYTES
        && s.compression_ratio * HARDLY_PACKED < 1.0
        && s.memory_bytes as f64 >= LITTLE_SAVED * alone_bytes(s) as f64
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::process;
    use super::*;

    /// One that has 300 MiB resident, and 235 MiB in 200 of the store.
    fn one() -> Governed {
        let mut one = process(9, None, "");
        one.reading.statistics = Statistics {
            resident_bytes: 300 << 20,
            resident_bytes_max: 300 << 20,
            managed_bytes: 560 << 20,
            managed_bytes_max: 560 << 20,
            store_pages: 235 << 8,
            memory_bytes: 505 << 20,
            memory_bytes_max: 505 << 20,
            other_bytes: 5 << 20,
            compression_ratio: 1.2,
            budget_bytes: 300 << 20,
            refault_seconds: 0.0,
            fetches: 0,
            ..one.reading.statistics
        };
        one
    }

    #[test]
    fn that_little_is_saved_is_said_once_and_only_where_pages_do_not_compress() {
        let mut warnings = Warnings::default();
        assert!(
            warnings.take(vec![one()]).is_empty(),
            "nothing is known yet"
        );
        let told = warnings.take(vec![one()]);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("505 MiB in all where it would have about 540 MiB"),
            "{told:?}"
        );
        assert!(told[0].contains("--store file:DIR"));
        assert!(warnings.take(vec![one()]).is_empty());
        assert!(warnings.at_end(&[one()]).is_empty());
        for (ratio, memory) in [(2.5, 505 << 20), (1.2, 400 << 20), (1.2, 310 << 20)] {
            let mut other = one();
            other.reading.statistics.compression_ratio = ratio;
            other.reading.statistics.memory_bytes_max = memory;
            assert!(
                Warnings::default().at_end(&[other]).is_empty(),
                "{ratio} {memory}"
            );
        }
        assert_eq!(Warnings::default().at_end(&[one()]).len(), 1);
    }

    #[test]
    fn that_a_program_waits_most_of_its_time_is_said_once_after_a_while() {
        let at = |seconds: f64, waited: f64, cpu: f64| {
            let mut process = one();
            let s = &mut process.reading.statistics;
            s.compression_ratio = 3.0;
            (s.wall_seconds, s.refault_seconds, s.cpu_seconds) = (seconds, waited, cpu);
            vec![process]
        };
        let mut warnings = Warnings::default();
        // It computes at first, sleeps, and waits in the end.
        assert!(warnings.take(at(0.0, 0.0, 0.0)).is_empty());
        assert!(warnings.take(at(11.0, 1.0, 10.0)).is_empty());
        assert!(warnings.take(at(30.0, 1.0, 10.0)).is_empty());
        assert!(
            warnings.take(at(35.0, 5.0, 11.0)).is_empty(),
            "too short to tell"
        );
        let told = warnings.take(at(41.0, 9.0, 13.0));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("73 % of its time") && told[0].contains("pagetide limit 9"));
        // One that rests waits for most of what it does, and loses next to nothing.
        assert!(Warnings::default().at_end(&at(18.0, 0.9, 0.7)).is_empty());
        assert_eq!(Warnings::default().at_end(&at(18.0, 2.9, 0.7)).len(), 1);
        let mut of_run = at(60.0, 50.0, 9.0);
        of_run[0].reading.statistics.run_budget_bytes = 400 << 20;
        let said = |of: &[Governed]| cure(9, &of[0].reading.statistics, When::Living);
        let told = said(&of_run);
        let limit = format!("`pagetide limit {} SIZE`", std::process::id());
        assert!(told.contains(&limit) && told.contains("400 MiB"), "{told}");
        // A process that has ended has no number any more.
        let told = &Warnings::default().at_end(&of_run)[0];
        assert!(
            told.contains("400 MiB it runs faster: a larger --resident the next time")
                && told.contains("`pagetide run --measure`")
                && !told.contains("pagetide limit"),
            "{told}"
        );
        of_run[0].reading.statistics.run_share_max_bytes = 310 << 20;
        let told = said(&of_run);
        let limit = "than 310 MiB it runs faster, and `pagetide limit 9` lets it have no more of \
                     the run's 400 MiB: `pagetide limit 9 SIZE` now";
        assert!(
            told.contains(limit) && !told.contains("--resident"),
            "{told}"
        );
        // It has far less: others have the rest of the run's.
        of_run[0].reading.statistics.run_share_max_bytes = 390 << 20;
        assert!(Warnings::default().at_end(&of_run)[0].contains("a larger --resident"));
        assert!(warnings.take(at(60.0, 29.0, 13.0)).is_empty());
        assert!(Warnings::default().at_end(&at(60.0, 9.0, 50.0)).is_empty());
        assert_eq!(Warnings::default().at_end(&at(60.0, 50.0, 9.0)).len(), 1);
    }

    #[test]
    fn of_a_budget_that_follows_the_program_the_ceiling_is_the_cure_only_where_it_is_reached() {
        let told = |ceiling: u64| {
            let mut followed = one();
            let s = &mut followed.reading.statistics;
            (s.automatic_slowdown, s.budget_bytes) = (0.1, ceiling);
            (s.wall_seconds, s.refault_seconds, s.cpu_seconds) = (60.0, 50.0, 9.0);
            s.compression_ratio = 3.0;
            Warnings::default().at_end(&[followed]).concat()
        };
        let reached = told(310 << 20);
        assert!(
            reached.contains("310 MiB that --resident auto:10% may give it"),
            "{reached}"
        );
        assert!(reached.contains("a larger --ceiling"), "{reached}");
        let not_reached = told(2 << 30);
        assert!(
            not_reached.contains("it has 300 MiB of the 2 GiB"),
            "{not_reached}"
        );
        assert!(!not_reached.contains("pagetide limit"), "{not_reached}");
    }
}
