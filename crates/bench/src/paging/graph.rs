//! BFS and PageRank on an R-MAT graph in compressed sparse rows, all of it in the memory under
//! test: offsets, edges, ranks, levels and queue.
//!
//! The graph is as in Graph500 (Chakrabarti et al., SDM 2004; A = 0.57, B = C = 0.19), undirected,
//! its vertices renumbered at random. Both algorithms give the same bits whatever the number of
//! threads, so a run is checked by comparing digests.
use std::fs::File;
use std::io::{Error, Read, Result, Write};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use hdrhistogram::Histogram;

use super::memory::Memory;
use super::shape::{Answer, Shape};
use crate::content::Random;
use crate::statistics::histogram;

const ITERATIONS: usize = 4;
const DAMPING: f64 = 0.85;
const UNSEEN: u32 = u32::MAX;
/// The parts of a graph in `memory`.
pub struct Graph<'m> {
    shape: Shape,
    offsets: &'m [AtomicU64],
    edges: &'m [AtomicU32],
    ranks: [&'m [AtomicU64]; 2],
    levels: &'m [AtomicU32],
    queue: &'m [AtomicU32],
}

fn edge(shape: Shape, random: &mut Random) -> (usize, usize) {
    let (mut from, mut to, mut bits) = (0usize, 0usize, 0u64);
    for level in 0..shape.scale {
        if level % 4 == 0 {
            bits = random.number();
        }
        let (a, ab, abc) = (37_356, 49_807, 62_259); // 0.57, 0.76 and 0.95 of 65536
        let draw = bits & 0xFFFF;
        bits >>= 16;
        from = from << 1 | usize::from(draw >= ab);
        to = to << 1 | usize::from((a..ab).contains(&draw) || draw >= abc);
    }
    let mask = shape.vertices() - 1;
    let renumber = |v: usize| {
        let v = v.wrapping_mul(0x9e37_79b1) & mask;
        (v ^ v >> (shape.scale / 2)).wrapping_mul(0x85eb_ca6b) & mask
    };
    (renumber(from), renumber(to))
}

impl<'m> Graph<'m> {
    /// The parts of a graph of `shape` in `memory`, which must have [`Shape::bytes`].
    pub fn in_memory(memory: &'m Memory, shape: Shape) -> Graph<'m> {
        let n = shape.vertices();
        let rank_words = Shape::pages_of(n);
        let after = shape.graph_words();
        Graph {
            shape,
            offsets: memory.words(0, n + 1),
            edges: memory.halves(shape.offset_words(), 2 * shape.edges as usize),
            ranks: [memory.words(after, n), memory.words(after + rank_words, n)],
            levels: memory.halves(after + 2 * rank_words, n),
            queue: memory.halves(after + 2 * rank_words + Shape::pages_of(n / 2), n),
        }
    }

    /// Makes the graph of `seed`. Random access all over: for memory that is not under test.
    pub fn build(&self, seed: u64) {
        let n = self.shape.vertices();
        let each = |visit: &mut dyn FnMut(usize, usize)| {
            let mut random = Random::new(seed);
            for _ in 0..self.shape.edges {
                let (from, to) = edge(self.shape, &mut random);
                visit(from, to);
                visit(to, from);
            }
        };
        self.offsets.iter().for_each(|o| o.store(0, Relaxed));
        each(&mut |from, _| {
            self.offsets[from + 1].fetch_add(1, Relaxed);
        });
        for v in 0..n {
            self.offsets[v + 1].fetch_add(self.offsets[v].load(Relaxed), Relaxed);
        }
        // The ranks serve as cursors until the algorithms run.
        let next = self.ranks[0];
        (0..n).for_each(|v| next[v].store(self.offsets[v].load(Relaxed), Relaxed));
        each(&mut |from, to| {
            let at = next[from].fetch_add(1, Relaxed);
            self.edges[at as usize].store(to as u32, Relaxed);
        });
    }

    /// Writes offsets and edges as bytes.
    pub fn write_to(memory: &Memory, shape: Shape, out: &mut File) -> Result<()> {
        let mut buffer = Vec::with_capacity(1 << 20);
        for words in memory.words(0, shape.graph_words()).chunks(1 << 17) {
            buffer.clear();
            words
                .iter()
                .for_each(|word| buffer.extend(word.load(Relaxed).to_ne_bytes()));
            out.write_all(&buffer)?;
        }
        Ok(())
    }

    /// Reads what [`Graph::write_to`] wrote, through a buffer, as a system call may not reach the
    /// memory itself.
    pub fn read_from(memory: &Memory, shape: Shape, from: &mut File) -> Result<()> {
        let mut buffer = vec![0; 1 << 20];
        let (mut word, end) = (0, shape.graph_words());
        while word < end {
            let bytes = ((end - word) * 8).min(buffer.len());
            from.read_exact(&mut buffer[..bytes])?;
            memory.copy_in(word, &buffer[..bytes]);
            word += bytes / 8;
        }
        Ok(())
    }

    fn neighbours(&self, v: usize) -> &[AtomicU32] {
        let (from, to) = (
            self.offsets[v].load(Relaxed),
            self.offsets[v + 1].load(Relaxed),
        );
        &self.edges[from as usize..to as usize]
    }

    /// BFS and then PageRank on `threads` threads; every vertex's time goes to `times`, one
    /// histogram a thread.
    pub fn run(&self, threads: usize, times: &mut [Histogram<u64>]) {
        let root = (0..1000)
            .max_by_key(|v| self.neighbours(*v).len())
            .unwrap_or(0);
        self.levels.iter().for_each(|l| l.store(UNSEEN, Relaxed));
        self.levels[root].store(0, Relaxed);
        self.queue[0].store(root as u32, Relaxed);
        let (tail, barrier) = (AtomicUsize::new(1), Barrier::new(threads));
        std::thread::scope(|scope| {
            for (thread, times) in times.iter_mut().enumerate().take(threads) {
                let (tail, barrier) = (&tail, &barrier);
                scope.spawn(move || {
                    self.bfs(thread, threads, tail, barrier, times);
                    self.page_rank(thread, threads, barrier, times);
                });
            }
        });
    }

    fn bfs(
        &self,
        thread: usize,
        threads: usize,
        tail: &AtomicUsize,
        barrier: &Barrier,
        times: &mut Histogram<u64>,
    ) {
        let mut clock = Lap::new();
        let (mut from, mut level) = (0, 0);
        loop {
            barrier.wait();
            let to = tail.load(Relaxed);
            barrier.wait();
            if from == to {
                return;
            }
            level += 1;
            clock.start();
            let part = (to - from).div_ceil(threads);
            let first = (from + part * thread).min(to);
            for place in first..(first + part).min(to) {
                for neighbour in self.neighbours(self.queue[place].load(Relaxed) as usize) {
                    let w = neighbour.load(Relaxed);
                    let seen = &self.levels[w as usize];
                    if seen.load(Relaxed) == UNSEEN
                        && seen
                            .compare_exchange(UNSEEN, level, Relaxed, Relaxed)
                            .is_ok()
                    {
                        self.queue[tail.fetch_add(1, Relaxed)].store(w, Relaxed);
                    }
                }
                clock.lap(times);
            }
            from = to;
        }
    }

    /// The vertices of one thread's part: about as many edges for each thread.
    fn part(&self, thread: usize, threads: usize) -> std::ops::Range<usize> {
        let bound = |thread: usize| match thread {
            0 => 0,
            _ if thread == threads => self.shape.vertices(),
            _ => {
                let edge = 2 * self.shape.edges * thread as u64 / threads as u64;
                self.offsets.partition_point(|o| o.load(Relaxed) < edge)
            }
        };
        bound(thread)..bound(thread + 1).min(self.shape.vertices())
    }

    /// Pull, by Jacobi steps: `ranks[0]` holds what each vertex gives to every neighbour,
    /// `ranks[1]` what it gets.
    fn page_rank(
        &self,
        thread: usize,
        threads: usize,
        barrier: &Barrier,
        times: &mut Histogram<u64>,
    ) {
        let n = self.shape.vertices() as f64;
        let [gives, gets] = self.ranks;
        let mine = self.part(thread, threads);
        let give = |v: usize, rank: f64| {
            let degree = self.neighbours(v).len().max(1) as f64;
            gives[v].store((rank / degree).to_bits(), Relaxed);
        };
        mine.clone().for_each(|v| give(v, 1.0 / n));
        let mut clock = Lap::new();
        for _ in 0..ITERATIONS {
            barrier.wait();
            clock.start();
            for v in mine.clone() {
                let sum: f64 = self
                    .neighbours(v)
                    .iter()
                    .map(|w| f64::from_bits(gives[w.load(Relaxed) as usize].load(Relaxed)))
                    .sum();
                let rank = (1.0 - DAMPING) / n + DAMPING * sum;
                gets[v].store(rank.to_bits(), Relaxed);
                clock.lap(times);
            }
            barrier.wait();
            for v in mine.clone() {
                give(v, f64::from_bits(gets[v].load(Relaxed)));
            }
        }
    }

    /// Tells `visit` the page of every word that a BFS and an iteration of PageRank would touch, in
    /// order.
    pub fn trace(&self, visit: &mut dyn FnMut(u64)) {
        let start = self.offsets.as_ptr() as usize;
        let page_of = |address: usize| ((address - start) / 4096) as u64;
        let n = self.shape.vertices();
        let mut seen = vec![false; n];
        let mut queue = std::collections::VecDeque::from([0]);
        seen[0] = true;
        while let Some(v) = queue.pop_front() {
            visit(page_of(&raw const self.offsets[v] as usize));
            for neighbour in self.neighbours(v) {
                let w = neighbour.load(Relaxed) as usize;
                visit(page_of(std::ptr::from_ref(neighbour) as usize));
                visit(page_of(&raw const self.levels[w] as usize));
                if !std::mem::replace(&mut seen[w], true) {
                    queue.push_back(w);
                }
            }
        }
        for v in 0..n {
            visit(page_of(&raw const self.offsets[v] as usize));
            for neighbour in self.neighbours(v) {
                let w = neighbour.load(Relaxed) as usize;
                visit(page_of(std::ptr::from_ref(neighbour) as usize));
                visit(page_of(&raw const self.ranks[0][w] as usize));
            }
            visit(page_of(&raw const self.ranks[1][v] as usize));
        }
    }

    /// Digests of what [`Graph::run`] left.
    pub fn answer(&self) -> Answer {
        let digest = |values: &mut dyn Iterator<Item = u64>| {
            let sum = values.fold(0u64, |sum, value| {
                (sum.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
            format!("{sum:016x}")
        };
        let levels = || self.levels.iter().map(|l| u64::from(l.load(Relaxed)));
        Answer {
            reached: levels().filter(|l| *l != u64::from(UNSEEN)).count() as u64,
            levels: digest(&mut levels()),
            ranks: digest(&mut self.ranks[1].iter().map(|r| r.load(Relaxed))),
        }
    }
}

/// A clock read once a lap.
struct Lap(Instant);

impl Lap {
    fn new() -> Lap {
        Lap(Instant::now())
    }

    fn start(&mut self) {
        self.0 = Instant::now();
    }

    fn lap(&mut self, times: &mut Histogram<u64>) {
        let now = Instant::now();
        times.saturating_record((now - self.0).as_nanos() as u64);
        self.0 = now;
    }
}

/// A graph made once, with the answer that a run in unbounded memory gives.
pub struct Prepared {
    /// Its size.
    pub shape: Shape,
    /// Every run must come to this.
    pub answer: Answer,
    file: File,
}

impl Prepared {
    /// Makes a graph that fills `bytes` and runs the algorithms on it, in plain memory.
    pub fn new(bytes: u64, seed: u64, threads: usize) -> Result<Prepared> {
        let shape = Shape::filling(bytes);
        let memory = Memory::plain(shape.bytes()).map_err(Error::other)?;
        let graph = Graph::in_memory(&memory, shape);
        graph.build(seed);
        use rustix::fs::{MemfdFlags, memfd_create};
        let mut file = File::from(memfd_create("pagetide-bench-graph", MemfdFlags::CLOEXEC)?);
        Graph::write_to(&memory, shape, &mut file)?;
        let mut times: Vec<_> = (0..threads).map(|_| histogram()).collect();
        graph.run(threads, &mut times);
        let answer = graph.answer();
        Ok(Prepared {
            shape,
            answer,
            file,
        })
    }

    /// Where another process of this user can open the graph.
    pub fn path(&self) -> std::path::PathBuf {
        use std::os::fd::AsRawFd;
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(shape: Shape) -> (Memory, Answer) {
        let memory = Memory::plain(shape.bytes()).unwrap();
        let graph = Graph::in_memory(&memory, shape);
        graph.build(5);
        graph.run(1, &mut [histogram()]);
        let answer = graph.answer();
        (memory, answer)
    }

    /// Checked against the textbook algorithms on adjacency lists.
    #[test]
    fn the_answers_are_those_of_the_textbook() {
        let shape = Shape {
            scale: 10,
            edges: 8000,
        };
        let (memory, _) = built(shape);
        let graph = Graph::in_memory(&memory, shape);
        let n = shape.vertices();
        let mut lists = vec![vec![]; n];
        let mut random = Random::new(5);
        for _ in 0..shape.edges {
            let (from, to) = edge(shape, &mut random);
            lists[from].push(to);
            lists[to].push(from);
        }
        let root = (0..1000).max_by_key(|v| lists[*v].len()).unwrap();
        let mut levels = vec![UNSEEN; n];
        levels[root] = 0;
        let mut frontier = vec![root];
        while !frontier.is_empty() {
            let mut next = vec![];
            for v in frontier {
                for &w in &lists[v] {
                    if levels[w] == UNSEEN {
                        levels[w] = levels[v] + 1;
                        next.push(w);
                    }
                }
            }
            frontier = next;
        }
        assert!(levels.iter().filter(|l| **l != UNSEEN).count() > n / 2);
        for (v, level) in levels.iter().enumerate() {
            assert_eq!(graph.levels[v].load(Relaxed), *level, "level of {v}");
        }
        let mut ranks = vec![1.0 / n as f64; n];
        for _ in 0..ITERATIONS {
            ranks = (0..n)
                .map(|v| {
                    let sum: f64 = lists[v]
                        .iter()
                        .map(|w| ranks[*w] / lists[*w].len() as f64)
                        .sum();
                    (1.0 - DAMPING) / n as f64 + DAMPING * sum
                })
                .collect();
        }
        for (v, rank) in ranks.iter().enumerate() {
            let computed = f64::from_bits(graph.ranks[1][v].load(Relaxed));
            assert!((computed - rank).abs() < 1e-12, "{computed} is not {rank}");
        }
    }

    #[test]
    fn threads_and_a_copy_change_nothing() {
        let shape = Shape::filling(4 << 20);
        let (memory, alone) = built(shape);
        let mut file =
            File::from(rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        Graph::write_to(&memory, shape, &mut file).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let copy = Memory::plain(shape.bytes()).unwrap();
        Graph::read_from(&copy, shape, &mut file).unwrap();
        let graph = Graph::in_memory(&copy, shape);
        graph.run(3, &mut [(); 3].map(|()| histogram()));
        assert_eq!(graph.answer(), alone);
    }
}
