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
        lines.extend(self.pagers_told(warnings));
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

    /// What the pagers of the processes had to say: of a loss each, of anything else one of those
    /// that say the same. Warnings only if `warnings`.
    fn pagers_told(&self, warnings: bool) -> Vec<String> {
        let all = self.governed.iter().enumerate();
        let told = all.filter_map(|(index, process)| {
            let line = told(process, warnings)?;
            let is_alike = |other: &&Governed| {
                let (one, other) = (&process.reading, &other.reading);
                one.loss.is_none() && other.loss.is_none() && one.message == other.message
            };
            if self.governed[..index].iter().any(|other| is_alike(&other)) {
                return None;
            }
            let after = self.governed[index + 1..].iter();
            Some(match after.filter(is_alike).count() {
                0 => line,
                more => format!("{line} (and {more} more)"),
            })
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
pub(super) mod tests;
