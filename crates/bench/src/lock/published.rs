//! The figures published in 2015 (5 GB file, 15 million random accesses), in ms: setup, processing.
use super::strategy::Strategy;

/// Accesses that they are of.
pub const ACCESSES: u64 = 15_000_000;

/// Of a strategy, if there are any.
pub fn of(strategy: Strategy) -> Option<(f64, f64)> {
    match strategy {
        Strategy::Whole => Some((8228.7, 8274.3)),
        Strategy::EachAccess => Some((0.113, 90993.6)),
        Strategy::Handler1 => Some((0.058, 69488.1)),
        Strategy::Handler8 => Some((0.068, 38204.1)),
        Strategy::Handler16 => Some((0.044, 29671.2)),
        Strategy::OnFault => Some((0.189, 17904.9)),
        Strategy::None
        | Strategy::OnFaultRandom
        | Strategy::OnFaultExact
        | Strategy::Adaptive
        | Strategy::Prefetch => None,
    }
}
