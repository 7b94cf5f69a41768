//! After the run: what the ledgers say, put into the statistics file, a line for a person, and the
//! exit code.
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pagetide_pager::protocol::files::{self, Note};
use pagetide_pager::protocol::loss::Loss;
use pagetide_pager::protocol::refusal::Cause;
use pagetide_pager::report::Statistics;

use super::wait::Ended;
use super::{left, started};
use crate::curve::Need;
use crate::exit::Exit;
use crate::governed::{Governed, recorded};
use crate::plot::svg::Peak;
use crate::text::printable;

/// Everything the agents left in the run directory.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Every process image, in the order in which they started.
    pub governed: Vec<Governed>,
    /// Those that went on when the launcher's own child had ended.
    pub left_running: Vec<Governed>,
    /// Why agents could not start, each with its process ID.
    pub refusals: Vec<(u32, String)>,
    /// Why descendants run, or ran, without an agent, each with its process ID.
    pub ungoverned: Vec<(u32, String)>,
    /// Why descendants are, or were, governed without counters, each with its process ID.
    pub uncounted: Vec<(u32, String)>,
    /// Why those were ended by their pagers, each with its process ID.
    pub lost: Vec<(u32, String)>,
    /// The run's directory, where somebody has removed it, or what the launcher had put there: what
    /// the agents left is gone with it.
    pub removed: Option<PathBuf>,
}

impl Outcome {
    /// Reads a run directory.
    pub fn collect(run: &Path) -> Outcome {
        let left_running = left::running(run);
        Outcome {
            governed: recorded(run),
            left_running,
            refusals: Note::Refused.read_all(run),
            ungoverned: Note::Ungoverned.read_all(run),
            uncounted: Note::Uncounted.read_all(run),
            lost: Note::Lost.read_all(run),
            removed: (!files::lines(run).exists()).then(|| run.to_owned()),
        }
    }

    /// The command of the first process; empty if there was none.
    pub fn command(&self) -> &str {
        self.governed
            .first()
            .map_or("", |process| &process.reading.statistics.command)
    }

    /// The launcher's exit code after `ended`: the program's own, unless it does not tell the truth
    /// about the run.
    pub fn code(&self, ended: Ended) -> u8 {
        if !self.lost.is_empty() || self.governed.iter().any(|p| p.reading.loss.is_some()) {
            return Exit::DataLost.code();
        }
        match ended {
            Ended::Exited(status) if !self.refusals.is_empty() => Exit::from(
                // The program that was refused is the one that the launcher has waited for.
                Cause::from_exit_status(status),
            )
            .code(),
            _ if !self.refusals.is_empty() || self.agent_missing(ended) => Exit::CannotPage.code(),
            _ => ended.code(),
        }
    }

    /// No agent started, and the program was not ended before one could (the dynamic linker's own
    /// errors are 127).
    fn agent_missing(&self, ended: Ended) -> bool {
        self.governed.is_empty()
            && self.refusals.is_empty()
            && self.removed.is_none()
            && !matches!(ended, Ended::Exited(127) | Ended::Killed(_))
    }

    /// Of processes that executed a program in their own place that made itself known in no way:
    /// what to say.
    fn successors_missing(&self) -> Option<String> {
        let told = |pid: u32| {
            let mut all = [&self.refusals, &self.ungoverned, &self.uncounted].into_iter();
            all.any(|notes| notes.iter().any(|(other, _)| *other == pid))
        };
        let is_last =
            |index: usize, pid: u32| self.governed[index + 1..].iter().all(|p| p.pid != pid);
        let gone: Vec<&Governed> = (self.governed.iter().enumerate())
            .filter(|(_, process)| process.reading.executing && process.reading.held != Some(true))
            .filter(|(index, process)| is_last(*index, process.pid) && !told(process.pid))
            .map(|(_, process)| process)
            .collect();
        let first = gone.first()?;
        let more = match gone.len() {
            1 => String::new(),
            several => format!(", and so did {} more", several - 1),
        };
        Some(format!(
            "process {} ({}) executed a program in its own place that it could not read and that \
             loaded no agent{more}; \
             it ran with all the memory it asked for",
            first.pid,
            printable(&first.reading.statistics.command)
        ))
    }

    /// What has to be said on stderr, a line each; warnings only if `warnings`.
    pub fn messages(&self, ended: Ended, warnings: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for (pid, reason) in &self.refusals {
            lines.push(format!(
                "process {pid} cannot be paged: {}",
                printable(reason)
            ));
        }
        if warnings {
            lines.extend(self.ungoverned());
            lines.extend(started::told(&self.governed));
            lines.extend(self.successors_missing());
        }
        if warnings {
            lines.extend(self.uncounted());
        }
        for (pid, reason) in &self.lost {
            lines.push(format!("process {pid}: {}", printable(reason)));
        }
        lines.extend(self.governed.iter().filter_map(|p| told(p, warnings)));
        if warnings {
            lines.extend(self.left_running());
            lines.extend(self.removed());
        }
        if self.agent_missing(ended) {
            lines.push(format!(
                "the program ran without the agent, so its memory was not paged (it exited with \
                 {}); it may have been executed \
                 without LD_PRELOAD, see `pagetide doctor`",
                ended.code()
            ));
        }
        lines
    }

    /// Of a run whose directory was removed under it: what to say.
    fn removed(&self) -> Option<String> {
        let run = self.removed.as_ref()?;
        Some(format!(
            "{}: the run's directory was removed, or emptied, while the program ran: statistics \
             are missing, and nothing tells whether all of its processes were governed; keep it, \
             or name another place: --run-dir DIR",
            run.display()
        ))
    }

    /// Of descendants without an agent: what to say, once for each reason.
    fn ungoverned(&self) -> Vec<String> {
        let is_first = |index: usize, reason: &str| {
            let mut before = self.ungoverned[..index].iter();
            before.all(|(_, other)| other != reason)
        };
        let all = self.ungoverned.iter().enumerate();
        let firsts = all.filter(|(index, (_, reason))| is_first(*index, reason));
        let told = firsts.map(|(_, (pid, reason))| {
            let alike = self.ungoverned.iter().filter(|(_, other)| other == reason);
            let more = match alike.count() {
                1 => String::new(),
                several => format!(", and so were {} more", several - 1),
            };
            let reason = printable(reason);
            format!(
                "process {pid} was not governed{more}: {reason}; it ran with all the memory it \
                 asked for"
            )
        });
        told.collect()
    }

    /// Of processes without counters: what to say.
    fn uncounted(&self) -> Option<String> {
        let (pid, reason) = self.uncounted.first()?;
        let more = match self.uncounted.len() {
            1 => String::new(),
            several => format!(", and so were {} more", several - 1),
        };
        Some(format!(
            "process {pid} was governed, but is in no statistics{more}: {}",
            printable(reason)
        ))
    }

    /// Of daemons and other processes that go on: what to say.
    fn left_running(&self) -> Option<String> {
        // One that was ended for a loss is on its way.
        let is_ended = |process: &&Governed| {
            let is_lost = self.lost.iter().any(|(pid, _)| *pid == process.pid);
            is_lost || process.reading.loss.is_some()
        };
        let all = self.left_running.iter();
        let going_on: Vec<&Governed> = all.filter(|process| !is_ended(process)).collect();
        let first = going_on.first()?;
        let named = format!(
            "process {} ({})",
            first.pid,
            printable(&first.reading.statistics.command)
        );
        Some(match going_on.len() {
            1 => format!("{named} goes on, and is governed: `pagetide ps` lists it"),
            several => format!(
                "{named} and {} more go on, and are governed: `pagetide ps` lists them",
                several - 1
            ),
        })
    }

    /// One JSON object a process, one a line.
    pub fn write_statistics(&self, out: &mut dyn Write) -> io::Result<()> {
        /// The counters, and whether they go on.
        #[derive(serde::Serialize)]
        struct Line<'a> {
            #[serde(flatten)]
            statistics: &'a Statistics,
            running: bool,
            /// How much memory it needs, if that was measured.
            #[serde(skip_serializing_if = "Option::is_none")]
            need: Option<Need>,
        }
        for process in &self.governed {
            let image = |p: &Governed| (p.pid, p.reading.started_ns);
            let goes_on = |other: &Governed| image(other) == image(process);
            let line = Line {
                statistics: &process.reading.statistics,
                running: self.left_running.iter().any(goes_on),
                need: process.reading.measured.as_ref().and_then(Need::of),
            };
            serde_json::to_writer(&mut *out, &line)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// The most that was resident, and in all, if there was one process.
    pub fn peak(&self) -> Peak {
        match &self.governed[..] {
            [process] => Peak {
                resident_bytes: process.reading.statistics.resident_bytes_max,
                memory_bytes: process.reading.statistics.memory_bytes_max,
            },
            _ => Peak::default(),
        }
    }
}

/// What a process's pager had to say; warnings only if `warnings`.
fn told(process: &Governed, warnings: bool) -> Option<String> {
    let reading = &process.reading;
    let message = match (reading.loss, reading.message.as_str()) {
        (None, "") => return None,
        (None, _) if !warnings => return None,
        (Some(_), "") => "data were lost",
        (_, message) => message,
    };
    let next = match reading.loss {
        Some(Loss::Page) => "; run it again, with another --store if it happens again",
        _ => "",
    };
    let command = printable(&reading.statistics.command);
    let message = printable(message);
    Some(format!(
        "process {} ({command}): {message}{next}",
        process.pid
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::summary;
    use super::*;
    use crate::ledger_file::Reading;
    use nix::sys::signal::Signal;
    use pagetide_pager::report::Latency;

    pub fn process(pid: u32, loss: Option<Loss>, message: &str) -> Governed {
        let statistics = Statistics {
            pid,
            command: "sort big".into(),
            budget_bytes: 256 << 20,
            resident_bytes_max: 255 << 20,
            managed_bytes_max: 1 << 30,
            store_bytes_max: 300 << 20,
            memory_bytes_max: 560 << 20,
            compression_ratio: 2.5,
            evictions: 200_000,
            wall_seconds: 10.0,
            refault_seconds: 5.5,
            cpu_seconds: 4.0,
            faults: 123_456,
            fetches: 100_000,
            writebacks: 5_000,
            fault_latency_ns: Latency {
                p99: 45_000,
                ..Latency::default()
            },
            ..Statistics::default()
        };
        let reading = Reading {
            statistics,
            loss,
            message: message.into(),
            started_ns: 1,
            ..Reading::default()
        };
        Governed {
            pid,
            socket: "".into(),
            reading,
        }
    }

    #[test]
    fn the_program_s_code_is_kept_unless_the_run_went_wrong() {
        let mut outcome = Outcome {
            governed: vec![process(9, None, "")],
            ..Outcome::default()
        };
        assert_eq!(outcome.code(Ended::Exited(42)), 42);
        assert_eq!(outcome.code(Ended::Killed(Signal::SIGTERM)), 143);
        assert_eq!(
            outcome.messages(Ended::Exited(0), true),
            Vec::<String>::new()
        );
        outcome.refusals.push((10, "no userfaultfd".into()));
        assert_eq!(outcome.code(Ended::Exited(42)), 3);
        assert_eq!(outcome.code(Ended::Killed(Signal::SIGTERM)), 3);
        let refused = Ended::Exited(Cause::Store.exit_status());
        assert_eq!(outcome.code(refused), Exit::Store.code());
        outcome
            .governed
            .push(process(11, Some(Loss::Pager), "page 0x1000: checksum"));
        assert_eq!(outcome.code(Ended::Exited(42)), 5);
        let lines = outcome.messages(Ended::Exited(0), false);
        assert_eq!(
            lines,
            [
                "process 10 cannot be paged: no userfaultfd",
                "process 11 (sort big): page 0x1000: checksum"
            ]
        );
    }

    #[test]
    fn a_lost_page_is_named_with_the_next_step() {
        let outcome = Outcome {
            governed: vec![process(
                9,
                Some(Loss::Page),
                "data were lost: page at 0x1000 is lost: x",
            )],
            ..Outcome::default()
        };
        let lines = outcome.messages(Ended::Exited(0), false);
        assert!(lines[0].starts_with("process 9 (sort big): data were lost: page at 0x1000"));
        assert!(lines[0].contains("--store"));
    }

    #[test]
    fn one_that_was_ended_for_a_loss_does_not_go_on() {
        let outcome = Outcome {
            left_running: vec![process(9, Some(Loss::Page), "data were lost")],
            ..Outcome::default()
        };
        assert_eq!(outcome.left_running(), None);
        let outcome = Outcome {
            left_running: vec![process(9, None, ""), process(10, None, "")],
            lost: vec![(9, "data were lost".into())],
            ..Outcome::default()
        };
        let told = outcome.left_running().unwrap();
        assert!(told.starts_with("process 10 (sort big) goes on"), "{told}");
    }

    #[test]
    fn who_was_not_governed_for_one_reason_is_told_of_once() {
        let notes = [
            (9, "few descriptors"),
            (10, "no space"),
            (11, "few descriptors"),
        ];
        let outcome = Outcome {
            ungoverned: notes.map(|(pid, reason)| (pid, reason.to_owned())).to_vec(),
            ..Outcome::default()
        };
        let told = outcome.ungoverned();
        assert_eq!(told.len(), 2);
        assert!(told[0].starts_with("process 9 was not governed, and so were 1 more: few"));
        assert!(told[1].starts_with("process 10 was not governed: no space"));
    }

    #[test]
    fn a_run_without_an_agent_is_told_apart_from_one_that_never_began() {
        let none = Outcome::default();
        assert_eq!(none.code(Ended::Exited(0)), 3);
        assert_eq!(none.messages(Ended::Exited(0), false).len(), 1);
        assert_eq!(none.code(Ended::Exited(127)), 127);
        assert_eq!(none.code(Ended::Killed(Signal::SIGKILL)), 137);
        assert_eq!(summary::line(&none.governed), None);
        let removed = Outcome {
            removed: Some("/run/pagetide/run-7".into()),
            ..none
        };
        assert_eq!(removed.code(Ended::Exited(42)), 42);
        let lines = removed.messages(Ended::Exited(42), true);
        assert!(lines[0].starts_with("/run/pagetide/run-7: the run's directory was removed"));
        assert_eq!(
            (lines.len(), removed.messages(Ended::Exited(42), false)),
            (1, vec![])
        );
    }

    #[test]
    fn what_was_executed_and_made_no_ledger_is_told_of() {
        let image = |pid, executing| {
            let mut image = process(pid, None, "");
            image.reading.executing = executing;
            image
        };
        let lines = |governed| {
            let outcome = Outcome {
                governed,
                ..Outcome::default()
            };
            outcome.messages(Ended::Exited(0), true)
        };
        assert!(lines(vec![image(9, true), image(9, false)]).is_empty());
        let said = lines(vec![image(9, true), image(10, true), image(9, true)]);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("process 10") && said[0].contains("so did 1 more"));
        let outcome = Outcome {
            governed: vec![image(9, true)],
            ungoverned: vec![(9, "too tight a limit".into())],
            ..Outcome::default()
        };
        assert_eq!(outcome.messages(Ended::Exited(0), true).len(), 1);
        assert!(outcome.messages(Ended::Exited(0), false).is_empty());
    }

    #[test]
    fn a_loss_of_a_process_without_counters_is_told_and_decides_the_code() {
        let outcome = Outcome {
            governed: vec![process(9, None, "")],
            uncounted: vec![(10, "no file".into()), (11, "no file".into())],
            lost: vec![(11, "a forked child cannot be governed: x".into())],
            ..Outcome::default()
        };
        assert_eq!(outcome.code(Ended::Exited(0)), Exit::DataLost.code());
        let lines = outcome.messages(Ended::Exited(0), true);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("process 10 ") && lines[0].contains("so were 1 more"));
        assert_eq!(lines[1], "process 11: a forked child cannot be governed: x");
        assert_eq!(outcome.messages(Ended::Exited(0), false), lines[1..]);
    }

    #[test]
    fn warnings_are_said_only_when_wanted() {
        let outcome = Outcome {
            governed: vec![process(9, None, "store slow")],
            ..Outcome::default()
        };
        assert_eq!(
            outcome.messages(Ended::Exited(0), true),
            ["process 9 (sort big): store slow"]
        );
        assert!(outcome.messages(Ended::Exited(0), false).is_empty());
        assert_eq!(outcome.code(Ended::Exited(0)), 0);
    }

    #[test]
    fn statistics_are_one_object_a_line() {
        let outcome = Outcome {
            governed: vec![process(9, None, ""), process(10, None, "")],
            ..Outcome::default()
        };
        let mut out = Vec::new();
        outcome.write_statistics(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Statistics> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.iter().map(|s| s.pid).collect::<Vec<_>>(), [9, 10]);
    }
}
