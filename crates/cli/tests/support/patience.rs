//! How long tests wait before they call something a hang.
#![allow(dead_code)] // each test file uses its own part of this
use std::time::Duration;

/// `PAGETIDE_TESTS_TIME_SCALE`: how many times slower than usual this system is. Software emulation
/// is 5 to 20 times slower.
fn scale() -> f64 {
    let given = std::env::var("PAGETIDE_TESTS_TIME_SCALE").ok();
    given.map_or(1.0, |text| {
        text.parse()
            .ok()
            .filter(|scale: &f64| (0.1..=1000.0).contains(scale))
            .unwrap_or_else(|| {
                panic!("PAGETIDE_TESTS_TIME_SCALE: '{text}' is no number from 0.1 to 1000")
            })
    })
}

/// Whether this system is slower than usual: what a test need not be large for is small there.
pub fn is_slow() -> bool {
    scale() > 1.0
}

/// So many rounds, or an eighth of them on a system that is slower than usual.
pub fn fewer(rounds: u64) -> u64 {
    if is_slow() {
        (rounds / 8).max(2)
    } else {
        rounds
    }
}

/// `limit` on a system of this speed.
pub fn scaled(limit: Duration) -> Duration {
    limit.mul_f64(scale())
}

/// So many seconds on a system of this speed.
pub fn up_to(seconds: u64) -> Duration {
    scaled(Duration::from_secs(seconds))
}
