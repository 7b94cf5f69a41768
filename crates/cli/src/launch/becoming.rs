//! `run --exec`: the launcher becomes the program, so there is none while it runs and at its end.
use crate::args::Run;
use crate::exit::{Exit, Failure};

/// Refuses what a launcher does that waits for the program.
pub fn check(options: &Run) -> Result<(), Failure> {
    if !options.exec {
        return Ok(());
    }
    let outputs = [
        ("--stats", options.stats.is_some()),
        ("--plot", options.plot.is_some()),
        ("--trace", options.trace.is_some()),
        ("--measure", options.measure),
    ];
    let usage = |message| Err(Failure::new(Exit::Usage, message));
    if let Some((option, _)) = outputs.iter().find(|(_, given)| *given) {
        return usage(format!(
            "{option}: with --exec nobody is left to write it when the program ends; expected \
             --exec without it. While the program runs, `pagetide stat PID` and `pagetide metrics` \
             have its counters"
        ));
    }
    if pagetide_store::is_remote(&options.store) {
        let shown = pagetide_store::redact(&options.store);
        return usage(format!(
            "--store {shown}: with --exec nobody is left to keep its leases and to clear up after \
             the program; expected ram: or file:PATH, or a run without --exec (a systemd unit then \
             needs NotifyAccess=all)"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Arguments, Command};

    fn checked(options: &[&str]) -> Result<(), Failure> {
        let words = [&["pagetide", "run"], options, &["true"]].concat();
        match Arguments::try_parse_from(words).unwrap().command {
            Command::Run(options) => check(&options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_needs_a_launcher_at_the_end_is_refused_with_what_to_do() {
        for (options, said) in [
            (&["--stats", "x"], "pagetide stat"),
            (&["--plot", "x"], "pagetide metrics"),
            (&["--trace", "x"], "--trace"),
            (&["--measure", "--quiet"], "pagetide stat"),
            (&["--store", "valkey://h"], "NotifyAccess=all"),
            (&["--store", "ram:?max=1M&then=memcached://h"], "leases"),
        ] {
            assert!(checked(options).is_ok(), "{options:?}");
            let failure = checked(&[&["--exec"], &options[..]].concat()).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains(options[0]), "{failure}");
            assert!(failure.message.contains(said), "{failure}");
        }
        assert!(checked(&["--exec", "--store", "file:/x"]).is_ok());
    }
}
