//! What is said after the run of programs that governed processes started and that no agent was
//! loaded into.
use std::collections::BTreeMap;

use pagetide_pager::ungoverned::Obstacle;

use crate::governed::Governed;
use crate::text::printable;

/// Programs that get a line each.
const LINES_MAX: usize = 4;

/// Starts of one program, in all processes.
struct Program {
    /// The process that was the first to execute it, as far as is known.
    pid: u32,
    starts: u64,
}

/// A line for each program, the most started first, and one for what is left.
pub fn told(governed: &[Governed]) -> Vec<String> {
    let mut programs: BTreeMap<(&str, Obstacle), Program> = BTreeMap::new();
    let mut others: u64 = 0;
    for process in governed {
        others = others.saturating_add(process.reading.ungoverned_others);
        for started in &process.reading.ungoverned {
            let program = programs
                .entry((&started.path, started.obstacle))
                .or_insert(Program {
                    pid: started.pid,
                    starts: 0,
                });
            program.starts = program.starts.saturating_add(started.starts);
        }
    }
    let mut programs: Vec<_> = programs.into_iter().collect();
    programs.sort_by_key(|(_, program)| std::cmp::Reverse(program.starts));
    let named = programs.len().min(LINES_MAX);
    let left = programs.split_off(named);
    let left: u64 =
        (left.iter().map(|(_, program)| program.starts)).fold(others, u64::saturating_add);
    let mut lines: Vec<String> = (programs.iter())
        .map(|((path, obstacle), program)| line(path, *obstacle, program))
        .collect();
    match left {
        0 => {}
        1 => lines.push(
            "another process ran without the agent; it ran with all the memory it asked for".into(),
        ),
        several => lines.push(format!(
            "{several} other processes ran without the agent; each ran with all the memory it \
             asked for"
        )),
    }
    lines
}

fn line(path: &str, obstacle: Obstacle, program: &Program) -> String {
    let (pid, path, why) = (program.pid, printable(path), obstacle.text());
    match program.starts {
        1 => format!(
            "process {pid} ({path}) ran without the agent: {why}; it ran with all the memory it \
             asked for"
        ),
        several => format!(
            "process {pid} ({path}) ran without the agent, and so did {} more of that program: \
             {why}; \
             each ran with all the memory it asked for",
            several - 1
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger_file::Reading;
    use pagetide_pager::ungoverned::Started;

    fn process(ungoverned: &[(u32, u64, &str)], others: u64) -> Governed {
        let started = |(pid, starts, path): &(u32, u64, &str)| Started {
            pid: *pid,
            starts: *starts,
            obstacle: Obstacle::Static,
            path: (*path).into(),
        };
        Governed {
            pid: 1,
            socket: "".into(),
            reading: Reading {
                ungoverned: ungoverned.iter().map(started).collect(),
                ungoverned_others: others,
                ..Reading::default()
            },
        }
    }

    #[test]
    fn a_program_is_one_line_however_often_and_by_whom_it_was_started() {
        assert!(told(&[process(&[], 0)]).is_empty());
        assert_eq!(
            told(&[process(&[(7, 1, "/bin/box\n")], 0)]),
            [
                "process 7 (/bin/box?) ran without the agent: it is statically linked; it ran \
                 with all the memory it asked for"
            ]
        );
        assert_eq!(
            told(&[
                process(&[(7, 1, "/a")], 0),
                process(&[(9, 4, "/b"), (8, 2, "/a")], 0)
            ]),
            [
                "process 9 (/b) ran without the agent, and so did 3 more of that program: it is \
                 statically linked; \
                 each ran with all the memory it asked for",
                "process 7 (/a) ran without the agent, and so did 2 more of that program: it is \
                 statically linked; \
                 each ran with all the memory it asked for"
            ]
        );
    }

    #[test]
    fn of_many_programs_the_rest_is_counted() {
        let of = |others| {
            let files = [
                (1, 9, "/a"),
                (2, 8, "/b"),
                (3, 7, "/c"),
                (4, 6, "/d"),
                (5, 1, "/e"),
            ];
            told(&[process(&files, others)])
        };
        assert_eq!(of(0).len(), LINES_MAX + 1);
        assert!(of(0)[LINES_MAX].starts_with("another process ran without the agent"));
        assert!(of(2)[LINES_MAX].starts_with("3 other processes ran without the agent"));
        assert!(of(u64::MAX)[LINES_MAX].starts_with(&u64::MAX.to_string()));
    }
}
