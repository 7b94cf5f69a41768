//! `pagetide lock`, `residency`, `locks` and `run --lock`, from outside.
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use support::compile::{compile_c, scratch};
use support::pagetide::{binary, number};
use support::patience::up_to;
use support::process::{Outcome, run, start};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(60);

fn pagetide(words: &[&str]) -> Command {
    let mut command = Command::new(binary().unwrap_or_else(|error| panic!("{error}")));
    command.args(words);
    command
}

fn said(words: &[&str]) -> Outcome {
    run(&mut pagetide(words), LIMIT)
}

/// A file of 4 MiB on the disk, not in the page cache if that can be had.
struct Data(PathBuf);

impl Data {
    fn new(name: &str) -> Data {
        let path = scratch().join(format!("lock-{name}-{}", std::process::id()));
        std::fs::create_dir_all(scratch()).unwrap();
        std::fs::write(&path, vec![5u8; 4 << 20]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        let data = Data(path);
        for _ in 0..50 {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            if data.cached() == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        data
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn cached(&self) -> u64 {
        let outcome = said(&["residency", "--json", self.text()]);
        number(&outcome.expect_code(0).stdout_text(), "cached_bytes").unwrap() as u64
    }

    fn read_page(&self, page: u64) {
        let file = std::fs::File::open(&self.0).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        rustix::io::pread(&file, &mut [0u8; 1], page * 4096).unwrap();
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The number of a field of `locks PID --json`.
fn locks(pid: u32, field: &str) -> u64 {
    let outcome = said(&["locks", "--json", &pid.to_string()]);
    number(&outcome.expect_code(0).stdout_text(), field).unwrap() as u64
}

fn within(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + up_to(20);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn can_lock() -> bool {
    let limits = pagetide_kernel::limits::LockLimits::read();
    let able = limits.capable || limits.hard.is_none_or(|hard| hard >= 64 << 20);
    if !able {
        skipped("lock", "the lock limit is below 64 MiB");
    }
    able
}

#[test]
fn pages_that_others_touch_are_kept() {
    if !can_lock() {
        return;
    }
    let data = Data::new("others");
    if data.cached() != 0 {
        return skipped(
            "pages_that_others_touch_are_kept",
            "the file stays in the page cache here",
        );
    }
    let running = start(
        &mut pagetide(&["lock", "--access", "random", data.text()]),
        b"",
    );
    let pid = running.pid();
    within("the mapping is locked", || {
        locks(pid, "vmlck_bytes") == 4 << 20
    });
    assert_eq!(locks(pid, "resident_bytes"), 0, "and nothing is read");
    data.read_page(17);
    data.read_page(900);
    let deadline = Instant::now() + up_to(20);
    while locks(pid, "locked_bytes") != 8192 {
        let (locked, cached) = (locks(pid, "locked_bytes"), data.cached());
        assert!(
            Instant::now() < deadline,
            "{locked} bytes are locked and {cached} in the cache, not 8192"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = said(&["locks", &pid.to_string()]);
    let text = text.expect_code(0).stdout_text();
    assert!(
        text.contains(data.text()) && text.contains("4 MiB"),
        "{text}"
    );
    running.signal_group("TERM");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(0);
    assert!(
        outcome
            .stdout_text()
            .contains("1 file, 4 MiB locked on fault")
    );
}

#[test]
fn now_reads_everything_and_for_ends_it() {
    if !can_lock() {
        return;
    }
    let data = Data::new("now");
    let words = ["lock", "--mode", "now", "--for", "2s", data.text()];
    let began = Instant::now();
    let running = start(&mut pagetide(&words), b"");
    // Once the lock has ended the system may take pages away.
    within("everything is read", || data.cached() == 4 << 20);
    running.finish(LIMIT).expect_code(0);
    assert!(began.elapsed() >= Duration::from_secs(2));
    let part = Data::new("part");
    let words = [
        "lock",
        "--mode=now",
        "--for=1ms",
        "--range",
        "1M:1M",
        part.text(),
    ];
    let was_cold = part.cached() == 0;
    said(&words).expect_code(0);
    if was_cold {
        let outcome = said(&["residency", "--json", part.text()]);
        let text = outcome.expect_code(0).stdout_text();
        assert!(text.contains("\"offset_bytes\":1048576"), "{text}");
    }
}

#[test]
fn directories_are_locked_with_all_below_them() {
    if !can_lock() {
        return;
    }
    let top = scratch().join(format!("lock-tree-{}", std::process::id()));
    std::fs::create_dir_all(top.join("a/b")).unwrap();
    for (name, bytes) in [("1", 8192), ("a/2", 4096), ("a/b/3", 5000)] {
        std::fs::write(top.join(name), vec![1u8; bytes]).unwrap();
    }
    let text = top.to_str().unwrap();
    let locked = said(&["lock", "--mode", "now", "--for", "1ms", text]);
    let seen = said(&["residency", "--json", text]);
    std::fs::remove_dir_all(&top).unwrap();
    let line = locked.expect_code(0).stdout_text();
    assert!(line.starts_with("3 files, "), "{line}");
    let seen = seen.expect_code(0).stdout_text();
    for (name, bytes) in [("1", 8192), ("a/2", 4096), ("a/b/3", 5000)] {
        let path = format!("\"path\":\"{text}/{name}\",\"size_bytes\":{bytes},");
        assert!(seen.contains(&path), "{path} in {seen}");
    }
}

#[test]
fn the_background_process_is_ready_when_the_command_returns() {
    if !can_lock() {
        return;
    }
    let data = Data::new("daemon");
    let outcome = said(&["lock", "--daemon", data.text()]);
    let line = outcome.expect_code(0).stdout_text();
    let pid: u32 = line.trim().parse().expect("the process ID alone");
    assert_eq!(locks(pid, "vmlck_bytes"), 4 << 20, "{line}");
    outcome.expect_told("1 file, 4 MiB locked on fault");
    let kill = Command::new("kill").arg(pid.to_string()).status().unwrap();
    assert!(kill.success());
    within("it ends", || {
        !Path::new(&format!("/proc/{pid}/maps")).exists() || {
            // Not waited for by anybody where there is no init to do that.
            std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.is_empty())
        }
    });
    let outcome = said(&["lock", "--daemon", "/no/such/file"]);
    outcome.expect_code(4);
    assert!(outcome.stderr_text().contains("/no/such/file"));
}

#[test]
fn of_a_directory_the_files_that_reach_into_the_range_are_locked() {
    if !can_lock() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("long"), vec![1u8; 64 << 10]).unwrap();
    std::fs::write(at("short"), vec![1u8; 8 << 10]).unwrap();
    let top = directory.path().to_str().unwrap();
    let lock = |range: &str, what: &str| said(&["lock", "--for", "1ms", "--range", range, what]);
    let outcome = lock("32K:1M", top);
    outcome
        .expect_code(0)
        .expect_told("1 of 2 files end before the range");
    assert!(
        outcome.stdout_text().contains("1 file, 32 KiB"),
        "{}",
        outcome.describe()
    );
    lock("64K:1M", top).expect_code(2).expect_told("65536");
    lock("32K:1M", &at("short"))
        .expect_code(2)
        .expect_told("8192");
}

#[test]
fn what_can_be_looked_at_is_shown_beside_what_cannot() {
    let data = Data::new("beside");
    let outcome = said(&["residency", "/no/such", data.text(), "/dev/null"]);
    outcome
        .expect_code(4)
        .expect_told("/no/such")
        .expect_told("/dev/null");
    assert!(
        outcome.stdout_text().contains("4 MiB in memory"),
        "{}",
        outcome.describe()
    );
    let outcome = said(&["residency", "--json", data.text(), "/no/such"]);
    outcome.expect_code(4);
    assert_eq!(
        number(&outcome.stdout_text(), "size_bytes"),
        Some(f64::from(4 << 20))
    );
}

#[test]
fn a_sparse_file_is_looked_at_where_it_has_pages() {
    let sparse = tempfile::tempfile_in(std::env::temp_dir()).unwrap();
    sparse.set_len(100 << 30).unwrap();
    std::os::unix::fs::FileExt::write_at(&sparse, &[1; 4096], 70 << 30).unwrap();
    let path = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        std::os::fd::AsRawFd::as_raw_fd(&sparse)
    );
    let outcome = said(&["residency", "--json", &path]);
    let text = outcome.expect_code(0).stdout_text();
    assert_eq!(number(&text, "cached_bytes"), Some(4096.0));
    assert_eq!(number(&text, "offset_bytes"), Some((70u64 << 30) as f64));
}

#[test]
fn signals_that_were_ignored_stay_so() {
    if !can_lock() {
        return;
    }
    let data = Data::new("ignored");
    let mut shell = Command::new("sh");
    let script = "trap '' HUP; \"$0\" lock \"$1\" & sleep 1; kill -HUP $!; sleep 1; \
                  kill -TERM $! && wait $!";
    shell
        .args(["-c", script])
        .arg(binary().unwrap())
        .arg(data.text());
    run(&mut shell, LIMIT).expect_code(0);
}

#[test]
fn wrong_words_say_what_was_expected() {
    for (words, code, part) in [
        (&["lock"][..], 2, "FILE"),
        (
            &["lock", "--range", "5:1M", "/etc/passwd"],
            2,
            "multiple of 4096",
        ),
        (&["lock", "--for", "soon", "/etc/passwd"], 2, "10m"),
        (&["lock", "--mode", "later", "/etc/passwd"], 2, "on-fault"),
        (&["lock", "/no/such"], 4, "/no/such"),
        (&["lock", "/dev/null"], 2, "regular file"),
        (&["residency", "/no/such"], 4, "/no/such"),
        (&["locks", "4194999"], 1, "no such process"),
        (
            &[
                "run",
                "--lock",
                "on-fault",
                "--resident",
                "1G",
                "--",
                "true",
            ],
            2,
            "--resident",
        ),
        (&["run", "--lock", "sometimes", "--", "true"], 2, "on-fault"),
    ] {
        said(words).expect_code(code).expect_told(part);
    }
}

#[test]
fn residency_draws_a_map() {
    let data = Data::new("map");
    if data.cached() != 0 {
        return skipped(
            "residency_draws_a_map",
            "the file stays in the page cache here",
        );
    }
    data.read_page(0);
    let outcome = said(&["residency", data.text()]);
    let text = outcome.expect_code(0).stdout_text();
    assert!(text.contains("4 KiB of 4 MiB in memory"), "{text}");
    assert!(text.contains(&format!("[░{}]", ".".repeat(63))), "{text}");
}

fn status(outcome: &Outcome) -> u64 {
    let text = outcome.stdout_text();
    let line = text.lines().find(|line| line.starts_with("VmLck:"));
    let line = line.unwrap_or_else(|| panic!("{}", outcome.describe()));
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_program_its_children_and_what_they_execute_are_locked() {
    if !can_lock() {
        return;
    }
    let locked = |words: &[&str]| {
        let outcome = run(
            pagetide(&["run", "--lock", "on-fault", "--"]).args(words),
            LIMIT,
        );
        outcome.expect_code(0);
        status(&outcome)
    };
    assert!(locked(&["cat", "/proc/self/status"]) > 1000);
    assert!(locked(&["sh", "-c", "cat /proc/self/status; true"]) > 1000);
    assert!(locked(&["env", "-i", "/bin/cat", "/proc/self/status"]) > 1000);
    let fork = "(while read -r line; do echo \"$line\"; done </proc/self/status); true";
    assert!(locked(&["sh", "-c", fork]) > 1000);
    let outcome = run(
        &mut pagetide(&["run", "--lock", "now", "--", "sh", "-c", "exit 9"]),
        LIMIT,
    );
    outcome.expect_code(9);
}

#[test]
fn stacks_and_reservations_do_not_become_resident() {
    if !can_lock() {
        return;
    }
    let program =
        compile_c("programs", "many_stacks", &[]).unwrap_or_else(|error| panic!("{error}"));
    let resident = |command: &mut Command| {
        let outcome = run(command, LIMIT);
        let text = outcome.expect_code(0).stdout_text();
        let (rss, locked) = text.trim().split_once(' ').unwrap();
        (rss.parse::<u64>().unwrap(), locked.parse::<u64>().unwrap())
    };
    let (native, _) = resident(&mut Command::new(&program));
    let mut command = pagetide(&["run", "--lock", "on-fault", "--"]);
    let (rss, locked) = resident(command.arg(&program));
    // 64 stacks of 8 MiB and 1 GiB without access are charged, and 2 MiB of growth is not a
    // blow-up.
    assert!(locked > 1 << 20, "VmLck {locked} KiB");
    assert!(rss < native + 2048, "{rss} KiB against {native} KiB");
}

#[test]
fn a_program_that_cannot_be_locked_is_not_started() {
    if !rustix::process::geteuid().is_root() {
        return skipped(
            "a_program_that_cannot_be_locked",
            "only root can take its own privilege away",
        );
    }
    let agent = binary().unwrap();
    if std::fs::metadata(&agent).is_err()
        || !Command::new("setpriv")
            .arg("--version")
            .output()
            .is_ok_and(|o| o.status.success())
    {
        return skipped("a_program_that_cannot_be_locked", "setpriv is not there");
    }
    let run_as = |memlock: &str| {
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "ulimit -l \"$0\"; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \
                 --reuid 65534 --regid 65534 --clear-groups \
                 \"$1\" run --lock on-fault -- echo ran",
            ])
            .arg(memlock)
            .arg(&agent);
        run(&mut command, LIMIT)
    };
    let few = run_as("64");
    let outcome = &few;
    if outcome.code() == Some(126) || outcome.stderr_text().contains("agent") {
        return skipped(
            "a_program_that_cannot_be_locked",
            "an ordinary user cannot execute the command where it was built",
        );
    }
    outcome.expect_code(3);
    assert!(
        outcome.stderr_text().contains("LimitMEMLOCK="),
        "{}",
        outcome.describe()
    );
    assert!(!outcome.stdout_text().contains("ran"));
    // What it takes is known when it is there; the report says it, and with that it runs.
    let needed = outcome.stderr_text();
    let needed = needed.split("LimitMEMLOCK=").nth(1).unwrap();
    let needed: u64 = needed[..needed.find(|c: char| !c.is_ascii_digit()).unwrap()]
        .parse()
        .unwrap();
    let outcome = run_as(&(needed / 1024 + 1024).to_string());
    outcome.expect_code(0);
    assert!(outcome.stdout_text().contains("ran"));
}
