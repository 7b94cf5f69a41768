//! What bounds a process, in words: a size, a part of its run's budget, or a budget that follows
//! it.
use pagetide_pager::report::Statistics;

use crate::size::Bytes;

/// `auto:10%`, as `run --resident` has it, where the budget follows the program.
pub fn automatic(s: &Statistics) -> Option<String> {
    // As many digits as were given: the ledger has millionths.
    let percent = (s.automatic_slowdown * 1e6).round() / 1e4;
    (percent > 0.0).then(|| format!("auto:{percent}%"))
}

/// The budget of a process, for a column.
pub fn short(s: &Statistics) -> String {
    let budget = Bytes(s.budget_bytes);
    match (automatic(s), s.cap_bytes()) {
        (Some(automatic), _) => format!(
            "{automatic}, {} to {budget}",
            Bytes(s.automatic_floor_bytes.min(s.budget_bytes))
        ),
        (None, Some(cap)) => format!("{budget}, at most {}", Bytes(cap)),
        (None, None) => budget.to_string(),
    }
}

/// What the budget follows or is a part of, in words.
pub fn whose(s: &Statistics) -> Vec<String> {
    let automatic = automatic(s).map(|automatic| {
        let floor = s.automatic_floor_bytes.min(s.budget_bytes);
        format!("{automatic} with {} or more", Bytes(floor))
    });
    let run = Some(s.run_budget_bytes).filter(|bytes| *bytes > 0);
    let run = run.map(|bytes| format!("its part of the run's {}", Bytes(bytes)));
    let cap = s
        .cap_bytes()
        .map(|cap| format!("limited to {}", Bytes(cap)));
    [automatic, run, cap].into_iter().flatten().collect()
}

/// What is resident of the budget, for a line.
pub fn long(s: &Statistics) -> String {
    let share = 100.0 * s.resident_bytes as f64 / s.budget_bytes.max(1) as f64;
    let mut of = whose(s);
    of.push(format!("{share:.0} %"));
    let at_most = automatic(s).map_or("", |_| "at most ");
    format!(
        "{} of {at_most}{} ({}), {} at most so far",
        Bytes(s.resident_bytes),
        Bytes(s.budget_bytes),
        of.join(", "),
        Bytes(s.resident_bytes_max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_whose_the_bound_is_and_what_it_follows() {
        let mut s = Statistics {
            budget_bytes: 8 << 20,
            resident_bytes: 4 << 20,
            resident_bytes_max: 6 << 20,
            ..Statistics::default()
        };
        assert_eq!(short(&s), "8 MiB");
        assert_eq!(long(&s), "4 MiB of 8 MiB (50 %), 6 MiB at most so far");
        (s.run_budget_bytes, s.run_share_max_bytes) = (32 << 20, 32 << 20);
        assert_eq!(short(&s), "8 MiB");
        let part = "4 MiB of 8 MiB (its part of the run's 32 MiB, 50 %), 6 MiB at most so far";
        assert_eq!(long(&s), part);
        s.run_share_max_bytes = 9 << 20;
        assert_eq!(
            (short(&s).as_str(), s.bound_bytes()),
            ("8 MiB, at most 9 MiB", 9 << 20)
        );
        assert!(long(&s).contains("32 MiB, limited to 9 MiB, 50 %)"));
        (s.run_budget_bytes, s.automatic_slowdown) = (0, 0.125);
        s.automatic_floor_bytes = 1 << 20;
        assert_eq!(short(&s), "auto:12.5%, 1 MiB to 8 MiB");
        let followed = "4 MiB of at most 8 MiB (auto:12.5% with 1 MiB or more, 50 %), 6 MiB at \
                        most so far";
        assert_eq!(long(&s), followed);
    }
}
