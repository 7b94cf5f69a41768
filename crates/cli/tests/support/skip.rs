//! Tests that cannot run here say so where it is seen, and are counted.
use std::fs::{OpenOptions, create_dir_all};
use std::io::Write;
use std::path::PathBuf;

/// Whether `PAGETIDE_TESTS_FULL` asks for the full sizes and for the long tests.
pub fn is_full() -> bool {
    std::env::var_os("PAGETIDE_TESTS_FULL").is_some()
}

/// The target directory this test was built in.
pub fn target_directory() -> PathBuf {
    let temporary = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    temporary
        .parent()
        .expect("it is inside the target directory")
        .to_owned()
}

/// Says loudly that `what` was skipped, and notes it in `skipped-tests.txt` in the target
/// directory, which the test command counts.
pub fn skipped(what: &str, reason: &str) {
    // One line a test, whatever was said: the harness names its threads after the tests.
    let reason = reason.trim().replace('\n', "; ");
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").unwrap_or(what);
    let of = if test == what {
        String::new()
    } else {
        format!("{what}: ")
    };
    let line = format!(
        "SKIPPED {}::{test}: {of}{reason}\n",
        env!("CARGO_CRATE_NAME")
    );
    // Not eprintln!: the test harness would keep that to itself when a test passes.
    std::io::stderr().write_all(line.as_bytes()).ok();
    let directory = target_directory();
    create_dir_all(&directory).ok();
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("skipped-tests.txt"));
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the list of skipped tests can be written");
}
