//! Who looks at runs from outside, root at those of everybody, is neither held up nor led astray by
//! what lies in their directories.
mod support;

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};
use support::pagetide::{able, binary, governed};
use support::process::{Outcome, run};
use support::skip::skipped;

/// A command that waits for a pipe never ends.
const LIMIT: Duration = Duration::from_secs(60);

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe can be made");
}

/// A base directory with the directory of a run, of which there is a launcher as long as this
/// lives.
struct Trap {
    base: tempfile::TempDir,
    _held: File,
}

impl Trap {
    fn new() -> Trap {
        let base = tempfile::tempdir().expect("a directory can be made");
        let run = base.path().join("run-1");
        DirBuilder::new().mode(0o700).create(&run).expect("made");
        let held = File::open(&run).expect("it is there");
        flock(&held, FlockOperation::NonBlockingLockExclusive).expect("it is ours");
        Trap { base, _held: held }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.base.path().join("run-1").join(name)
    }

    /// The command in an address space of 1 GiB, in which a file without an end does not fit.
    fn look(&self, words: &str) -> Outcome {
        let binary = binary().unwrap_or_else(|error| panic!("{error}"));
        let line = format!("ulimit -v 1048576; exec \"$0\" {words}");
        let mut command = Command::new("sh");
        command.args(["-c", &line]).arg(binary);
        run(command.env("PAGETIDE_BASE_DIR", self.base.path()), LIMIT)
    }

    /// None of the commands finds a process, and none is held up.
    fn expect_nothing(&self) {
        for words in ["ps", "metrics --once"] {
            self.look(words).expect_code(0);
        }
        for words in ["stat 1", "limit 1 1G"] {
            let outcome = self.look(words);
            assert!(
                matches!(outcome.code(), Some(1 | 2)),
                "{}",
                outcome.describe()
            );
        }
    }
}

#[test]
fn pipes_in_a_run_s_directory_hold_nobody_up() {
    for names in [
        &["lines"][..],
        &["7.uncounted", "7-1.stats", "serve.sock"],
        &["tree"],
    ] {
        let trap = Trap::new();
        names.iter().for_each(|name| fifo(&trap.at(name)));
        trap.expect_nothing();
    }
}

#[test]
fn a_file_without_an_end_is_not_read_to_its_end() {
    for name in ["lines", "7.uncounted", "7-1.stats", "tree"] {
        let trap = Trap::new();
        // That of a process which does not answer.
        let _socket = UnixListener::bind(trap.at("7.sock")).expect("a socket can be made");
        fs::write(trap.at(name), "7.uncounted because\n").expect("it can be written");
        let file = File::options().write(true).open(trap.at(name));
        file.expect("it is ours")
            .set_len(1 << 36)
            .expect("a sparse file can be made");
        trap.look("metrics --once").expect_code(0);
        let found = trap.look("ps --json").expect_code(0).stdout_text();
        let is_note = ["lines", "7.uncounted"].contains(&name);
        assert_eq!(found.contains("\"pid\":7,"), is_note, "{name}: {found}");
    }
}

#[test]
fn links_in_a_run_s_directory_are_not_followed() {
    let trap = Trap::new();
    let elsewhere = tempfile::tempdir().expect("a directory can be made");
    let note = elsewhere.path().join("note");
    fs::write(&note, "7.uncounted because\n").expect("it can be written");
    std::os::unix::fs::symlink(&note, trap.at("lines")).expect("a link can be made");
    let listener = UnixListener::bind(elsewhere.path().join("socket"));
    let listener = listener.expect("a socket can be made");
    listener.set_nonblocking(true).expect("it is ours");
    for name in ["7.sock", "serve.sock"] {
        let target = elsewhere.path().join("socket");
        std::os::unix::fs::symlink(target, trap.at(name)).expect("a link can be made");
    }
    trap.expect_nothing();
    fs::write(trap.at("8.uncounted"), "because").expect("it can be written");
    std::os::unix::fs::symlink(trap.at("7.sock"), trap.at("8.sock")).expect("a link can be made");
    trap.look("ps").expect_code(0);
    let connected = listener.accept();
    assert!(connected.is_err(), "somebody connected: {connected:?}");
}

/// What a program leaves in its own run's directory does not hold up the launcher's end.
#[test]
fn a_pipe_in_the_own_run_s_directory_does_not_hold_up_the_launcher() {
    if let Err(reason) = able() {
        let name = "a_pipe_in_the_own_run_s_directory_does_not_hold_up_the_launcher";
        return skipped(name, &reason);
    }
    let script = "cd \"$PAGETIDE_RUN_DIR\" && mkfifo new 7.ungoverned && mv new lines && /bin/true && exit 7";
    let mut command = governed(&["--resident", "8M"], "sh");
    run(command.args(["-c", script]), LIMIT).expect_code(7);
}

/// The program's own exit code comes, and what became of the directory is said.
#[test]
fn a_run_s_directory_removed_under_it_does_not_change_the_exit_code() {
    if let Err(reason) = able() {
        let name = "a_run_s_directory_removed_under_it_does_not_change_the_exit_code";
        return skipped(name, &reason);
    }
    for remove in [
        "rm -r \"$PAGETIDE_RUN_DIR\"",
        "rm -r \"$PAGETIDE_RUN_DIR\"/*",
    ] {
        let mut command = governed(&["--resident", "8M"], "sh");
        let outcome = run(command.args(["-c", &format!("{remove}; exit 7")]), LIMIT);
        outcome
            .expect_code(7)
            .expect_told("directory was removed, or emptied");
        assert!(
            !outcome.stderr_text().contains("without the agent"),
            "{}",
            outcome.describe()
        );
    }
}

#[test]
fn an_output_to_a_pipe_that_nobody_reads_is_refused_before_the_start() {
    if let Err(reason) = able() {
        let name = "an_output_to_a_pipe_that_nobody_reads_is_refused_before_the_start";
        return skipped(name, &reason);
    }
    let directory = tempfile::tempdir().expect("a directory can be made");
    let pipe = directory.path().join("pipe");
    fifo(&pipe);
    let path = pipe.to_str().expect("a printable path");
    for option in ["--stats", "--plot", "--trace"] {
        let outcome = run(governed(&[option, path], "echo").arg("ran"), LIMIT);
        outcome.expect_code(2).expect_told(option).expect_told(path);
        assert!(outcome.stdout.is_empty(), "{}", outcome.describe());
    }
    // One that is read takes it.
    let reader = File::options().read(true).write(true).open(&pipe);
    let mut reader = reader.expect("it is ours");
    run(&mut governed(&["--stats", path], "true"), LIMIT).expect_code(0);
    let mut bytes = [0; 1];
    std::io::Read::read_exact(&mut reader, &mut bytes).expect("it was written to");
    assert_eq!(&bytes, b"{");
}

/// Root may look into anybody's directory; that it is somebody else's is said where it is empty.
#[test]
fn a_directory_of_another_user_is_named_as_such() {
    let name = "a_directory_of_another_user_is_named_as_such";
    if !rustix::process::geteuid().is_root() {
        return skipped(name, "needs root");
    }
    let trap = Trap::new();
    std::os::unix::fs::chown(trap.base.path(), Some(65534), None).expect("root may");
    trap.look("ps")
        .expect_code(0)
        .expect_told("PAGETIDE_BASE_DIR, which belongs to user 65534");
    trap.look("run true")
        .expect_code(2)
        .expect_told("PAGETIDE_BASE_DIR")
        .expect_told("belongs to user 65534");
}

/// The base may be any directory, and `run-3` what somebody calls an experiment.
#[test]
fn what_only_looks_like_a_run_is_not_removed() {
    let base = tempfile::tempdir().expect("a directory can be made");
    let made = |name: &str, mode: u32, files: &[&str]| {
        let directory = base.path().join(name);
        DirBuilder::new()
            .mode(mode)
            .create(&directory)
            .expect("made");
        for file in files {
            let path = directory.join(file);
            fs::create_dir_all(path.parent().expect("it is in one")).expect("made");
            fs::write(path, "mine").expect("written");
        }
        directory
    };
    let kept = [
        made("run-001", 0o700, &["lines"]),
        made("run-data", 0o700, &["lines"]),
        made("run-4194301", 0o755, &["lines"]),
        made("run-4194302", 0o700, &["checkpoints/weights"]),
        made("run-4194303", 0o700, &["lines", "7.sock", "weights"]),
    ];
    let of_a_run = made(
        "run-4194304",
        0o700,
        &["lines", "tree", "7-9.stats", "7.lost"],
    );
    let binary = binary().unwrap_or_else(|error| panic!("{error}"));
    for words in [&["ps"][..], &["metrics", "--once"]] {
        let mut command = Command::new(&binary);
        command.args(words).arg("--run-dir").arg(base.path());
        run(&mut command, LIMIT).expect_code(0);
    }
    for directory in kept {
        let shown = directory.display();
        let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{shown}: {error}"));
        assert!(entries.count() > 0, "{shown} is empty");
    }
    assert!(fs::read(base.path().join("run-4194302/checkpoints/weights")).is_ok());
    assert_eq!(
        fs::read_dir(base.path().join("run-4194303"))
            .unwrap()
            .count(),
        3
    );
    assert!(!of_a_run.exists(), "a run that is over is removed");
}
