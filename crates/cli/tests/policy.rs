//! `--policy`: what each needs of the kernel, and what accessed bits are worth.
mod support;

use std::time::Duration;

use support::compile::{compile_c, scratch};
use support::pagetide::{able, governed, largest};
use support::process::{Outcome, run};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(240);
const MIB: &str = "32";
const ROUNDS: &str = "3";
/// Twice what is used all the time.
const BUDGET: &str = "8M";

/// The program under the policy, with what `mask` names treated as absent, and its statistics.
fn hot_and_cold(policy: &str, mask: &str) -> (Outcome, String) {
    let program = compile_c("programs", "hot_and_cold", &[]).expect("it compiles");
    let statistics = scratch().join(format!("policy-{policy}-{mask}.json"));
    let path = statistics.to_str().expect("a printable path");
    let options = ["--resident", BUDGET, "--policy", policy, "--stats", path];
    let mut command = governed(&options, program);
    command.args([MIB, ROUNDS]).env("PAGETIDE_MASK", mask);
    let outcome = run(&mut command, LIMIT);
    (
        outcome,
        std::fs::read_to_string(statistics).unwrap_or_default(),
    )
}

#[test]
fn accessed_bits_are_refused_where_the_kernel_has_none() {
    if let Err(reason) = able() {
        return skipped(
            "accessed_bits_are_refused_where_the_kernel_has_none",
            &reason,
        );
    }
    let (outcome, _) = hot_and_cold("accessed", "rwp");
    outcome.expect_code(3);
    let said = outcome.stderr_text();
    assert!(said.contains("needs read-write protection"), "{said}");
    assert!(said.contains("s3fifo or fifo"), "{said}");
}

#[test]
fn what_is_used_all_the_time_is_not_fetched_again_and_again() {
    const NAME: &str = "what_is_used_all_the_time_is_not_fetched_again_and_again";
    if let Err(reason) = able() {
        return skipped(NAME, &reason);
    }
    if pagetide_kernel::probe::read_write_protection().is_err() {
        return skipped(NAME, "this kernel has no accessed bits (Linux 7.3)");
    }
    let fetches = |policy| {
        let (outcome, statistics) = hot_and_cold(policy, "");
        outcome.expect_code(0);
        assert_eq!(outcome.stdout_text(), "verified\n");
        largest(&statistics, "fetches").expect("they are counted") as u64
    };
    // What is walked through has to be fetched each time, whoever chooses.
    let (mib, rounds): (u64, u64) = (MIB.parse().unwrap(), ROUNDS.parse().unwrap());
    let cold = rounds * (mib * 256 / 8 * 7);
    let [by_arrival, by_use] = ["fifo", "accessed"].map(fetches);
    let text = format!("{by_use} by use, {by_arrival} by arrival, {cold} cold");
    assert!(by_use < cold + cold / 20, "{text}");
    assert!(by_arrival > cold + cold / 5, "{text}");
}
