//! Histograms, percentiles, medians and ratios: the same for every benchmark.
use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const PLAIN: &str = "results are plain data";

/// Fixed range (1 ns to 60 s) and precision, so that recording never allocates.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}

/// Times in nanoseconds; zeros where there are none.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Spread {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Spread {
    /// Of all times in `histogram`.
    pub fn of(histogram: &Histogram<u64>) -> Spread {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64;
        Spread {
            count: histogram.len(),
            mean: histogram.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64,
        }
    }
}

/// The middle value; the mean of the two middle ones of an even number.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len.is_multiple_of(2) => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// Each number the median of the runs that have it, and all else as in the first run.
/// Panics without a run.
pub fn medians<T: Serialize + DeserializeOwned>(runs: &[T]) -> T {
    let runs: Vec<Value> = runs.iter().map(value).collect();
    serde_json::from_value(middle(&runs.iter().collect::<Vec<_>>())).expect(PLAIN)
}

fn value(run: &impl Serialize) -> Value {
    serde_json::to_value(run).expect(PLAIN)
}

fn middle(runs: &[&Value]) -> Value {
    if let Value::Object(fields) = runs[0] {
        let of = |name: &String| runs.iter().map(|run| &run[name]).collect::<Vec<_>>();
        let fields = fields.keys().map(|name| (name.clone(), middle(&of(name))));
        return fields.collect();
    }
    if let Value::Array(first) = runs[0] {
        let of = |at: usize| {
            runs.iter()
                .filter_map(|run| run.get(at))
                .collect::<Vec<_>>()
        };
        return (0..first.len()).map(|at| middle(&of(at))).collect();
    }
    let numbers: Vec<f64> = runs.iter().filter_map(|run| run.as_f64()).collect();
    match median(&numbers) {
        _ if numbers.is_empty() => runs[0].clone(),
        whole if runs.iter().all(|run| run.is_u64()) => (whole as u64).into(),
        number => number.into(),
    }
}

/// One system's medians over another's, by name; missing where there is nothing to compare.
pub type Ratios = BTreeMap<&'static str, Option<f64>>;

/// The `fields` of `ours`, each a name and a JSON pointer, over those of `theirs`.
pub fn ratios<T: Serialize>(
    ours: &T,
    theirs: &T,
    fields: &[(&'static str, &'static str)],
) -> Ratios {
    let (ours, theirs) = (value(ours), value(theirs));
    let of = |from: &Value, at| from.pointer(at).and_then(Value::as_f64);
    let over = |at| Some(of(&ours, at)? / of(&theirs, at).filter(|theirs| *theirs > 0.0)?);
    fields.iter().map(|(name, at)| (*name, over(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Run {
        name: String,
        faults: u64,
        us: Option<f64>,
    }

    fn run(name: &str, faults: u64, us: Option<f64>) -> Run {
        Run {
            name: name.to_owned(),
            faults,
            us,
        }
    }

    #[test]
    fn medians_are_of_each_field_and_of_the_runs_that_have_it() {
        let runs = [run("a", 9, Some(1.0)), run("b", 2, None), run("c", 3, None)];
        assert_eq!(medians(&runs), run("a", 3, Some(1.0)));
        assert_eq!(medians(&runs[1..]), run("b", 2, None));
    }

    #[test]
    fn a_ratio_needs_both_sides() {
        let fields = [("faults", "/faults"), ("us", "/us")];
        let over = ratios(&run("a", 9, Some(1.0)), &run("b", 2, None), &fields);
        assert_eq!(over["faults"], Some(4.5));
        assert_eq!(over["us"], None);
        let over = ratios(&run("a", 9, None), &run("b", 0, Some(2.0)), &fields);
        assert_eq!(over["faults"], None, "nothing is a share of nothing");
    }
}
