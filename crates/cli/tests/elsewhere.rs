//! Processes of a run that are where the launcher cannot follow: under another user, in another PID
//! namespace.
mod support;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::compile::on_path;
use support::pagetide::{able_to_fork, binary};
use support::process::{Outcome, run};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65534;

/// The reason why `test` cannot be tried here.
fn unable(tool: &str) -> Option<String> {
    if let Err(reason) = able_to_fork() {
        return Some(reason);
    }
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".into());
    }
    (!on_path(tool)).then(|| format!("there is no {tool} here"))
}

/// Whether userfaultfd's system call asks for no privilege.
fn everybody_may_page() -> bool {
    let value = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    value.is_ok_and(|value| value.trim() == "1")
}

/// Whether the kernel lets nobody open a userfaultfd.
fn nobody_can_page() -> bool {
    let is_open = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o006 == 0o006)
    };
    everybody_may_page() || is_open(Path::new("/dev/userfaultfd"))
}

/// The command and its agent where anybody may read them, with a directory for its runs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open.clone()).expect("it is ours");
        let command = binary().expect("able() was asked first");
        for name in ["pagetide", "libpagetide_preload.so"] {
            let copy = directory.path().join(name);
            std::fs::copy(command.with_file_name(name), &copy)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            std::fs::set_permissions(&copy, open.clone()).expect("it is ours");
        }
        std::fs::create_dir(directory.path().join("runs")).expect("a directory can be made");
        Place(directory)
    }

    fn pagetide(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(self.0.path().join("pagetide"));
        command.env("XDG_RUNTIME_DIR", self.0.path().join("runs"));
        run(command.args(arguments), LIMIT)
    }

    /// Directories of runs.
    fn runs(&self) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(self.0.path().join("runs/pagetide"));
        let entries = entries.into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect()
    }
}

/// What containers begin with: root gives up its privileges and executes the program in its own
/// place.
#[test]
fn a_program_executed_in_the_first_ones_place_with_fewer_privileges_runs_and_says_so_once() {
    let name =
        "a_program_executed_in_the_first_ones_place_with_fewer_privileges_runs_and_says_so_once";
    if let Some(reason) = unable("setpriv") {
        return skipped(name, &reason);
    }
    let place = Place::new();
    let nobody = NOBODY.to_string();
    let give_up = ["setpriv", "--reuid", &nobody, "--clear-groups"];
    let script = ["sh", "-c", "id -u; /bin/true; (exit 7)"];
    for quiet in [false, true] {
        let mut arguments = vec!["run", "--resident", "4M"];
        arguments.extend(quiet.then_some("--quiet"));
        arguments.push("--");
        arguments.extend(give_up);
        arguments.extend(script);
        let outcome = place.pagetide(&arguments);
        outcome.expect_code(7);
        assert_eq!(
            outcome.stdout_text(),
            format!("{nobody}\n"),
            "{}",
            outcome.describe()
        );
        let said = outcome.stderr_text();
        let wanted = usize::from(!quiet && !nobody_can_page());
        assert_eq!(
            said.matches("is not governed").count(),
            wanted,
            "{}",
            outcome.describe()
        );
    }
    // The same behind a shell that steps aside.
    let line = format!("exec setpriv --reuid {nobody} --clear-groups id -u");
    let outcome = place.pagetide(&["run", "--resident", "4M", "--", "sh", "-c", &line]);
    outcome.expect_code(0);
    assert_eq!(outcome.stdout_text(), format!("{nobody}\n"));
}

/// The same where everybody may page: what it executes is governed, can leave nothing in the run's
/// directory, and has no part in its budget.
#[test]
fn a_program_under_another_user_that_may_page_says_once_that_it_is_not_counted() {
    let name = "a_program_under_another_user_that_may_page_says_once_that_it_is_not_counted";
    let missing = ["setpriv", "unshare", "mknod"].into_iter().find_map(unable);
    if let Some(reason) = missing {
        return skipped(name, &reason);
    }
    let Ok(device) = std::fs::metadata("/dev/userfaultfd") else {
        return skipped(name, "no /dev/userfaultfd");
    };
    let (major, minor) = (
        rustix::fs::major(device.rdev()),
        rustix::fs::minor(device.rdev()),
    );
    let place = Place::new();
    let open = place.0.path().join("open");
    let script = format!(
        "mknod -m 666 {open} c {major} {minor} && mount --bind {open} /dev/userfaultfd || exit 99
         mkfifo {go_on}
         {pagetide} run --resident 4M -- setpriv --reuid {NOBODY} --clear-groups \
            sh -c 'id -u; /bin/true; read line; (exit 7)' <>{go_on} >{said} &
         until [ -s {said} ]; do sleep 0.05; done
         {pagetide} limit $! 8M; echo limit $?; {pagetide} stat $!; echo stat $?
         echo >{go_on}; wait $!",
        open = open.display(),
        pagetide = place.0.path().join("pagetide").display(),
        go_on = place.0.path().join("go_on").display(),
        said = place.0.path().join("said").display(),
    );
    let mut command = Command::new("unshare");
    command.env("XDG_RUNTIME_DIR", place.0.path().join("runs"));
    let outcome = run(command.args(["--mount", "sh", "-c", &script]), LIMIT);
    if outcome.code() == Some(99) || outcome.stderr_text().contains("unshare failed") {
        return skipped(name, "no mount of its own can be had");
    }
    outcome.expect_code(7);
    let said = outcome.stderr_text();
    let times = |text| said.matches(text).count();
    assert_eq!(
        times("is governed, and it and what it starts are in no statistics"),
        1,
        "{said}"
    );
    assert_eq!(times("not governed"), 0, "{said}");
    // Neither is its budget changed, nor is it said to be.
    assert_eq!(outcome.stdout_text(), "limit 1\nstat 1\n", "{said}");
    let told = "(sh) could not write to the run's directory when it started";
    assert_eq!(times(told), 2, "{said}");
}

/// A program that gives up its privileges, and then does what `then` says; the mask is that of
/// [`pagetide_kernel::mask`].
fn given_up(place: &Place, mask: &str, then: &str) -> Outcome {
    const GIVEN_UP: &str = "import ctypes, mmap, os, sys\n\
        os.setgroups([]); os.setgid(65534); os.setuid(65534)\n";
    let mut command = Command::new(place.0.path().join("pagetide"));
    command.env("XDG_RUNTIME_DIR", place.0.path().join("runs"));
    command.env("PAGETIDE_MASK", mask);
    command.args(["run", "--resident", "4M", "--", "python3", "-c"]);
    run(command.arg([GIVEN_UP, then].concat()), LIMIT)
}

/// Without the device the right to page is a privilege, which a child has no more.
#[test]
fn fork_fails_where_the_right_to_page_was_given_up_and_the_run_says_so() {
    let name = "fork_fails_where_the_right_to_page_was_given_up_and_the_run_says_so";
    if let Some(reason) = unable("python3") {
        return skipped(name, &reason);
    }
    if everybody_may_page() {
        return skipped(name, "vm.unprivileged_userfaultfd lets everybody page");
    }
    let fork = "try: os.fork()\nexcept PermissionError: sys.exit(7)";
    let outcome = given_up(&Place::new(), "device", fork);
    outcome.expect_code(7);
    outcome.expect_told("fork failed with EPERM");
}

/// Such a child can leave no file of its own in the run's directory.
#[test]
fn a_child_of_a_program_without_privileges_that_is_ended_is_told_of() {
    let name = "a_child_of_a_program_without_privileges_that_is_ended_is_told_of";
    if let Some(reason) = unable("python3") {
        return skipped(name, &reason);
    }
    if std::fs::metadata("/dev/userfaultfd").is_err() {
        return skipped(name, "no /dev/userfaultfd: such a program cannot fork");
    }
    // The system call itself: more than the budget is locked, so that nothing can be evicted.
    let lock = "\
        pid = os.fork()\n\
        if pid: os._exit(0 if os.WIFSIGNALED(os.waitpid(pid, 0)[1]) else 8)\n\
        libc = ctypes.CDLL(None)\n\
        memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n\
        libc.syscall(149, ctypes.c_ulong(start), ctypes.c_ulong(6 << 20))\n\
        for at in range(0, 64 << 20, 4096): memory[at] = 1\n\
        os._exit(9)";
    let outcome = given_up(&Place::new(), "", lock);
    outcome.expect_code(5);
    outcome.expect_told("was governed, but is in no statistics");
    outcome.expect_told("no page could be evicted");
}

/// What has another number inside than outside leaves no trace, and is not taken for a process with
/// its number.
#[test]
fn processes_of_another_pid_namespace_leave_no_ghosts() {
    let name = "processes_of_another_pid_namespace_leave_no_ghosts";
    if let Some(reason) = unable("unshare") {
        return skipped(name, &reason);
    }
    let place = Place::new();
    let inside = "sh -c 'echo from $$' && (sleep 0.2) && \"$0\" ps --json";
    let pagetide = place.0.path().join("pagetide");
    let outcome = place.pagetide(&[
        "run",
        "--resident",
        "4M",
        "--",
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        inside,
        pagetide.to_str().expect("a printable path"),
    ]);
    if outcome.stderr_text().contains("unshare failed") {
        return skipped(name, &outcome.stderr_text());
    }
    outcome.expect_code(0);
    let said = outcome.stdout_text();
    // Seen from inside: the shell that is the first process there, and not `unshare`, which is
    // outside.
    assert!(
        said.contains("\"pid\":1,") && !said.contains("\"command\":\"unshare"),
        "{}",
        outcome.describe()
    );
    assert_eq!(place.runs(), Vec::<std::ffi::OsString>::new());
    let listed = place.pagetide(&["ps", "--json"]);
    listed.expect_code(0);
    assert_eq!(listed.stdout_text().trim(), "[]", "{}", listed.describe());
}

/// Nobody lays a link for root where the agent would write.
#[test]
fn in_a_run_directory_of_another_user_nothing_is_governed() {
    let name = "in_a_run_directory_of_another_user_nothing_is_governed";
    if let Some(reason) = unable("chown") {
        return skipped(name, &reason);
    }
    let place = Place::new();
    let script = format!("chown {NOBODY} $PAGETIDE_RUN_DIR; sh -c 'echo ran; /bin/true'");
    let outcome = place.pagetide(&["run", "--resident", "4M", "--", "sh", "-c", &script]);
    assert_eq!(outcome.stdout_text(), "ran\n", "{}", outcome.describe());
    let said = outcome.stderr_text();
    let refused = format!("belongs to user {NOBODY}, expected this user or root");
    assert_eq!(said.matches(&refused).count(), 1, "{}", outcome.describe());
}
