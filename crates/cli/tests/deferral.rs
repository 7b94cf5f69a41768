//! Memory of a program that is far from its budget is the kernel's until the budget is nearly used
//! up; then all of it is put under the pager, and nothing is lost, nor the bound exceeded.
mod support;

use std::process::Command;
use std::time::Duration;

use support::compile::{compile_c, scratch};
use support::pagetide::{NO_FORK, able, could_not_fork, governed, largest};
use support::patience::is_slow;
use support::process::{Outcome, run, start};
use support::resident::{Watch, governed_family, promised};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(240);
/// With two processors, registration is deferred from this budget on; with more, from a larger one.
const BUDGET: &str = "256M";
const BUDGET_BYTES: u64 = 256 << 20;
/// A budget that is far from used up by `FITS_MIB`, whatever the processors.
const AMPLE: &str = "64G";
const FITS_MIB: &str = "64";

fn beyond_mib() -> &'static str {
    if is_slow() { "288" } else { "352" }
}

struct Finished {
    outcome: Outcome,
    statistics: String,
    peak: u64,
}

impl Finished {
    fn largest(&self, name: &str) -> u64 {
        largest(&self.statistics, name).unwrap_or_else(|| panic!("no {name}: {}", self.statistics))
            as u64
    }
}

/// A hazard or a program of `folder`; none, loudly, where it cannot be tried.
fn finished(folder: &str, name: &str, budget: &str, mib: &str) -> Option<Finished> {
    let label = format!("{name} {mib} at {budget}");
    if let Err(reason) = able() {
        skipped(&label, &reason);
        return None;
    }
    let program = compile_c(folder, name, &[]).unwrap_or_else(|error| panic!("{error}"));
    let statistics = scratch().join(format!("deferral-{name}-{budget}.json"));
    let path = statistics.to_str().expect("a printable path");
    let mut command = governed(&["--resident", budget, "--stats", path], program);
    command.arg(mib).env("HAZARD_DISK_DIR", scratch());
    let running = start(&mut command, b"");
    let watch = Watch::start(running.pid(), Duration::from_millis(10));
    let outcome = running.finish(LIMIT);
    let peak = watch.peak();
    if could_not_fork(&outcome) {
        skipped(&label, NO_FORK);
        return None;
    }
    outcome.expect_code(0);
    let statistics = std::fs::read_to_string(&statistics).expect("--stats wrote its file");
    Some(Finished {
        outcome,
        statistics,
        peak,
    })
}

#[test]
fn a_program_that_fits_has_no_faults_and_is_counted() {
    let Some(fits) = finished("programs", "four_threads", AMPLE, FITS_MIB) else {
        return;
    };
    for none in ["faults", "managed_bytes_max", "evictions", "errors"] {
        assert_eq!(fits.largest(none), 0, "{none}: {}", fits.statistics);
    }
    let most = fits.largest("resident_bytes_max");
    assert!(most >= 60 << 20, "counted {most}: {}", fits.statistics);
    // With what the store sets aside.
    let memory = fits.largest("memory_bytes_max");
    assert!(
        (most..most + (8 << 20)).contains(&memory),
        "{memory} for {most}"
    );
    let program = compile_c("programs", "four_threads", &[]).expect("compiled before");
    let alone = run(Command::new(program).arg(FITS_MIB), LIMIT);
    assert_eq!(fits.outcome.stdout_text(), alone.stdout_text());
}

#[test]
fn a_program_that_outgrows_its_budget_is_bounded_and_loses_nothing() {
    let Some(grown) = finished("programs", "four_threads", BUDGET, beyond_mib()) else {
        return;
    };
    assert!(grown.largest("evictions") > 0, "{}", grown.statistics);
    let bound = promised(BUDGET_BYTES, grown.largest("managed_bytes_max"));
    assert!(grown.peak <= bound, "{} of {bound} bytes", grown.peak);
    // With `ram:`, what is stored takes memory too.
    let [memory, resident] =
        ["memory_bytes_max", "resident_bytes_max"].map(|name| grown.largest(name));
    assert!(memory > resident, "{}", grown.statistics);
    let program = compile_c("programs", "four_threads", &[]).expect("compiled before");
    let alone = run(Command::new(program).arg(beyond_mib()), LIMIT);
    assert_eq!(grown.outcome.stdout_text(), alone.stdout_text());
}

#[test]
fn a_forked_child_outgrows_it_while_its_parent_does_not() {
    for (budget, mib) in [(AMPLE, FITS_MIB), (BUDGET, beyond_mib())] {
        finished("hazards", "fork_verify", budget, mib);
    }
}

#[test]
fn the_end_of_its_threads_and_a_change_of_users_are_seen_while_it_fits() {
    for name in ["bare_exit", "privileges_follow"] {
        finished("hazards", name, AMPLE, FITS_MIB);
    }
}

#[test]
fn a_lowered_limit_holds_when_it_is_answered() {
    let binary = match able() {
        Ok(binary) => binary,
        Err(reason) => return skipped("a_lowered_limit_holds_when_it_is_answered", &reason),
    };
    let program = compile_c("programs", "four_threads", &[]).unwrap_or_else(|e| panic!("{e}"));
    let mut command = governed(&["--resident", AMPLE], program);
    let mut running = start(command.args([FITS_MIB, "400"]), b"");
    let pid = loop {
        assert!(running.is_running(), "ended before it was governed");
        let family = governed_family(running.pid());
        if let Some(pid) = family.into_iter().find(|pid| *pid != running.pid()) {
            break pid;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    std::thread::sleep(Duration::from_millis(200));
    let said = |words: &[&str]| {
        let outcome = run(Command::new(&binary).args(words), Duration::from_secs(60));
        outcome.expect_code(0);
        outcome
    };
    let pid = pid.to_string();
    said(&["limit", &pid, "8M"]);
    let outcome = said(&["stat", &pid, "--json"]);
    let resident = largest(&outcome.stdout_text(), "resident_bytes").expect("it says so");
    assert!(resident <= 8e6 * 1.05, "{}", outcome.describe());
    assert!(running.is_running(), "ended before its limit was lowered");
    run(Command::new("kill").arg(pid), Duration::from_secs(5));
    running.finish(LIMIT);
}

/// The program does all a program does to its memory while registration comes about.
macro_rules! outgrowing {
    ($($name:ident)*) => {
        mod outgrowing {
            $(#[test] fn $name() {
                super::finished("hazards", stringify!($name), super::BUDGET, super::beyond_mib());
            })*
        }
    };
}

outgrowing! {
    brk_grow_shrink exec_self fork_while_writing madvise_fork_flags
    madvise_free_rewritten malloc_patterns map_populate memory_calls_at_random
    mprotect_readonly mremap_beside_mmap mremap_dontunmap mremap_grow mremap_pieces munmap_part
    sync_in_paged_memory thread_stacks threads_come_and_go
}
