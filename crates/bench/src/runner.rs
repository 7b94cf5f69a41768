//! Runs systems in turns, so that a machine whose speed drifts drifts for all of them.
use std::io::Result;

use crate::report::progress;

/// A system under comparison: how one run of it is done. [`in_turns`] decides when.
pub trait System<Work> {
    /// What a run finds.
    type Found;

    /// Its name in tables and results.
    fn name(&self) -> &str;

    /// Does `work` once, from the start.
    fn run(&mut self, work: &Work) -> Result<Self::Found>;
}

/// Systems that do the same work and find the same things.
pub type Systems<'a, Work, Found> = Vec<Box<dyn System<Work, Found = Found> + 'a>>;

/// All runs of one system.
#[derive(Debug, Clone)]
pub struct Measured<Found> {
    /// The system's name.
    pub name: String,
    /// Each run, in order.
    pub runs: Vec<Found>,
}

/// Runs each system once in each turn, on the work of that turn: the same for all, with the same
/// seed. `keep` is given the system's name, the turn and what came out; it says what of that
/// counts, or ends everything with an error.
pub fn in_turns<Work, Found, Kept>(
    mut systems: Systems<'_, Work, Found>,
    turns: usize,
    work: impl Fn(usize) -> Work,
    mut keep: impl FnMut(&str, usize, Result<Found>) -> Result<Option<Kept>>,
) -> Result<Vec<Measured<Kept>>> {
    let mut all = Vec::new();
    for system in &systems {
        all.push(Measured {
            name: system.name().to_owned(),
            runs: Vec::new(),
        });
    }
    for turn in 0..turns {
        let work = work(turn);
        for (system, measured) in systems.iter_mut().zip(&mut all) {
            progress(&format!("run {} of {turns}: {}", turn + 1, measured.name));
            let found = system.run(&work);
            measured.runs.extend(keep(&measured.name, turn, found)?);
        }
    }
    progress("");
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    struct Logged<'a>(&'static str, &'a RefCell<Vec<(usize, &'static str)>>);

    impl System<usize> for Logged<'_> {
        type Found = usize;

        fn name(&self) -> &str {
            self.0
        }

        fn run(&mut self, work: &usize) -> Result<usize> {
            self.1.borrow_mut().push((*work, self.0));
            Ok(work * 10)
        }
    }

    #[test]
    fn systems_take_turns_and_what_is_not_kept_does_not_count() {
        let log = RefCell::new(Vec::new());
        let systems: Systems<'_, usize, usize> =
            vec![Box::new(Logged("a", &log)), Box::new(Logged("b", &log))];
        let keep = |name: &str, turn: usize, found: Result<usize>| {
            found.map(|found| (name == "b" || turn == 1).then_some(found))
        };
        let all = in_turns(systems, 2, |turn| turn + 7, keep).unwrap();
        assert_eq!(log.take(), [(7, "a"), (7, "b"), (8, "a"), (8, "b")]);
        assert_eq!((&*all[0].name, &*all[0].runs), ("a", &[80][..]));
        assert_eq!(all[1].runs, [70, 80]);
    }
}
