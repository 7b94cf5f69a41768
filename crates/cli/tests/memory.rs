//! `run --memory`: resident pages, the store's memory and everything else of a process together
//! stay within a bound, seen from outside, whatever the pages compress to.
mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use support::compile::{compile_c, scratch};
use support::pagetide::{able, able_to_fork, governed, largest, number_of, pagetide};
use support::patience::up_to;
use support::process::{Outcome, run, start};
use support::resident::{IN_ALL, Watch};
use support::skip::{is_full, skipped};
use support::tree::wait_for;

const LIMIT: Duration = Duration::from_secs(300);
const SAMPLE: Duration = Duration::from_millis(5);
const MIB: u64 = 1 << 20;
/// What is allowed beyond a bound.
const HUNDREDTHS: u64 = 103;

/// A program of so many MiB, of whose pages so many bytes are noise.
fn program(options: &[&str], mib: &str, noise: &str) -> std::process::Command {
    let program = compile_c("programs", "packs_so_well", &[]).unwrap_or_else(|why| panic!("{why}"));
    let mut command = governed(options, program);
    let uses = if is_full() { "600000" } else { "150000" };
    command.args([mib, noise, uses]);
    command
}

/// Runs it within so many MiB of memory; how it went, the most it had by what the kernel says, and
/// its statistics.
fn bounded(options: &[&str], bound: u64, mib: &str, noise: &str) -> (Outcome, u64, String) {
    let file = scratch().join(format!(
        "memory-{bound}-{mib}-{noise}-{}.json",
        options.len()
    ));
    let (size, path) = (
        format!("{bound}M"),
        file.to_str().expect("a printable path"),
    );
    let options = [options, &["--memory", &size, "--stats", path]].concat();
    let running = start(&mut program(&options, mib, noise), b"");
    let watch = Watch::of(running.pid(), SAMPLE, IN_ALL);
    let outcome = running.finish(LIMIT);
    let peak = watch.peak();
    let stats = std::fs::read_to_string(&file).unwrap_or_default();
    let most = bound * MIB * HUNDREDTHS / 100;
    assert!(
        peak <= most,
        "{peak} bytes in all with a bound of {size}: {}",
        outcome.describe()
    );
    (outcome, peak, stats)
}

/// The same, which must compute what the program alone does, and have more than the bound to hold.
fn computes_the_same(options: &[&str], bound: u64, mib: &str, noise: &str) -> String {
    let (outcome, peak, stats) = bounded(options, bound, mib, noise);
    outcome.expect_code(0);
    let alone = run(&mut program(&["--resident", "4G"], mib, noise), LIMIT);
    alone.expect_code(0);
    assert_eq!(outcome.stdout_text(), alone.stdout_text());
    // A bound that nothing comes near proves nothing.
    assert!(
        peak > bound * MIB * 3 / 4,
        "{peak} bytes: {}",
        outcome.describe()
    );
    stats
}

#[test]
fn pages_that_compress_well() {
    if let Err(reason) = able() {
        return skipped("pages_that_compress_well", &reason);
    }
    let stats = computes_the_same(&[], 96, "240", "400");
    let number = |field: &str| largest(&stats, field).expect("a number");
    assert!(number("writebacks") > 0.0 && number("fetches") > 0.0);
    // A page that is back is not in the store as well.
    assert_eq!(number("clean_drops"), 0.0);
    assert_eq!(number("memory_budget_bytes"), 96.0 * MIB as f64);
    assert!(number("memory_bytes_max") <= (96 * MIB * HUNDREDTHS / 100) as f64);
}

#[test]
fn pages_that_compress_to_half() {
    if let Err(reason) = able() {
        return skipped("pages_that_compress_to_half", &reason);
    }
    computes_the_same(&[], 96, "140", "1900");
}

#[test]
fn pages_that_do_not_compress_and_fit() {
    if let Err(reason) = able() {
        return skipped("pages_that_do_not_compress_and_fit", &reason);
    }
    let stats = computes_the_same(&[], 96, "84", "4096");
    assert_eq!(largest(&stats, "errors"), Some(0.0), "{stats}");
}

#[test]
fn pages_that_do_not_compress_and_do_not_fit_end_the_program_as_defined() {
    let name = "pages_that_do_not_compress_and_do_not_fit_end_the_program_as_defined";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let (outcome, ..) = bounded(&[], 64, "128", "4096");
    outcome
        .expect_code(5)
        .expect_told("--memory of 64 MiB is used up")
        .expect_told("use a larger --memory")
        .expect_told("ram:?then=file:");
    assert!(
        !outcome.stderr_text().contains("FAILED"),
        "{}",
        outcome.describe()
    );
}

#[test]
fn what_does_not_fit_goes_to_the_store_behind() {
    if let Err(reason) = able() {
        return skipped("what_does_not_fit_goes_to_the_store_behind", &reason);
    }
    let store = format!("ram:?then=file:{}/", scratch().display());
    let stats = computes_the_same(&["--store", &store], 64, "160", "4096");
    let store_bytes = largest(&stats, "store_bytes_max").expect("a number");
    assert!(
        store_bytes > 100.0 * MIB as f64,
        "the file has the rest: {stats}"
    );
}

#[test]
fn a_resident_part_that_is_given_is_kept_and_the_rest_is_the_stores() {
    let name = "a_resident_part_that_is_given_is_kept_and_the_rest_is_the_stores";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let (outcome, _, stats) = bounded(&["--resident", "20M"], 96, "160", "800");
    outcome.expect_code(0);
    let resident = largest(&stats, "resident_bytes_max").expect("a number");
    // New memory is touched before it is governed.
    assert!(resident < 36.0 * MIB as f64, "{stats}");
}

#[test]
fn a_new_limit_is_of_memory_in_all_and_holds_when_it_is_said_to() {
    let name = "a_new_limit_is_of_memory_in_all_and_holds_when_it_is_said_to";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let program = compile_c("programs", "packs_so_well", &[]).unwrap_or_else(|why| panic!("{why}"));
    let mut command = governed(&["--memory", "200M"], program);
    let mut running = start(command.args(["120", "400", "100000000"]), b"");
    let launcher = running.pid().to_string();
    let deadline = Instant::now() + up_to(120);
    while number_of(&launcher, "resident_bytes") < 119.0 * MIB as f64 {
        assert!(
            running.is_running() && Instant::now() < deadline,
            "it did not fill its memory"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    for mib in [64u64, 48, 100] {
        let limit = format!("{mib}M");
        pagetide(&["limit", &launcher, &limit], LIMIT)
            .expect_code(0)
            .expect_told(&format!("memory {mib} MiB, in all"));
        let watch = Watch::of(running.pid(), SAMPLE, IN_ALL);
        std::thread::sleep(Duration::from_millis(400));
        let peak = watch.peak();
        assert!(
            peak <= mib * MIB * HUNDREDTHS / 100,
            "{peak} bytes with {limit}"
        );
        assert_eq!(
            number_of(&launcher, "memory_budget_bytes"),
            (mib * MIB) as f64
        );
    }
    // What `run` refuses is refused here as well, and changes nothing.
    pagetide(&["limit", &launcher, "15M"], LIMIT)
        .expect_code(2)
        .expect_told("16 MiB or more");
    assert_eq!(
        number_of(&launcher, "memory_budget_bytes"),
        (100 * MIB) as f64
    );
    running.signal_group("TERM");
    running.finish(LIMIT);
}

#[test]
fn the_control_socket_takes_no_bound_that_run_refuses() {
    let name = "the_control_socket_takes_no_bound_that_run_refuses";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let said = tempfile::tempdir().expect("a directory can be made");
    let said = said.path().join("socket");
    let script = "echo \"$PAGETIDE_RUN_DIR/$$.sock\" > \"$0\"; sleep 1000; :";
    let mut command = governed(&["--memory", "64M"], "sh");
    let mut running = start(command.args(["-c", script]).arg(&said), b"");
    let socket = wait_for(&mut running, "it said where its socket is", || {
        let text = std::fs::read_to_string(&said).ok()?;
        text.strip_suffix('\n').map(str::to_owned)
    });
    let connect = || UnixStream::connect(&socket).ok();
    let mut stream = wait_for(&mut running, "its socket is there", connect);
    let mut ask = |bytes: u64| {
        let line = format!("{{\"op\":\"limit\",\"bytes\":{bytes},\"timeout_ms\":60000}}\n");
        stream.write_all(line.as_bytes()).expect("it reads");
        let mut answer = String::new();
        BufReader::new(&stream)
            .read_line(&mut answer)
            .expect("it answers");
        answer
    };
    let (refused, taken) = (ask(16 * MIB - 1), ask(48 * MIB));
    assert!(
        refused.contains("\"error\"") && refused.contains("16 MiB or more"),
        "{refused}"
    );
    assert!(taken.contains("\"ok\""), "{taken}");
    running.signal_group("TERM");
    running.finish(LIMIT);
}

#[test]
fn forked_children_and_executed_programs_have_the_bound_too() {
    let name = "forked_children_and_executed_programs_have_the_bound_too";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let mut command = governed(&["--memory", "64M", "--stats", "-", "--quiet"], "bash");
    command.args([
        "-c",
        "(for ((i = 0; i < 100000; i++)); do :; done); /bin/true; :",
    ]);
    let outcome = run(&mut command, LIMIT);
    outcome.expect_code(0);
    let text = outcome.stdout_text();
    let bounds: Vec<f64> = text
        .lines()
        .filter_map(|line| support::pagetide::number(line, "memory_budget_bytes"))
        .collect();
    assert!(bounds.len() >= 3, "{}", outcome.describe());
    assert!(
        bounds.iter().all(|bound| *bound == 64.0 * MIB as f64),
        "{bounds:?}"
    );
}

#[test]
fn what_cannot_be_is_refused() {
    if let Err(reason) = able() {
        return skipped("what_cannot_be_is_refused", &reason);
    }
    for (options, said) in [
        (&["--memory", "1G", "--per-run"][..], "one of the two"),
        (&["--memory", "8M"], "16 MiB or more"),
        (&["--memory", "some"], "'some' is not a size"),
    ] {
        let outcome = run(&mut governed(options, "true"), LIMIT);
        outcome.expect_code(2).expect_told(said);
    }
}
