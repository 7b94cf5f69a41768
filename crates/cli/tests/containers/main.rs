//! Under what surrounds a container: the default seccomp profiles of Docker and podman (their own
//! files, `examples/container-profiles.sh`), their default capabilities, a `/dev` with little in it
//! and a read-only `/proc/sys`. With `/dev/userfaultfd` programs are paged, without it the message
//! says how to get it.
mod profile;
#[path = "../support/mod.rs"]
mod support;

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use profile::Filters;
use support::compile::{compile_c, on_path};
use support::pagetide::{able_to_fork, copy_for_anybody};
use support::process::{Outcome, run};
use support::skip::{skipped, target_directory};

const LIMIT: Duration = Duration::from_secs(120);
/// A user that is nobody, and a group that nobody is in.
const NOBODY: &str = "65534";
const GROUP: &str = "4711";

/// A container engine's defaults.
#[derive(Clone, Copy)]
struct Engine {
    /// As the variable `container` has it.
    name: &'static str,
    capabilities: &'static [&'static str],
}

const DOCKER: Engine = Engine {
    name: "docker",
    capabilities: &[
        "chown",
        "dac_override",
        "fsetid",
        "fowner",
        "mknod",
        "net_raw",
        "setgid",
        "setuid",
        "setfcap",
        "setpcap",
        "net_bind_service",
        "sys_chroot",
        "kill",
        "audit_write",
    ],
};
const PODMAN: Engine = Engine {
    name: "podman",
    capabilities: &[
        "chown",
        "dac_override",
        "fowner",
        "fsetid",
        "kill",
        "net_bind_service",
        "setfcap",
        "setgid",
        "setpcap",
        "setuid",
        "sys_chroot",
    ],
};

/// Who runs in the container.
#[derive(Clone, Copy)]
enum User {
    Root,
    Nobody,
    /// In the device's group.
    Member,
}

/// A container: what is around the programs that are run in it.
struct Container {
    engine: Engine,
    filters: Filters,
    /// The mode of the device, whose group is [`GROUP`]; without one there is none.
    device: Option<&'static str>,
    minor: u64,
    /// With the command and the programs, for anybody.
    place: tempfile::TempDir,
}

impl Engine {
    /// `None` where there can be no such surroundings.
    fn container(self, test: &str, device: Option<&'static str>) -> Option<Container> {
        let prepared = || {
            able_to_fork()?;
            if !rustix::process::geteuid().is_root() {
                return Err("a container's /dev is made by root".to_owned());
            }
            let tools = ["setpriv", "mount", "mknod"];
            if let Some(missing) = tools.into_iter().find(|tool| !on_path(tool)) {
                return Err(format!("{missing} is not installed"));
            }
            let host = std::fs::metadata("/dev/userfaultfd")
                .map_err(|error| format!("/dev/userfaultfd: {error}"))?;
            let upper = |name: &&str| format!("CAP_{}", name.to_uppercase());
            let capabilities: Vec<String> = self.capabilities.iter().map(upper).collect();
            let capabilities: Vec<&str> = capabilities.iter().map(String::as_str).collect();
            let file = target_directory().join(format!("container-profiles/{}.json", self.name));
            let filters = Filters::read(&file, &capabilities).map_err(|error| {
                format!(
                    "{error}; examples/container-profiles.sh fetches {}'s profile",
                    self.name
                )
            })?;
            let place = tempfile::tempdir().map_err(|error| error.to_string())?;
            copy_for_anybody(place.path());
            Ok(Container {
                engine: self,
                filters,
                device,
                minor: rustix::fs::minor(host.rdev()).into(),
                place,
            })
        };
        prepared().map_err(|reason| skipped(test, &reason)).ok()
    }
}

impl Container {
    /// `pagetide WORDS` in it.
    fn run(&self, user: User, words: &[&str]) -> Outcome {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                let [mut command, tail] = [self.command(user), Command::new(self.pagetide())];
                command.arg(tail.get_program()).args(words);
                run(&mut command, LIMIT)
            });
            thread.join().expect("the thread in the container")
        })
    }

    fn pagetide(&self) -> PathBuf {
        self.place.path().join("pagetide")
    }

    /// Has the calling thread, and no other, be in it for good.
    fn enter(&self) {
        unshare(CloneFlags::CLONE_NEWNS).expect("root may have mounts of its own");
        let device = match self.device {
            None => String::new(),
            Some(mode) => format!(
                "mknod -m {mode} /dev/userfaultfd c 10 {}; chgrp {GROUP} /dev/userfaultfd;",
                self.minor
            ),
        };
        let script = format!(
            "set -e; mount --make-rprivate /; \
             mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; \
             mount -t tmpfs -o mode=755,nosuid none /dev; \
             mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; \
             mknod -m 666 /dev/urandom c 1 9; mkdir -m 1777 /dev/shm; {device}"
        );
        let made = Command::new("sh").args(["-c", &script]).output();
        let made = made.expect("sh can be started");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{said}");
        self.filters.apply();
    }

    fn command(&self, user: User) -> Command {
        let mut command = Command::new("setpriv");
        let kept: String = (self.engine.capabilities.iter())
            .map(|name| format!(",+{name}"))
            .collect();
        command.args(["--bounding-set", &format!("-all{kept}")]);
        match user {
            User::Root => {}
            User::Nobody => {
                command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
            }
            User::Member => {
                command.args(["--reuid", NOBODY, "--regid", NOBODY, "--groups", GROUP]);
            }
        }
        command.env_remove("KUBERNETES_SERVICE_HOST");
        command.env_remove("XDG_RUNTIME_DIR");
        command.env("container", self.engine.name);
        command
    }

    /// A C program of the tests, where anybody may execute it.
    fn program(&self, folder: &str, name: &str) -> String {
        let built = compile_c(folder, name, &[]).unwrap_or_else(|error| panic!("{error}"));
        let copy = self.place.path().join(name);
        std::fs::copy(built, &copy).expect("it can be copied");
        copy.to_str().expect("a printable path").to_owned()
    }
}

/// Hazards of each kind: forks, memory given up and moved, system calls into evicted memory. Those
/// that the profiles forbid a program itself (`process_madvise`, io_uring) are not among them.
const HAZARDS: [&str; 6] = [
    "fork_verify",
    "fork_malloc_threads",
    "madvise_dontneed",
    "mremap_move",
    "read_write_buffers",
    "vfork_exec",
];

fn programs_are_paged(engine: Engine, test: &str) {
    for (mode, user) in [("600", User::Root), ("660", User::Member)] {
        let Some(container) = engine.container(test, Some(mode)) else {
            return;
        };
        // The filters are in force: without them anybody may have this one.
        let doctor = container.run(user, &["doctor"]);
        assert!(
            matches!(doctor.code(), Some(0 | 1)),
            "{}",
            doctor.describe()
        );
        let text = doctor.stdout_text();
        let line = text
            .lines()
            .find(|line| line.contains("open, user mode only"));
        assert!(
            line.is_some_and(|line| line.contains("missing")),
            "{}",
            doctor.describe()
        );
        for name in HAZARDS {
            let program = container.program("hazards", name);
            let outcome = container.run(user, &["run", "--resident", "4M", "--", &program, "16"]);
            outcome.expect_code(0);
        }
    }
}

/// Docker's profile forbids to copy a descriptor out of another table: there the pipe is opened
/// again, which its owner may. (In a container that is its user.)
fn a_loss_is_told(engine: Engine, test: &str) {
    let Some(container) = engine.container(test, Some("600")) else {
        return;
    };
    let program = container.program("programs", "four_threads");
    let options = [
        "--resident",
        "4M",
        "--store",
        "fault:get-corrupt-after=300:ram:",
    ];
    let words = [
        &["run", "--exec"],
        &options[..],
        &["--", &program, "32", "12"],
    ]
    .concat();
    let outcome = container.run(User::Root, &words);
    outcome
        .expect_code(128 + 7)
        .expect_told("data were lost: page at 0x");
}

fn the_message_says_how_to_get_the_device(engine: Engine, test: &str) {
    let line = format!("{} run --device /dev/userfaultfd", engine.name);
    for (device, user, parts) in [
        (None, User::Root, &[""][..]),
        (Some("660"), User::Nobody, &["--group-add", "chgrp"]),
    ] {
        let Some(container) = engine.container(test, device) else {
            return;
        };
        let ran = container.run(user, &["run", "--resident", "4M", "--", "echo", "ran"]);
        ran.expect_code(3).expect_told(&line);
        assert_eq!(ran.stdout_text(), "", "{}", ran.describe());
        for part in parts {
            ran.expect_told(part);
        }
        let doctor = container.run(user, &["doctor"]);
        doctor.expect_code(3);
        let text = doctor.stdout_text();
        assert!(
            text.contains(&format!("fix: {line}")),
            "{}",
            doctor.describe()
        );
        let named = text.lines().find(|line| line.contains(" container "));
        let named = named.unwrap_or_default().to_lowercase();
        assert!(named.contains(engine.name), "{}", doctor.describe());
    }
}

#[test]
fn programs_are_paged_under_dockers_profile() {
    programs_are_paged(DOCKER, "programs_are_paged_under_dockers_profile");
}

#[test]
fn programs_are_paged_under_podmans_profile() {
    programs_are_paged(PODMAN, "programs_are_paged_under_podmans_profile");
}

#[test]
fn a_loss_is_told_under_dockers_profile() {
    a_loss_is_told(DOCKER, "a_loss_is_told_under_dockers_profile");
}

#[test]
fn a_loss_is_told_under_podmans_profile() {
    a_loss_is_told(PODMAN, "a_loss_is_told_under_podmans_profile");
}

#[test]
fn without_the_device_docker_is_named_with_its_option() {
    let test = "without_the_device_docker_is_named_with_its_option";
    the_message_says_how_to_get_the_device(DOCKER, test);
}

#[test]
fn without_the_device_podman_is_named_with_its_option() {
    let test = "without_the_device_podman_is_named_with_its_option";
    the_message_says_how_to_get_the_device(PODMAN, test);
}
