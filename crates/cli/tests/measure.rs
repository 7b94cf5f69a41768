//! How much memory a program needs, as it is measured, against what it misses with less: counts of
//! pages, no times.
mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::compile::compile_c;
use support::pagetide::{able, governed, number_of, pagetide};
use support::patience::{is_slow, up_to};
use support::process::{Outcome, run, start};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(240);
/// The worker's parts: 16 MiB that it uses in each round, and 48 MiB of which it uses few pages.
const PARTS: [&str; 2] = ["16", "48"];
const MIB: f64 = (1 << 20) as f64;

fn worker() -> PathBuf {
    compile_c("programs", "two_parts", &[]).unwrap_or_else(|error| panic!("{error}"))
}

/// The statistics of the one process that ran.
fn statistics(outcome: &Outcome) -> Value {
    outcome.expect_code(0);
    let text = outcome.stdout_text();
    let line = text.lines().find(|line| line.starts_with('{'));
    let line = line.unwrap_or_else(|| panic!("no statistics: {}", outcome.describe()));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn number(value: &Value, path: &str) -> f64 {
    let found = value.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number {path} in {value}"))
}

/// Pages missed in all with a share of the memory, as a `need` says.
fn misses(need: &Value, share: f64) -> f64 {
    let points = need["points"].as_array().expect("points");
    let distance = |point: &&Value| (number(point, "/share") - share).abs();
    let nearest = points
        .iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)));
    number(nearest.expect("a point"), "/misses")
}

#[test]
fn what_is_expected_to_be_missed_is_missed() {
    let name = "what_is_expected_to_be_missed_is_missed";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let rounds = match is_slow() {
        true => "200",
        false => "600",
    };
    let work = |options: &[&str]| {
        let options = [options, &["--stats", "-", "--quiet"]].concat();
        let mut command = governed(&options, worker());
        command.args(PARTS).args([rounds, "300"]);
        run(&mut command, LIMIT)
    };
    let measured = work(&["--measure", "--resident", "1G"]);
    let need = &statistics(&measured)["need"];
    let in_use = number(need, "/in_use_bytes_max") / MIB;
    assert!((63.0..68.0).contains(&in_use), "{need}");
    // What is used in each round is found to be what is needed.
    let knee = number(need, "/knee_bytes") / MIB;
    assert!((12.0..28.0).contains(&knee), "{need}");
    let sum = measured.stdout_text().lines().next().map(str::to_owned);
    let mut most = 0.0f64;
    for share in [0.4, 0.6, 0.8] {
        let budget = format!("{}K", (in_use * share * 1024.0) as u64);
        let outcome = work(&["--resident", &budget]);
        // It has ended by itself.
        let statistics = statistics(&outcome);
        let less = outcome.stdout_text();
        assert_eq!(less.lines().next().map(str::to_owned), sum, "with {budget}");
        // What is read ahead of them is used as seldom as any other. A page that is held aside and
        // wanted back is a miss that was seen in time.
        let found = number(&statistics, "/fetches") + number(&statistics, "/faults_taken_back");
        let expected = misses(need, share);
        println!("{budget}: {found} pages missed, {expected:.0} expected");
        // The part that is used in each round is expected to leave now and then. It does so less:
        // what is wanted back at once stays for longer.
        most = most.max(found);
        assert!(
            expected > 0.75 * found - 0.1 * most && expected < 2.5 * found + 0.1 * most,
            "{budget}: {found} missed, {expected} expected: {need}"
        );
    }
}

#[test]
fn a_program_that_runs_is_measured_from_outside() {
    let name = "a_program_that_runs_is_measured_from_outside";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    // With all the room in the world: its memory is not registered before it is measured.
    let mut command = governed(&["--resident", "2G"], worker());
    command.args(PARTS).args(["1000000", "500"]);
    let mut running = start(&mut command, b"");
    let launcher = running.pid().to_string();
    let deadline = Instant::now() + up_to(60);
    while number_of(&launcher, "resident_bytes") < 63.0 * MIB {
        assert!(
            running.is_running() && Instant::now() < deadline,
            "it does not fill its memory"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let outcome = pagetide(
        &["stat", &launcher, "--curve", "--for", "4", "--json"],
        LIMIT,
    );
    outcome.expect_code(0);
    let need: Value = serde_json::from_str(&outcome.stdout_text()).expect("JSON");
    let in_use = number(&need, "/in_use_bytes_max") / MIB;
    assert!((63.0..68.0).contains(&in_use), "{need}");
    // Pages are taken out no more, also where nobody waits for the end.
    let evictions = || number_of(&launcher, "evictions");
    let before = evictions();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(before, evictions());
    let mut asker = start(
        std::process::Command::new(support::pagetide::binary().expect("able"))
            .args(["stat", &launcher, "--curve", "--for", "2"]),
        b"",
    );
    std::thread::sleep(Duration::from_millis(500));
    assert!(asker.is_running());
    asker.signal_group("KILL");
    asker.finish(LIMIT);
    let deadline = Instant::now() + up_to(30);
    loop {
        let before = evictions();
        std::thread::sleep(Duration::from_millis(300));
        if before == evictions() {
            break;
        }
        assert!(Instant::now() < deadline, "it is measured for ever");
    }
    let told = pagetide(&["stat", &launcher, "--curve", "--for", "1"], LIMIT);
    told.expect_code(0);
    assert!(
        told.stdout_text().contains("EXPECTED TIME"),
        "{}",
        told.describe()
    );
    running.signal_group("TERM");
    running.finish(LIMIT);
}

#[test]
fn what_is_too_short_to_tell_says_so() {
    let name = "what_is_too_short_to_tell_says_so";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let outcome = run(&mut governed(&["--measure"], "true"), LIMIT);
    outcome.expect_code(0).expect_told("too little was seen");
}

/// What it has is not what it needs: it did nothing with it.
#[test]
fn of_an_idle_program_nothing_is_recommended() {
    let name = "of_an_idle_program_nothing_is_recommended";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let script = "my $x = 'x' x (64 << 20); sleep 600";
    let mut command = governed(&["--resident", "512M"], "perl");
    let mut running = start(command.args(["-e", script]), b"");
    let launcher = running.pid().to_string();
    let deadline = Instant::now() + up_to(120);
    loop {
        assert!(Instant::now() < deadline, "it is not found idle");
        // It may not be there yet, or still at its beginning.
        let told = pagetide(&["stat", &launcher, "--curve", "--for", "1"], LIMIT);
        let said = told.stdout_text();
        if told.code() == Some(0) && said.contains("nothing was measured: in ") {
            assert!(!said.contains("--resident"), "{said}");
            break;
        }
        assert!(running.is_running(), "{}", told.describe());
    }
    running.signal_group("TERM");
    running.finish(LIMIT);
}
