//! A budget that follows the program: counts of pages, no times.
mod support;

use std::time::{Duration, Instant};

use support::compile::compile_c;
use support::pagetide::{able, binary, governed, largest};
use support::patience::up_to;
use support::process::{Outcome, run, start};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(240);
const MIB: f64 = (1 << 20) as f64;

fn worker(options: &[&str], arguments: [&str; 4]) -> std::process::Command {
    let worker = compile_c("programs", "two_parts", &[]).unwrap_or_else(|error| panic!("{error}"));
    let mut command = governed(options, worker);
    command.args(arguments);
    command
}

fn pagetide(arguments: &[&str]) -> Outcome {
    let mut command = std::process::Command::new(binary().expect("able"));
    run(command.args(arguments), LIMIT)
}

#[test]
fn what_is_not_used_any_more_is_given_up_and_a_new_ceiling_holds() {
    let name = "what_is_not_used_any_more_is_given_up_and_a_new_ceiling_holds";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    // 8 MiB that it uses all the time, and 56 that it has only filled.
    let options = ["--resident", "auto", "--floor", "2M", "--ceiling", "128M"];
    let mut command = worker(&options, ["8", "56", "10000000", "0"]);
    let mut running = start(&mut command, b"");
    let launcher = running.pid().to_string();
    let number = |field: &str| {
        let outcome = pagetide(&["stat", &launcher, "--json"]);
        largest(&outcome.stdout_text(), field).unwrap_or(0.0)
    };
    let deadline = Instant::now() + up_to(120);
    while number("managed_bytes") < 63.0 * MIB || number("resident_bytes") > 24.0 * MIB {
        assert!(running.is_running(), "it ended");
        assert!(
            Instant::now() < deadline,
            "{} bytes are resident",
            number("resident_bytes")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    pagetide(&["limit", &launcher, "4M"]).expect_code(0);
    assert!(number("resident_bytes") <= 4.0 * MIB);
    // It waits, and would be given more.
    std::thread::sleep(Duration::from_millis(500));
    assert!(number("budget_bytes") <= 4.0 * MIB);
    running.signal_group("TERM");
    running.finish(LIMIT);
}

#[test]
fn the_program_computes_the_same() {
    let name = "the_program_computes_the_same";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let arguments = ["8", "24", "200", "2000"];
    let fixed = run(&mut worker(&["--resident", "128M"], arguments), LIMIT);
    let automatic = run(&mut worker(&["--resident", "auto:50%"], arguments), LIMIT);
    fixed.expect_code(0);
    automatic.expect_code(0);
    assert_eq!(fixed.stdout_text(), automatic.stdout_text());
}

#[test]
fn what_cannot_be_is_refused() {
    for (options, said) in [
        (&["--resident", "auto:0%"][..], "auto:10%"),
        (&["--resident", "automatic"], "'automatic'"),
        (
            &["--resident", "auto", "--floor", "2G", "--ceiling", "1G"],
            "floor",
        ),
        (&["--resident", "auto", "--per-run"], "--per-run"),
    ] {
        if let Err(reason) = able() {
            return skipped("what_cannot_be_is_refused", &reason);
        }
        let outcome = run(&mut governed(options, "true"), LIMIT);
        outcome.expect_code(2).expect_told(said);
    }
}
