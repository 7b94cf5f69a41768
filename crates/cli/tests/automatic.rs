//! A budget that follows the program: counts of pages, no times.
mod support;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use support::compile::compile_c;
use support::pagetide::{able, able_to_fork, governed, number_of, pagetide};
use support::patience::{is_slow, up_to};
use support::process::{Running, run, start};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(240);
const MIB: f64 = (1 << 20) as f64;

fn worker(options: &[&str], arguments: [&str; 4]) -> std::process::Command {
    let worker = compile_c("programs", "two_parts", &[]).unwrap_or_else(|error| panic!("{error}"));
    let mut command = governed(options, worker);
    command.args(arguments);
    command
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
    let number = |field: &str| number_of(&launcher, field);
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
    pagetide(&["limit", &launcher, "4M"], LIMIT).expect_code(0);
    assert!(number("resident_bytes") <= 4.0 * MIB);
    let shown = |arguments: &[&str]| pagetide(arguments, LIMIT).stdout_text();
    let (listed, stat) = (shown(&["ps"]), shown(&["stat", &launcher]));
    assert!(listed.contains("  auto:10%, 2 MiB to 4 MiB  "), "{listed}");
    assert!(
        stat.contains(" of at most 4 MiB (auto:10% with 2 MiB or more, "),
        "{stat}"
    );
    // It waits, and would be given more.
    std::thread::sleep(Duration::from_millis(500));
    assert!(number("budget_bytes") <= 4.0 * MIB);
    running.signal_group("TERM");
    running.finish(LIMIT);
}

#[test]
fn what_is_filled_is_the_kernel_s_until_it_has_been_there_for_a_while() {
    let name = "what_is_filled_is_the_kernel_s_until_it_has_been_there_for_a_while";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    // Far from the ceiling: 8 MiB that it uses all the time, and 120 that it has only filled.
    let mut command = worker(&["--resident", "auto"], ["8", "120", "10000000", "0"]);
    let mut running = start(&mut command, b"");
    let launcher = running.pid().to_string();
    let number = |field: &str| number_of(&launcher, field);
    let deadline = Instant::now() + up_to(120);
    while number("managed_bytes") < 120.0 * MIB || number("resident_bytes") > 64.0 * MIB {
        assert!(running.is_running(), "it ended");
        assert!(
            Instant::now() < deadline,
            "{} bytes are resident, {} under the pager",
            number("resident_bytes"),
            number("managed_bytes")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let filled = number("zero_fills");
    assert!(filled * 4096.0 < 8.0 * MIB, "{filled} pages of zeros");
    // One page of each 256 KiB that is in use, and what was taken by mistake.
    let back = number("fetched_pages");
    assert!(back * 4096.0 < 64.0 * MIB, "{back} pages came back");
    // All is put under the pager, and goes.
    pagetide(&["limit", &launcher, "4M"], LIMIT).expect_code(0);
    assert!(number("resident_bytes") <= 4.0 * MIB);
    running.signal_group("TERM");
    running.finish(LIMIT);
}

#[test]
fn the_program_computes_the_same() {
    let name = "the_program_computes_the_same";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let arguments = ["8", "24", "800", "2000"];
    let fixed = run(&mut worker(&["--resident", "128M"], arguments), LIMIT);
    fixed.expect_code(0);
    let at_once = ["--resident", "auto:50%", "--ceiling", "100M"];
    for options in [&at_once[..2], &at_once] {
        let automatic = run(&mut worker(options, arguments), LIMIT);
        automatic.expect_code(0);
        assert_eq!(fixed.stdout_text(), automatic.stdout_text());
    }
}

#[test]
fn forked_children_have_the_ceiling_and_the_floor() {
    let name = "forked_children_have_the_ceiling_and_the_floor";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    // A child that executes nothing, and lives for many steps of its budget.
    let options = ["--resident", "auto", "--floor", "4M", "--ceiling", "64M"];
    let all = [&options[..], &["--stats", "-", "--quiet"]].concat();
    let mut command = governed(&all, "bash");
    command.args(["-c", "(for ((i = 0; i < 400000; i++)); do :; done); :"]);
    let outcome = run(&mut command, LIMIT);
    let text = outcome.stdout_text();
    let budgets = text
        .lines()
        .filter_map(|line| support::pagetide::number(line, "budget_bytes"));
    let budgets: Vec<f64> = budgets.collect();
    assert!(budgets.len() >= 2, "{}", outcome.describe());
    for budget in budgets {
        let range = 4.0 * MIB..=64.0 * MIB;
        assert!(range.contains(&budget), "{}", outcome.describe());
    }
}

#[test]
fn a_program_that_locks_more_than_the_floor_goes_on() {
    let name = "a_program_that_locks_more_than_the_floor_goes_on";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let locker = compile_c("programs", "locks_a_part", &[]).unwrap_or_else(|why| panic!("{why}"));
    let options = ["--resident", "auto", "--floor", "1M", "--ceiling", "128M"];
    // Longer than a pager waits for room that nothing gives.
    let seconds = if is_slow() { "60" } else { "15" };
    let mut command = governed(&options, locker);
    let outcome = run(command.args(["24", "1", seconds]), LIMIT);
    if outcome.code() == Some(3) {
        return skipped(name, &outcome.stderr_text());
    }
    outcome.expect_code(0);
    assert!(
        outcome.stdout_text().starts_with("ok"),
        "{}",
        outcome.describe()
    );
}

/// A program that uses twice what it may have all the time, so that its budget stays at the
/// ceiling, and is told what to watch.
fn at_the_ceiling(watch: &Path) -> Running {
    let options = ["--resident", "auto", "--floor", "2M", "--ceiling", "32M"];
    let mut command = worker(&options, ["64", "0", "10000000", "0"]);
    command.env("MEMORY_PRESSURE_WATCH", watch);
    command.env("MEMORY_PRESSURE_WRITE", "c29tZSAyMDAwMDAgMjAwMDAwMAA=");
    start(&mut command, b"")
}

/// Waits until the budget of the run of `launcher` is `is_reached`, and does `meanwhile` again and
/// again.
#[track_caller]
fn wait_for_budget(
    running: &mut Running,
    is_reached: impl Fn(f64) -> bool,
    mut meanwhile: impl FnMut(),
) {
    let launcher = running.pid().to_string();
    let deadline = Instant::now() + up_to(90);
    loop {
        let budget = number_of(&launcher, "budget_bytes");
        if is_reached(budget) && number_of(&launcher, "managed_bytes") >= 60.0 * MIB {
            return;
        }
        assert!(running.is_running(), "it ended");
        assert!(Instant::now() < deadline, "the budget is {budget}");
        meanwhile();
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Tells by `tell` that memory is short, and sees that the budget shrinks below what it is
/// otherwise.
fn shrinks(watch: &Path, mut tell: impl FnMut()) {
    let mut running = at_the_ceiling(watch);
    wait_for_budget(&mut running, |budget| budget == 32.0 * MIB, || {});
    wait_for_budget(&mut running, |budget| budget < 22.0 * MIB, &mut tell);
    // What is not told any more is over.
    wait_for_budget(&mut running, |budget| budget == 32.0 * MIB, || {});
    running.signal_group("TERM");
    running.finish(LIMIT);
}

#[test]
fn a_fifo_tells_that_memory_is_short() {
    let name = "a_fifo_tells_that_memory_is_short";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pressure");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("there is a mkfifo").success());
    let mut options = std::fs::OpenOptions::new();
    // Open for reading too, it has a reader whenever it is written to.
    let mut fifo = options.read(true).write(true).open(&path).expect("a FIFO");
    shrinks(&path, || fifo.write_all(b"x").expect("there is room"));
}

#[test]
fn a_socket_tells_that_memory_is_short() {
    let name = "a_socket_tells_that_memory_is_short";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pressure");
    let listener = UnixListener::bind(&path).expect("a socket");
    let accepted = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("it connects");
        let mut said = [0; 20];
        socket.read_exact(&mut said).expect("it writes");
        assert_eq!(&said, b"some 200000 2000000\0");
        socket
    });
    let mut accepted = Some(accepted);
    let mut socket = None;
    shrinks(&path, || {
        let mut joined = || accepted.take().expect("once").join().expect("it goes well");
        let socket = socket.get_or_insert_with(&mut joined);
        socket.write_all(b"x").expect("it is read");
    });
}

/// No memory is taken from this machine to see it told: that the kernel takes what is written is
/// what can be seen.
#[test]
fn the_kernels_own_pressure_can_be_watched() {
    let name = "the_kernels_own_pressure_can_be_watched";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let path = Path::new("/proc/pressure/memory");
    let mut options = std::fs::OpenOptions::new();
    if let Err(error) = options.read(true).write(true).open(path) {
        return skipped(name, &format!("{}: {error}", path.display()));
    }
    for (watch, is_told) in [(path, false), (Path::new("/no/such/file"), true)] {
        let mut running = at_the_ceiling(watch);
        wait_for_budget(&mut running, |budget| budget == 32.0 * MIB, || {});
        running.signal_group("TERM");
        let said = running.finish(LIMIT).stderr_text();
        assert_eq!(said.contains("watched for short memory"), is_told, "{said}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    if let Err(reason) = able() {
        return skipped("what_cannot_be_is_refused", &reason);
    }
    for (options, said) in [
        (&["--resident", "auto:0%"][..], "auto:10%"),
        (&["--resident", "automatic"], "'automatic'"),
        (
            &["--resident", "auto", "--floor", "2G", "--ceiling", "1G"],
            "floor",
        ),
        (&["--resident", "1G", "--floor", "1M"], "--resident auto"),
        (&["--resident", "auto", "--per-run"], "--per-run"),
    ] {
        let outcome = run(&mut governed(options, "true"), LIMIT);
        outcome.expect_code(2).expect_told(said);
    }
}
