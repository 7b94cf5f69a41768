//! `pagetide-bench wp`, `dirty`, `snapshot` and `restore` as a user calls them, on little memory:
//! what they refuse, print and leave behind.
#[path = "../../cli/tests/support/mod.rs"]
mod support;

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::skip::skipped;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetide-bench"));
    command.args(arguments);
    command
}

fn bench(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a run that must go well prints; `None` where this system has no userfaultfd.
fn printed(arguments: &[&str]) -> Option<String> {
    let output = bench(arguments);
    let errors = stderr(&output);
    if errors.contains("userfaultfd") && !output.status.success() {
        skipped("a measurement", &errors);
        return None;
    }
    assert!(output.status.success(), "{arguments:?}: {errors}");
    Some(stdout(&output))
}

#[track_caller]
fn refused(arguments: &[&str], named: &[&str]) {
    let output = bench(arguments);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
    for name in named {
        assert!(errors.contains(name), "{arguments:?}: {errors}");
    }
}

#[test]
fn arguments_that_measure_nothing_are_refused() {
    for percent in ["101", "-1", "0", "nan", "inf"] {
        refused(&["dirty", "--percent", percent], &[percent, "at most 100"]);
    }
    for task in ["dirty", "restore", "wp", "snapshot"] {
        refused(&[task, "--runs", "0"], &["'0'", "--runs"]);
    }
    refused(&["snapshot", "--threads", "0"], &["'0'", "--threads"]);
    refused(&["snapshot", "--threads", "257"], &["257", "256"]);
    refused(&["snapshot", "--write-rate", "0"], &["'0'", "--write-rate"]);
    refused(&["restore", "--working-set", "0"], &["--working-set"]);
    refused(
        &["restore", "--size", "1M", "--working-set", "257"],
        &["--working-set", "257", "1048576", "1 to 256"],
    );
    refused(
        &["restore", "--working-set", "9999999999999"],
        &["9999999999999", "262144"],
    );
}

#[test]
fn places_that_cannot_be_written_are_named_before_anything_is_measured() {
    for task in ["restore", "snapshot"] {
        refused(
            &[task, "--directory", "/nonexistent"],
            &["--directory", "/nonexistent", "No such file"],
        );
        refused(&[task, "--directory", "/proc/version"], &["/proc/version"]);
    }
    refused(
        &["snapshot", "--plot", "/nonexistent/x.svg"],
        &["--plot", "/nonexistent"],
    );
    refused(&["snapshot", "--plot", "/tmp"], &["--plot", "'/tmp'"]);
}

#[test]
fn memory_that_cannot_be_had_is_named() {
    let output = bench(&["dirty", "--size", "1000T"]);
    assert_eq!(output.status.code(), Some(1));
    let bytes = (1000u64 << 40).to_string();
    assert!(stderr(&output).contains(&bytes), "{}", stderr(&output));
}

#[test]
fn json_is_one_line_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    for (arguments, rows) in [
        (&["wp", "--size", "4M"] as &[&str], true),
        (&["dirty", "--size", "4M"], false),
        (&["restore", "--size", "4M", "--working-set", "100"], false),
        (&["snapshot", "--size", "4M", "--write-rate", "1000"], false),
    ] {
        let mut arguments = [arguments, &["--json", "--runs", "1"]].concat();
        if ["restore", "snapshot"].contains(&arguments[0]) {
            arguments.extend(["--directory", place]);
        }
        let Some(text) = printed(&arguments) else {
            return;
        };
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found.is_array(), rows, "{text}");
        if arguments[0] == "snapshot" {
            assert!(found["machine"]["cores"].is_number(), "{text}");
            assert_eq!(found["runs"].as_array().unwrap().len(), 4, "{text}");
            assert!(
                found["ratio"]["pagetide pre-armed"]["pause_ms"].is_number(),
                "{text}"
            );
            assert!(found["ratio"]["fork"].is_null(), "{text}");
        }
    }
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "files are left");
}

/// One write a second: none is due while a snapshot of little memory is taken, half a second after
/// the first.
#[test]
fn where_nothing_was_written_there_is_a_dash_and_null() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("late.svg");
    let arguments = [
        "snapshot",
        "--size",
        "1M",
        "--write-rate",
        "1",
        "--runs",
        "1",
        "--directory",
        directory.path().to_str().unwrap(),
        "--plot",
        plot.to_str().unwrap(),
    ];
    let Some(text) = printed(&arguments) else {
        return;
    };
    assert!(!text.contains("NaN") && !text.contains("inf,"), "{text}");
    assert!(text.contains("p99 -, max -"), "{text}");
    assert!(std::fs::read_to_string(&plot).unwrap().contains("<svg"));
    let rows = printed(&[&arguments[..9], &["--json"]].concat()).unwrap();
    let rows: serde_json::Value = serde_json::from_str(&rows).unwrap();
    let idle = rows["runs"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["writes"] == 0)
        .expect("a run without writes");
    assert!(idle["write_p99_us"].is_null(), "{idle}");
    assert!(idle["first_write_p50_us"].is_null(), "{idle}");
}

/// The table is on stdout although the plot, whose directory goes away meanwhile, cannot be
/// written.
#[test]
fn a_plot_that_fails_does_not_take_the_table_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let gone = directory.path().join("gone");
    std::fs::create_dir(&gone).unwrap();
    let plot = gone.join("late.svg");
    let child = command(&["snapshot", "--size", "1M", "--runs", "1", "--plot"])
        .arg(&plot)
        .arg("--directory")
        .arg(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    std::fs::remove_dir(&gone).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = stderr(&output);
    if errors.contains("userfaultfd") {
        return skipped("a measurement", &errors);
    }
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains(plot.to_str().unwrap()), "{errors}");
    assert!(stdout(&output).contains("over fork"), "{}", stdout(&output));
}

/// Names of the files in a directory.
fn files(directory: &Path) -> Vec<String> {
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// Ended by a signal as soon as there is a file, and in a second run a little later: nothing stays.
#[test]
fn a_signal_leaves_no_file() {
    for (arguments, signal, code) in [
        (&["restore", "--size", "64M"] as &[&str], Signal::INT, 130),
        (&["restore", "--size", "64M"], Signal::TERM, 143),
        (&["snapshot", "--size", "256M"], Signal::INT, 130),
        (
            &["snapshot", "--size", "64M", "--peer", "none"],
            Signal::TERM,
            143,
        ),
    ] {
        for later in [0, 100] {
            let directory = tempfile::tempdir().unwrap();
            let mut child = command(arguments)
                .args(["--runs", "1000", "--directory"])
                .arg(directory.path())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let begun = Instant::now();
            while files(directory.path()).is_empty() {
                if let Some(status) = child.try_wait().unwrap() {
                    let mut errors = String::new();
                    let mut from = child.stderr.take().unwrap();
                    from.read_to_string(&mut errors).unwrap();
                    assert!(errors.contains("userfaultfd"), "{status}: {errors}");
                    return skipped("a measurement", &errors);
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "no file yet");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(later));
            kill_process(Pid::from_child(&child), signal).unwrap();
            let status = child.wait().unwrap();
            // A forked child that outlived its parent would make its file about now.
            std::thread::sleep(Duration::from_millis(300));
            let left = files(directory.path());
            assert_eq!(left, [""; 0], "{arguments:?} after {later} ms");
            assert_eq!(status.code(), Some(code), "{arguments:?}");
        }
    }
}
