//! Generated traces.
use std::io::{Error, Result};

use clap::ValueEnum;

use super::trace::Trace;
use crate::content::Random;
use crate::paging::graph::Graph;
use crate::paging::memory::Memory;
use crate::paging::pattern::Zipf;
use crate::paging::shape::Shape;

/// What to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Uniformly random
    Random,
    /// Zipf-distributed (0.99)
    Zipf,
    /// Three quarters Zipf-distributed, while a scan over all pages goes on
    Scan,
    /// All pages in order, over and over
    Loop,
    /// Zipf-distributed; four times in the trace other pages become the popular ones
    Phases,
    /// BFS and PageRank on an R-MAT graph in CSR
    Graph,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = [
        Kind::Random,
        Kind::Zipf,
        Kind::Scan,
        Kind::Loop,
        Kind::Phases,
        Kind::Graph,
    ];
}

/// A trace of `accesses` to `pages` (a graph decides both by itself, from `pages`).
pub fn generate(kind: Kind, pages: u64, accesses: u64, seed: u64) -> Result<Trace> {
    let name = kind
        .to_possible_value()
        .map_or(String::new(), |value| value.get_name().to_owned());
    let (mut random, zipf) = (Random::new(seed), Zipf::new(pages));
    let mut scanned = 0;
    let mut draw = |position: u64| match kind {
        Kind::Random => random.below(pages),
        Kind::Loop => position % pages,
        Kind::Phases => (zipf.draw(&mut random) + position * 4 / accesses * (pages / 7)) % pages,
        Kind::Scan if position.is_multiple_of(4) => {
            scanned += 1;
            scanned % pages
        }
        _ => zipf.draw(&mut random),
    };
    Ok(match kind {
        Kind::Graph => Trace::new(name, walk(pages / GRAPH_SHARE, seed)?.into_iter()),
        _ => Trace::new(name, (0..accesses).map(&mut draw)),
    })
}

/// A graph makes hundreds of accesses a page, so it has fewer pages than the other traces: one in
/// so many.
const GRAPH_SHARE: u64 = 8;

/// The pages that one BFS and one iteration of PageRank touch, consecutive touches of a page taken
/// as one.
fn walk(pages: u64, seed: u64) -> Result<Vec<u64>> {
    let shape = Shape::filling(pages * 4096);
    let memory = Memory::plain(shape.bytes()).map_err(Error::other)?;
    let graph = Graph::in_memory(&memory, shape);
    graph.build(seed);
    let mut touched = Vec::new();
    graph.trace(&mut |page| {
        if touched.last() != Some(&page) {
            touched.push(page);
        }
    });
    Ok(touched)
}
