//! Consistent hashing: each server has many points on a ring, and a key belongs to the first point
//! after it.
//!
//! A server more or less then moves only its own share of the keys (Karger et al., 1997). A run's
//! servers do not change, but runs started with different lists must agree on what they share: the
//! records of owners.

use xxhash_rust::xxh3::xxh3_64;

/// Points of each server: with 160 the shares of three servers differ by about a tenth.
const POINTS: u32 = 160;

/// The points of all servers.
pub(super) struct Ring {
    points: Vec<(u64, usize)>,
}

impl Ring {
    /// A ring of the servers with these names.
    pub(super) fn new(names: impl Iterator<Item = String>) -> Ring {
        let mut points: Vec<(u64, usize)> = names
            .enumerate()
            .flat_map(|(node, name)| {
                (0..POINTS).map(move |point| (xxh3_64(format!("{name}/{point}").as_bytes()), node))
            })
            .collect();
        points.sort_unstable();
        Ring { points }
    }

    /// The server of `key`.
    #[inline]
    pub(super) fn node_of(&self, key: &[u8]) -> usize {
        let hash = xxh3_64(key);
        let after = self.points.partition_point(|(point, _)| *point < hash);
        self.points
            .get(after)
            .or(self.points.first())
            .map_or(0, |(_, node)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(count: usize) -> Ring {
        Ring::new((0..count).map(|index| format!("10.0.0.{index}:11211")))
    }

    #[test]
    fn shares_are_alike() {
        let ring = ring(3);
        let mut shares = [0; 3];
        (0..30_000).for_each(|key: u32| shares[ring.node_of(&key.to_le_bytes())] += 1);
        assert!(
            shares.iter().all(|share| (7_500..12_500).contains(share)),
            "{shares:?}"
        );
    }

    #[test]
    fn one_server_more_moves_only_what_it_takes() {
        let (three, four) = (ring(3), ring(4));
        let mut moved = 0;
        for key in 0..10_000u32 {
            let (before, after) = (
                three.node_of(&key.to_le_bytes()),
                four.node_of(&key.to_le_bytes()),
            );
            if before != after {
                assert_eq!(after, 3);
                moved += 1;
            }
        }
        assert!((1_500..3_500).contains(&moved), "{moved}");
    }
}
