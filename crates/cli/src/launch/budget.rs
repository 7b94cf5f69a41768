//! What the options say of how much memory each process may have.
use pagetide_kernel::procfs::memory::available_to;
use pagetide_pager::evict::adapting::Automatic;
use pagetide_pager::report::check_memory;

use crate::args::Run;
use crate::exit::{Exit, Failure};
use crate::size::{Bytes, PAGE_BYTES, Resident, Size};

/// How much memory each process of a run may have, or all together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// The most bytes that may be resident.
    pub resident_bytes: u64,
    /// The most bytes of all memory: resident, stored and other.
    pub memory_bytes: Option<u64>,
    /// The resident part follows the program.
    pub automatic: Option<Automatic>,
    /// It is of all processes of the run together.
    pub is_shared: bool,
}

impl Budget {
    /// From the options, and what is available to this process.
    ///
    /// # Errors
    /// Options that do not go together, and a size that cannot be: bad usage.
    pub fn of(options: &Run) -> Result<Budget, Failure> {
        let available = available_to("self");
        let (resident_bytes, automatic) = resident(options, available)?;
        Ok(Budget {
            resident_bytes,
            memory_bytes: memory(options, available)?,
            automatic,
            is_shared: options.is_shared(),
        })
    }

    /// The option that bounds a process, or the run, and its bytes.
    pub fn limit(&self) -> (&'static str, u64) {
        match self.memory_bytes {
            Some(bytes) => ("--memory", bytes),
            None => ("--resident", self.resident_bytes),
        }
    }
}

fn usage<T>(text: String) -> Result<T, Failure> {
    Err(Failure::new(Exit::Usage, text))
}

fn memory(options: &Run, available: u64) -> Result<Option<u64>, Failure> {
    let Some(size) = options.memory else {
        return Ok(None);
    };
    if options.per_run {
        return usage(
            "--memory bounds each process by itself, --per-run all of them together; expected one \
             of the two"
                .to_owned(),
        );
    }
    let bytes = size.resolve(available);
    if let Err(why) = check_memory(bytes) {
        return usage(format!("--memory {}: {why}", Bytes(bytes)));
    }
    match options.resident {
        Resident::Fixed(Size::Bytes(resident)) if resident > bytes => usage(format!(
            "--resident {} is a part of --memory {}, which is less; expected at most that",
            Bytes(resident),
            Bytes(bytes)
        )),
        _ => Ok(Some(bytes)),
    }
}

/// The budget in bytes, and whether it follows the program.
fn resident(options: &Run, available: u64) -> Result<(u64, Option<Automatic>), Failure> {
    const FLOOR: Size = Size::Bytes(16 << 20);
    const CEILING: Size = Size::Share {
        millionths: 750_000,
    };
    let slowdown = match options.resident {
        Resident::Fixed(_) if options.floor.or(options.ceiling).is_some() => {
            return usage(
                "--floor and --ceiling bound a budget that follows the program; expected \
                 --resident auto with them, or neither"
                    .to_owned(),
            );
        }
        Resident::Fixed(size) => return Ok((size.resolve(available), None)),
        Resident::Automatic { slowdown } => slowdown,
    };
    let ceiling = options.ceiling.unwrap_or(CEILING).resolve(available);
    let usual_floor = FLOOR.resolve(available).min(ceiling);
    let floor = (options.floor).map_or(usual_floor, |floor| floor.resolve(available));
    if options.per_run {
        return usage(
            "--resident auto follows each process by itself, with --per-run the budget is the \
             run's; expected one of the two"
                .to_owned(),
        );
    }
    if floor > ceiling {
        return usage(format!(
            "--resident auto: the floor of {} is more than the ceiling of {}; expected less",
            Bytes(floor),
            Bytes(ceiling)
        ));
    }
    let automatic = Automatic {
        slowdown,
        floor_pages: floor / PAGE_BYTES,
    };
    Ok((ceiling, Some(automatic)))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Arguments, Command};

    fn run(options: &[&str]) -> Run {
        let words = [&["pagetide", "run"], options, &["true"]].concat();
        let arguments = Arguments::try_parse_from(words).expect("known options");
        match arguments.command {
            Command::Run(options) => options,
            other => panic!("{other:?}"),
        }
    }

    fn budget(options: &[&str]) -> Result<Budget, Failure> {
        Budget::of(&run(options))
    }

    #[test]
    fn memory_in_all_leaves_the_resident_part_open_unless_that_is_said_too() {
        let all = budget(&["--memory", "1G"]).unwrap();
        assert_eq!(
            (all.memory_bytes, all.limit().0),
            (Some(1 << 30), "--memory")
        );
        let less = budget(&[]).unwrap();
        assert!(all.resident_bytes > less.resident_bytes, "{all:?} {less:?}");
        let both = budget(&["--memory", "1G", "--resident", "256M"]).unwrap();
        assert_eq!(
            (both.resident_bytes, both.memory_bytes),
            (256 << 20, Some(1 << 30))
        );
        assert!(budget(&["--memory", "60%"]).unwrap().memory_bytes > Some(1 << 20));
        let automatic = budget(&["--memory", "1G", "--resident", "auto"]).unwrap();
        assert!(automatic.automatic.is_some() && automatic.memory_bytes.is_some());
    }

    #[test]
    fn a_budget_is_the_runs_unless_something_is_of_each_process() {
        let is_shared = |options: &[&str]| run(options).is_shared();
        assert!(is_shared(&[]) && is_shared(&["--resident", "1G", "--per-run"]));
        assert!(is_shared(&["--per-process", "--per-run"]));
        for options in [
            &["--per-process"][..],
            &["--per-run", "--per-process"],
            &["--memory", "1G"],
            &["--resident", "auto"],
            &["--measure"],
            &["--trace", "/tmp/trace"],
        ] {
            assert!(!is_shared(options), "{options:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_bad_usage_and_says_what_was_expected() {
        for (options, said) in [
            (&["--memory", "1G", "--per-run"][..], "one of the two"),
            (&["--memory", "4M"], "16 MiB or more"),
            (
                &["--memory", "40M", "--resident", "50M"],
                "50 MiB is a part of --memory 40 MiB",
            ),
            (&["--resident", "1G", "--floor", "1M"], "--resident auto"),
        ] {
            let failure = budget(options).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains(said), "{failure}");
        }
    }
}
