//! Under a limit on processes and threads that the pager's threads do not fit in, a program is
//! refused before it starts, and a fork fails as it does where the limit is the program's own.
mod support;

use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::compile::{compile_c, on_path};
use support::pagetide::{able_to_fork, copy_for_anybody};
use support::process::{Outcome, run};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(60);
/// The agent's, beside the program's one.
const THREADS: u32 = 4;

/// A place where user `uid`, who has no other process and may page, runs the command.
struct Place {
    directory: tempfile::TempDir,
    uid: u32,
}

impl Place {
    /// Of a test, which is skipped where that cannot be.
    fn of(test: &str, uid: u32) -> Option<Place> {
        let missing = match able_to_fork() {
            Err(reason) => Some(reason),
            Ok(_) if !rustix::process::geteuid().is_root() => Some("needs root".into()),
            Ok(_) => (["setpriv", "bash"].into_iter())
                .find(|tool| !on_path(tool))
                .map(|tool| format!("there is no {tool} here")),
        };
        if let Some(reason) = missing {
            skipped(test, &reason);
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory can be made");
        copy_for_anybody(directory.path());
        let runs = directory.path().join("runs");
        std::fs::create_dir(&runs).expect("it is ours");
        std::fs::set_permissions(&runs, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .expect("it is ours");
        chown(&runs, Some(uid), None).expect("root may");
        Some(Place { directory, uid })
    }

    /// Runs `program` with at most so many processes and threads, the launcher among them.
    fn run(&self, most: u32, program: &Path) -> Outcome {
        let at = |name: &str| self.directory.path().join(name);
        let mut command = Command::new("setpriv");
        // The right to page, and none that lifts the limit.
        let capabilities = ["--inh-caps", "+sys_ptrace", "--ambient-caps", "+sys_ptrace"];
        command
            .args(["--reuid", &self.uid.to_string(), "--clear-groups"])
            .args(capabilities);
        let script = format!("ulimit -u {most}; exec \"$0\" run --resident 8M -- \"$1\"");
        command.args(["bash", "-c", &script]).arg(at("pagetide"));
        command.arg(program).env("PAGETIDE_BASE_DIR", at("runs"));
        run(&mut command, LIMIT)
    }
}

#[test]
fn a_program_whose_pager_can_have_no_threads_is_refused_with_the_limit() {
    let name = "a_program_whose_pager_can_have_no_threads_is_refused_with_the_limit";
    let Some(place) = Place::of(name, 54_321) else {
        return;
    };
    // Launcher and program, and the agent's threads, one after the other.
    for most in 1..2 + THREADS {
        let outcome = place.run(most, Path::new("/bin/true"));
        outcome.expect_code(3).expect_told("`ulimit -u`");
        outcome.expect_told(&most.to_string());
    }
    place
        .run(2 + THREADS, Path::new("/bin/true"))
        .expect_code(0);
}

#[test]
fn a_fork_whose_child_can_have_no_pager_fails_and_leaves_no_child() {
    let name = "a_fork_whose_child_can_have_no_pager_fails_and_leaves_no_child";
    let Some(place) = Place::of(name, 54_322) else {
        return;
    };
    let built = compile_c("programs", "forks_until_refused", &[]);
    let built = built.unwrap_or_else(|error| panic!("{error}"));
    let program = place.directory.path().join("forks");
    std::fs::copy(built, &program).expect("it can be copied");
    let children = 3;
    let least = 1 + (1 + children) * (1 + THREADS);
    for more in 0..=THREADS {
        let outcome = place.run(least + more, &program);
        outcome.expect_code(0);
        let said = format!("{children} children\n");
        assert_eq!(outcome.stdout_text(), said, "{}", outcome.describe());
        // With no room for the child itself it is the kernel that refuses.
        if more > 0 {
            outcome.expect_told("fork failed with EAGAIN");
        }
    }
}
