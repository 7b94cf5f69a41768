//! How much memory a program needs, as `pagetide run --measure` says.
use serde::{Deserialize, Serialize};

/// What is expected with so much memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    bytes: f64,
    /// Over the time with all.
    pub expected_time: f64,
    /// Pages missed in all.
    pub misses: f64,
}

/// What a measured process needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Need {
    /// The most in use.
    pub in_use_bytes_max: f64,
    /// From much memory to little.
    points: Vec<Point>,
}

impl Need {
    /// What is expected with `bytes`, between the points on both sides; outside them, the next.
    pub fn expected(&self, bytes: u64) -> Option<Point> {
        let bytes = bytes as f64;
        let (first, last) = (self.points.first()?, self.points.last()?);
        let pair = self
            .points
            .windows(2)
            .find(|pair| pair[0].bytes >= bytes && bytes >= pair[1].bytes && pair[0] != pair[1]);
        Some(match pair {
            Some([more, less]) => {
                let part = (more.bytes - bytes) / (more.bytes - less.bytes).max(1.0);
                let between = |of: fn(&Point) -> f64| of(more) + part * (of(less) - of(more));
                Point {
                    bytes,
                    expected_time: between(|point| point.expected_time),
                    misses: between(|point| point.misses),
                }
            }
            _ if bytes > first.bytes => *first,
            _ => *last,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_two_points_is_expected_in_proportion() {
        let need = Need {
            in_use_bytes_max: 100.0,
            points: [(100.0, 1.0), (50.0, 2.0), (20.0, 5.0)]
                .map(|(bytes, expected_time)| Point {
                    bytes,
                    expected_time,
                    misses: expected_time,
                })
                .to_vec(),
        };
        let expected = [200, 100, 75, 50, 35, 20, 1].map(|bytes| need.expected(bytes));
        let numbers = expected.map(|point| {
            let point = point.expect("there are points");
            assert_eq!(point.expected_time, point.misses);
            point.expected_time
        });
        assert_eq!(numbers, [1.0, 1.0, 1.5, 2.0, 3.5, 5.0, 5.0]);
    }
}
