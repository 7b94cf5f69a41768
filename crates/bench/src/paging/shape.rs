//! How large a graph is, where its parts are, and what is computed on it.
use serde::{Deserialize, Serialize};

use crate::content::PAGE_WORDS;

/// Bytes for each vertex that are not edges: offset, two ranks, level, queue place.
const VERTEX_BYTES: u64 = 8 + 16 + 4 + 4;

/// How large a graph is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Vertices: two to this power.
    pub scale: u32,
    /// Undirected edges; each is stored twice.
    pub edges: u64,
}

impl Shape {
    /// The graph whose data fill `bytes`: sixteen to thirty-two edges a vertex.
    pub fn filling(bytes: u64) -> Shape {
        let scale = (bytes / (VERTEX_BYTES + 16 * 8)).max(64).ilog2();
        let vertices = 1u64 << scale;
        // Every part may waste a page.
        let for_edges = bytes.saturating_sub(vertices * VERTEX_BYTES + 6 * 4096);
        Shape {
            scale,
            edges: (for_edges / 8).max(vertices),
        }
    }

    /// Vertices.
    pub fn vertices(self) -> usize {
        1 << self.scale
    }

    /// Words rounded up to whole pages.
    pub fn pages_of(words: usize) -> usize {
        words.div_ceil(PAGE_WORDS) * PAGE_WORDS
    }

    /// Words of the offsets, which come first.
    pub fn offset_words(self) -> usize {
        Self::pages_of(self.vertices() + 1)
    }

    fn edge_words(self) -> usize {
        Self::pages_of(self.edges as usize)
    }

    /// Words of the graph itself, which come before the algorithms' own.
    pub fn graph_words(self) -> usize {
        self.offset_words() + self.edge_words()
    }

    /// Bytes of all parts.
    pub fn bytes(self) -> usize {
        let n = self.vertices();
        (self.graph_words() + 2 * Self::pages_of(n) + 2 * Self::pages_of(n / 2)) * 8
    }
}

/// What the algorithms computed, as digests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Vertices that BFS reached.
    pub reached: u64,
    /// Of all BFS levels.
    pub levels: String,
    /// Of all PageRank values, bit for bit.
    pub ranks: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_fills_its_bytes_and_no_more() {
        for bytes in [1 << 20, 100 << 20, 1 << 30] {
            let shape = Shape::filling(bytes);
            assert!(shape.bytes() as u64 <= bytes);
            assert!(shape.bytes() as u64 > bytes / 10 * 9, "{shape:?}");
        }
    }
}
