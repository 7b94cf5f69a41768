//! `examples/kv-server` and `examples/checkpoint` as a user calls them: what they refuse, and that
//! a save which failed is none.
#[path = "../../cli/tests/support/mod.rs"]
mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use pagetide_bench::memory::{HugePages, Plain};
use support::skip::skipped;

/// Cargo builds the examples of the package under test only, which they are not of.
fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let directory = BUILT.get_or_init(|| {
        let directory = Path::new(env!("CARGO_BIN_EXE_pagetide-bench"))
            .parent()
            .unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        // All of the workspace, so that its packages are built with the features they have for
        // `make test`.
        cargo
            .args(["build", "--quiet", "--workspace"])
            .args(["--example", "kv-server", "--example", "checkpoint"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", directory.parent().unwrap());
        if directory.ends_with("release") {
            cargo.arg("--release");
        }
        let output = cargo.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        directory.join("examples")
    });
    directory.join(name)
}

fn run(name: &str, arguments: &[&str]) -> Output {
    Command::new(example(name))
        .args(arguments)
        .output()
        .unwrap()
}

#[track_caller]
fn fails(name: &str, arguments: &[&str], code: i32, named: &[&str]) {
    let output = run(name, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(output.stdout.is_empty(), "it was not ready: {errors}");
    assert!(errors.starts_with("error: "), "{errors}");
    for name in named {
        assert!(errors.contains(name), "{errors}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    fails("kv-server", &[place], 2, &["usage"]);
    fails("kv-server", &[place, "x", "fork"], 2, &["'x'", "65535"]);
    fails("kv-server", &[place, "0", "spoon"], 2, &["'spoon'", "fork"]);
    let nowhere = ["/nonexistent", "0", "fork"];
    fails("kv-server", &nowhere, 2, &["'/nonexistent'"]);
    fails("checkpoint", &[place], 2, &["usage"]);
    fails("checkpoint", &[place, "abc"], 2, &["'abc'", "steps"]);
    fails("checkpoint", &["/nonexistent", "1"], 2, &["'/nonexistent'"]);
}

#[test]
fn a_file_that_is_no_save_of_the_server_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("table.snapshot");
    let memory = Plain::new(1 << 20, HugePages::Never).unwrap();
    memory.write_file(&path).unwrap();
    let arguments = [directory.path().to_str().unwrap(), "0", "fork"];
    let output = run("kv-server", &arguments);
    if String::from_utf8_lossy(&output.stderr).contains("userfaultfd") {
        return skipped("a lazy restore", "no userfaultfd");
    }
    fails(
        "kv-server",
        &arguments,
        1,
        &[path.to_str().unwrap(), "'table'"],
    );
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Its directory goes away: each save fails, the server says so and goes on, and counts none of
/// them. When it is back, the next save succeeds.
#[test]
fn a_save_by_fork_that_fails_is_told_and_does_not_count() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("saves");
    std::fs::create_dir(&directory).unwrap();
    let child = Command::new(example("kv-server"))
        .arg(&directory)
        .args(["0", "fork"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Ended(child);
    let mut ready = String::new();
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    out.read_line(&mut ready).unwrap();
    std::fs::remove_dir(&directory).unwrap();
    let address = ready.split_whitespace().nth(2).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    let mut answers = BufReader::new(&stream).lines();
    let mut ask = |line: &str| {
        (&stream).write_all(line.as_bytes()).unwrap();
        answers.next().unwrap().unwrap()
    };
    assert_eq!(ask("SET 1 2\n"), "OK");
    let mut errors = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let mut said = || errors.next().unwrap().unwrap();
    for _ in 0..2 {
        let (why, what) = (said(), said());
        assert!(why.contains("No such file"), "{why}");
        assert!(what.contains("error: saving to "), "{what}");
        assert!(what.contains(directory.to_str().unwrap()), "{what}");
        assert!(what.contains("0 writes"), "{what}");
        assert_eq!(ask("SAVED\n"), "0");
    }
    std::fs::create_dir(&directory).unwrap();
    let saved = (0..6)
        .map(|_| said())
        .find(|line| line.starts_with("saved "));
    assert!(saved.unwrap().starts_with("saved 1 writes by fork: "));
    assert_eq!(ask("SAVED\n"), "1");
}
