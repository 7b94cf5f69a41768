//! The processes of a run that is measured. The leading one starts the others, so that all are in
//! the same run.
use std::io::{Error, Read as _, Result, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::task::{Scenario, Task, Took, Work};
use crate::content::{Content, PAGE_BYTES, PAGE_WORDS, Random};
use crate::launch::worker;

/// The name of the task by which a worker is started.
pub const KIND: &str = "tree-worker";

/// One access in so many is of any page, the others of the first of so many parts.
const COLD_PART: u64 = 64;
const HOT_PARTS: u64 = 5;
/// One access in so many is a write as well.
const WRITE_PART: u64 = 4;

/// Does what is asked for; what only the leading process tells of is its time.
///
/// # Errors
/// Starting and waiting for processes; one of them failed.
pub fn work(task: &Task) -> std::result::Result<Took, String> {
    let begun = Instant::now();
    let done = match task {
        Task::Lead(scenario) => lead(scenario),
        Task::Work(work) => go_through(work).map(|()| begun.elapsed().as_secs_f64()),
        Task::Sleep(bytes) => sleep(*bytes).map(|()| 0.0),
    };
    let seconds = done.map_err(|error| error.to_string())?;
    Ok(Took { seconds })
}

fn lead(scenario: &Scenario) -> Result<f64> {
    let spawn = |task: &Task| worker(KIND, task)?.stdout(Stdio::null()).spawn();
    match scenario {
        Scenario::Equal(count, work) => {
            let begun = Instant::now();
            let of_each = |index| Work {
                seed: work.seed + index as u64,
                ..*work
            };
            let all = (0..*count).map(|index| spawn(&Task::Work(of_each(index))));
            let all: Vec<Child> = all.collect::<Result<_>>()?;
            all.into_iter().try_for_each(end_well)?;
            Ok(begun.elapsed().as_secs_f64())
        }
        Scenario::Busy(work, count, bytes) => {
            let asleep = (0..*count).map(|_| begin_to_sleep(*bytes));
            let asleep: Vec<Child> = asleep.collect::<Result<_>>()?;
            let begun = Instant::now();
            end_well(spawn(&Task::Work(*work))?)?;
            let seconds = begun.elapsed().as_secs_f64();
            asleep.into_iter().try_for_each(end_well)?;
            Ok(seconds)
        }
        Scenario::Starts(count) => {
            let asleep = begin_to_sleep(PAGE_BYTES)?;
            let begun = Instant::now();
            for _ in 0..*count {
                end_well(Command::new("/bin/true").spawn()?)?;
            }
            let seconds = begun.elapsed().as_secs_f64() / *count as f64;
            end_well(asleep)?;
            Ok(seconds)
        }
    }
}

/// Starts a process that sleeps, and waits until it has filled its memory.
fn begin_to_sleep(bytes: usize) -> Result<Child> {
    let mut command = worker(KIND, &Task::Sleep(bytes))?;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = [0];
    let stdout = child.stdout.as_mut().expect("it is a pipe");
    stdout.read_exact(&mut said)?;
    Ok(child)
}

/// Ends the input of `child`, and waits for it.
fn end_well(mut child: Child) -> Result<()> {
    drop(child.stdin.take());
    match child.wait()? {
        status if status.success() => Ok(()),
        status => Err(Error::other(format!(
            "a process of the run ended with {status}"
        ))),
    }
}

fn filled(bytes: usize, content: Content) -> Vec<u64> {
    let mut memory = vec![0; bytes / 8];
    for (page, words) in memory.chunks_exact_mut(PAGE_WORDS).enumerate() {
        content.fill(page, words);
    }
    memory
}

fn sleep(bytes: usize) -> Result<()> {
    let _memory = std::hint::black_box(filled(bytes, Content::half(1)));
    std::io::stdout().write_all(b"\n")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn go_through(work: &Work) -> Result<()> {
    let content = Content::half(work.seed);
    let mut memory = filled(work.bytes, content);
    let pages = (memory.len() / PAGE_WORDS) as u64;
    let mut random = Random::new(work.seed);
    for access in 0..work.accesses {
        let among = match random.below(COLD_PART) {
            0 => pages,
            _ => pages.div_ceil(HOT_PARTS),
        };
        let page = random.below(among) as usize;
        // The last random word is never written, the first one is.
        let at = page * PAGE_WORDS;
        let word = content.random_words - 1;
        if memory[at + word] != content.word(page, word) {
            return Err(Error::other(format!("page {page} is not what was written")));
        }
        if access % WRITE_PART == 0 {
            memory[at] = memory[at].wrapping_add(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_for_as_long_as_is_asked() {
        let work = Work {
            bytes: 10 * PAGE_BYTES,
            accesses: 1000,
            seed: 3,
        };
        assert!(go_through(&work).is_ok());
        assert_eq!(filled(work.bytes, Content::half(3)).len(), 10 * PAGE_WORDS);
    }
}
