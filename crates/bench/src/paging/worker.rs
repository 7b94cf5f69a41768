//! The process that is measured: fills its memory, warms up, times every access, and checks at the
//! end that nothing was lost.
use std::fs::{self, File};
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use hdrhistogram::Histogram;

use super::counters::{Before, anonymous_bytes, cpu_seconds};
use super::device;
use super::floor::Floor;
use super::graph::Graph;
use super::memory::Memory;
use super::pattern::{Pattern, Sequence, Space};
use super::shape::Shape;
use super::task::{Findings, Home, Task};
use crate::content::{COUNTER_WORD, Content, PAGE_BYTES, PAGE_WORDS};
use crate::statistics::{Spread, histogram, median};

/// Does what `task` asks; an error says what was wrong or lost.
pub fn work(task: &Task) -> Result<Findings, String> {
    if let Some(directory) = &task.cgroup {
        let procs = directory.join("cgroup.procs");
        fs::write(&procs, "0").map_err(|error| format!("entering {}: {error}", procs.display()))?;
    }
    let thp_disabled = rustix::thread::disable_transparent_huge_pages(true).is_ok();
    let clock_ns = clock_ns();
    let own_bytes = anonymous_bytes();
    let findings = match (task.home, task.pattern) {
        (Home::Device, _) => read_device(task)?,
        (_, Pattern::Graph) => walk_graph(task, &Memory::new(task)?)?,
        _ => access_pages(task, &Memory::new(task)?)?,
    };
    Ok(Findings {
        thp_disabled,
        clock_ns,
        own_bytes,
        ..findings
    })
}

fn clock_ns() -> f64 {
    let cost = || Instant::now().elapsed().as_nanos() as f64;
    median(&(0..10_000).map(|_| cost()).collect::<Vec<_>>())
}

fn space(task: &Task) -> Space {
    Space {
        pages: (task.bytes / PAGE_BYTES) as u64,
        resident: task.resident / PAGE_BYTES as u64,
        threads: task.threads as u64,
    }
}

fn read_device(task: &Task) -> Result<Findings, String> {
    let path = task.file.as_ref().ok_or("the device needs a file")?;
    let mut sequence = Sequence::new(task.pattern, space(task), 0, task.seed);
    let accesses = task.phases.iter().map(|phase| phase.accesses).sum();
    let (clock, cpu) = (Instant::now(), cpu_seconds());
    let all = Spread::of(&device::read(path, || sequence.page(), accesses)?);
    Ok(Findings {
        all,
        slow: all,
        seconds: clock.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds() - cpu,
        faults: accesses,
        ..Findings::default()
    })
}

fn walk_graph(task: &Task, memory: &Memory) -> Result<Findings, String> {
    let path = task.file.as_ref().ok_or("a graph needs a file")?;
    let shape = Shape::filling(task.bytes as u64);
    File::open(path)
        .and_then(|mut file| Graph::read_from(memory, shape, &mut file))
        .map_err(|error| format!("reading {}: {error}", path.display()))?;
    let graph = Graph::in_memory(memory, shape);
    let mut times: Vec<_> = (0..task.threads).map(|_| histogram()).collect();
    let before = Before::now(memory);
    graph.run(task.threads, &mut times);
    let times: Vec<_> = times.into_iter().map(|times| vec![times]).collect();
    let mut findings = before.findings(task, memory, &times);
    findings.answer = Some(graph.answer());
    Ok(findings)
}

fn access_pages(task: &Task, memory: &Memory) -> Result<Findings, String> {
    let content = task.content();
    let begun = Instant::now();
    // A bare handler's memory is what its store holds, if it has one.
    let has_contents = match memory.as_floor() {
        Some(floor) => Floor::has_contents(floor),
        None => {
            fill(memory, &content);
            true
        }
    };
    let fill_seconds = begun.elapsed().as_secs_f64();
    let (mut findings, written) = access(task, memory, has_contents.then_some(&content))?;
    findings.fill_seconds = fill_seconds;
    if has_contents {
        let begun = Instant::now();
        findings.checksum = Some(verify(memory, &content, written)?);
        findings.verify_seconds = begun.elapsed().as_secs_f64();
    }
    Ok(findings)
}

fn fill(memory: &Memory, content: &Content) {
    for page in 0..memory.pages() {
        for (index, word) in memory.page(page).iter().enumerate() {
            word.store(content.word(page, index), Relaxed);
        }
    }
}

/// All threads' accesses, and how many of them wrote.
fn access(
    task: &Task,
    memory: &Memory,
    content: Option<&Content>,
) -> Result<(Findings, u64), String> {
    let phases = || -> Vec<_> { task.phases.iter().map(|_| histogram()).collect() };
    let (warm, go) = (
        Barrier::new(task.threads + 1),
        Barrier::new(task.threads + 1),
    );
    let (mut all, mut written) = (Vec::new(), 0);
    let before = std::thread::scope(|scope| {
        let spawn = |thread| {
            let (warm, go) = (&warm, &go);
            let (mut times, mut unused) = (phases(), histogram());
            let mut accessor = Accessor {
                memory,
                sequence: Sequence::new(task.pattern, space(task), thread, task.seed),
                content,
                written: 0,
            };
            scope.spawn(move || {
                let share = |count: u64| count / task.threads as u64;
                let writes = task.phases.first().map_or(0, |phase| phase.writes);
                let warmed = accessor.access(share(task.warmup), writes, &mut unused);
                drop(unused);
                warm.wait();
                go.wait();
                warmed?;
                for (phase, times) in task.phases.iter().zip(&mut times) {
                    accessor.access(share(phase.accesses), phase.writes, times)?;
                }
                Ok::<_, String>((accessor.written, times))
            })
        };
        let threads: Vec<_> = (0..task.threads as u64).map(spawn).collect();
        warm.wait();
        let before = Before::now(memory);
        go.wait();
        for thread in threads {
            let (count, times) = thread.join().map_err(|_| "a thread panicked")??;
            written += count;
            all.push(times);
        }
        Ok::<_, String>(before)
    })?;
    Ok((before.findings(task, memory, &all), written))
}

/// One thread's accesses.
struct Accessor<'a> {
    memory: &'a Memory,
    sequence: Sequence,
    /// What is to be found, if anything is.
    content: Option<&'a Content>,
    written: u64,
}

impl Accessor<'_> {
    fn access(
        &mut self,
        count: u64,
        writes: u32,
        times: &mut Histogram<u64>,
    ) -> Result<(), String> {
        for _ in 0..count {
            let page = self.sequence.page() as usize;
            let random = self.sequence.random();
            if writes > 0 && random.below(100) < u64::from(writes) {
                let counter = self.memory.word(page, COUNTER_WORD);
                let start = Instant::now();
                counter.fetch_add(1, Relaxed);
                times.saturating_record(start.elapsed().as_nanos() as u64);
                self.written += 1;
                continue;
            }
            let index = 1 + random.below(PAGE_WORDS as u64 - 1) as usize;
            let word = self.memory.word(page, index);
            let start = Instant::now();
            let found = word.load(Relaxed);
            times.saturating_record(start.elapsed().as_nanos() as u64);
            if let Some(content) = self.content {
                check(page, index, found, content)?;
            }
        }
        Ok(())
    }
}

fn check(page: usize, index: usize, found: u64, content: &Content) -> Result<(), String> {
    match content.word(page, index) {
        expected if expected == found => Ok(()),
        expected => Err(format!(
            "word {index} of page {page} is {found:#x}, not {expected:#x}"
        )),
    }
}

/// Compares every word with what it must be; returns the checksum of all.
fn verify(memory: &Memory, content: &Content, written: u64) -> Result<String, String> {
    let (mut counted, mut checksum) = (0u64, 0u64);
    for page in 0..memory.pages() {
        for (index, word) in memory.page(page).iter().enumerate() {
            let found = word.load(Relaxed);
            if index == COUNTER_WORD {
                counted += found.wrapping_sub(content.word(page, index));
            } else {
                check(page, index, found, content)
                    .map_err(|error| format!("at the end {error}"))?;
            }
            checksum = (checksum.rotate_left(5) ^ found).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    if counted != written {
        return Err(format!(
            "{written} writes were done and {counted} were kept"
        ));
    }
    Ok(format!("{checksum:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_word_is_named_and_writes_are_counted() {
        let (memory, content) = (Memory::plain(16 * PAGE_BYTES).unwrap(), Content::half(7));
        fill(&memory, &content);
        memory.word(3, COUNTER_WORD).fetch_add(5, Relaxed);
        assert!(verify(&memory, &content, 5).is_ok());
        let lost = verify(&memory, &content, 6).unwrap_err();
        assert_eq!(lost, "6 writes were done and 5 were kept");
        memory.word(3, 400).fetch_xor(1, Relaxed);
        let changed = verify(&memory, &content, 5).unwrap_err();
        assert!(
            changed.starts_with("at the end word 400 of page 3"),
            "{changed}"
        );
    }
}
