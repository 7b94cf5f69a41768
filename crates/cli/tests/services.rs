//! `pagetide run --exec`: the command becomes the program, as service managers want it. And units
//! and manifests in `examples/` that use it.
mod support;

use std::io::{IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, UCred, recvmsg, sockopt};
use support::compile::{compile_c, on_path, scratch};
use support::pagetide::{able, able_to_fork, binary, can_poison, number};
use support::patience::{is_slow, up_to};
use support::process::{Running, run, start};
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(60);

/// A directory that stands for `/run/user/N`, so that the runs of other tests are not seen.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    /// `None` where programs that fork cannot be paged.
    fn new(test: &str) -> Option<Place> {
        if let Err(reason) = able_to_fork() {
            skipped(test, &reason);
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory can be made");
        Some(Place { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `pagetide WORDS`.
    fn pagetide(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary().expect("there is a command"));
        command.args(words);
        command.env("XDG_RUNTIME_DIR", self.directory.path());
        command
    }

    /// `pagetide run --exec --resident 4M OPTIONS -- PROGRAM`.
    fn exec(&self, options: &[&str], program: &str) -> Command {
        let mut command = self.pagetide(&["run", "--exec", "--resident", "4M"]);
        command.args(options).args(["--", program]);
        command
    }

    /// A shell that runs `script`, in which `$pagetide` is the command.
    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", script]);
        command.env("pagetide", binary().expect("there is a command"));
        command.env("XDG_RUNTIME_DIR", self.directory.path());
        command
    }

    /// The run directories there are.
    fn runs(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("pagetide"));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }
}

fn compiled(name: &str, extra: &[&str]) -> PathBuf {
    compile_c("programs", name, extra).unwrap_or_else(|error| panic!("{error}"))
}

fn printable(path: &Path) -> &str {
    path.to_str().expect("a printable path")
}

/// Sends `signal` to the process that was started, and to no other.
fn signal(running: &Running, signal: &str) {
    let pid = running.pid().to_string();
    let sent = Command::new("kill").args(["-s", signal, &pid]).status();
    assert!(sent.expect("kill can be started").success());
}

fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + up_to(60);
    while !happened() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_program_is_the_process_that_the_command_was() {
    let Some(place) = Place::new("the_program_is_the_process_that_the_command_was") else {
        return;
    };
    let running = start(place.exec(&[], "sh").args(["-c", "echo $$; exit 42"]), b"");
    let pid = running.pid();
    let outcome = running.finish(LIMIT);
    outcome.expect_code(42);
    let said = (outcome.stdout_text(), outcome.stderr_text());
    assert_eq!(said, (format!("{pid}\n"), String::new()));
    // Under `run` without it, it is another one: this test can fail.
    let mut beside = place.pagetide(&["run", "--resident", "4M", "--", "sh", "-c", "echo $$"]);
    let running = start(&mut beside, b"");
    let pid = running.pid();
    assert_ne!(running.finish(LIMIT).stdout_text(), format!("{pid}\n"));
}

#[test]
fn exit_codes_and_signals_are_the_programs() {
    let Some(place) = Place::new("exit_codes_and_signals_are_the_programs") else {
        return;
    };
    for (script, code) in [
        ("exit 3", 3),
        ("exit 5", 5),
        ("kill -9 $$", 137),
        ("kill -15 $$", 143),
    ] {
        let outcome = run(place.exec(&[], "sh").args(["-c", script]), LIMIT);
        outcome.expect_code(code);
        assert_eq!(outcome.stderr_text(), "", "{}", outcome.describe());
    }
    let outcome = run(&mut place.exec(&[], "no-such-program-anywhere"), LIMIT);
    outcome
        .expect_code(127)
        .expect_told("no-such-program-anywhere");
    // What was ignored and blocked stays so: SIGXFSZ, which the command blocks for itself, too.
    let script = "trap '' PIPE; grep Sig[BI] /proc/self/status; \
                  $pagetide run --exec --resident 4M -- grep Sig[BI] /proc/self/status";
    let outcome = run(&mut place.shell(script), LIMIT);
    let text = outcome.stdout_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{}", outcome.describe());
    assert_eq!(lines[..2], lines[2..], "{}", outcome.describe());
}

#[test]
fn descriptors_keep_their_numbers_and_none_is_added() {
    let Some(place) = Place::new("descriptors_keep_their_numbers_and_none_is_added") else {
        return;
    };
    let listed = |how: &str| {
        let list =
            "for f in /proc/self/fd/*; do echo ${f##*/} $(readlink $f); done | grep -v /proc";
        let script = format!("exec 3</etc/passwd 7<>/dev/null; exec {how} bash -c '{list}'");
        let outcome = run(place.shell(&script).stdin(Stdio::null()), LIMIT);
        outcome.expect_code(0);
        // Pipes have other numbers each time.
        let text = outcome.stdout_text();
        let of = |line: &str| line.split(':').next().map(str::to_owned);
        text.lines().filter_map(of).collect::<Vec<_>>()
    };
    let native = listed("");
    assert!(
        native.iter().any(|line| line.starts_with("3 ")),
        "{native:?}"
    );
    assert_eq!(listed("$pagetide run --exec --resident 4M --"), native);
}

/// What arrived at a socket, and who the kernel says has sent it.
fn received(socket: &UnixDatagram) -> (String, UCred) {
    let mut text = [0; 256];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut into = [IoSliceMut::new(&mut text)];
    let message = recvmsg(socket, &mut into, &mut control, RecvFlags::empty());
    let len = message.expect("a message in time").bytes;
    let sender = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender),
        _ => None,
    });
    let text = String::from_utf8_lossy(&text[..len]).into_owned();
    (text, sender.expect("the sender's credentials"))
}

/// One answer of the service at `path`.
fn answer(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).expect("the service listens");
    stream
        .set_read_timeout(Some(up_to(60)))
        .expect("it can be set");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer in time");
    text
}

/// With sockets as systemd makes them; its `LISTEN_PID` and `WATCHDOG_PID` name the process that it
/// started, and with `NotifyAccess=main` it believes no other.
#[test]
fn a_service_is_activated_says_that_it_is_ready_and_is_stopped() {
    let Some(place) = Place::new("a_service_is_activated_says_that_it_is_ready_and_is_stopped")
    else {
        return;
    };
    let (listens, notified) = (place.path("service"), place.path("notify"));
    let listener = UnixListener::bind(&listens).expect("it can listen");
    let ready = UnixDatagram::bind(&notified).expect("it can listen");
    ready
        .set_read_timeout(Some(up_to(60)))
        .expect("it can be set");
    sockopt::set_socket_passcred(&ready, true).expect("it can be set");
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ WATCHDOG_PID=$$ \
                  WATCHDOG_USEC=30000000 exec $pagetide run --exec --resident 4M -- $service 16";
    let mut command = place.shell(script);
    command.env("service", compiled("service", &[]));
    command.env("NOTIFY_SOCKET", &notified);
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
    let service = Started::new(&mut command);
    let (text, sender) = received(&ready);
    let main = service.pid();
    assert_eq!(
        (text.as_str(), sender.pid.as_raw_nonzero().get() as u32),
        ("READY=1", main)
    );
    // It answers when its child and itself have looked at all of their memory.
    assert_eq!(answer(&listens), format!("{main}\n"));
    let (text, sender) = received(&ready);
    let sender = sender.pid.as_raw_nonzero().get() as u32;
    assert_eq!((text.as_str(), sender), ("WATCHDOG=1", main));
    // While it runs its counters are to be had by its process ID.
    let stat = run(
        &mut place.pagetide(&["stat", "--json", &main.to_string()]),
        LIMIT,
    );
    stat.expect_code(0);
    let counted = |field| number(&stat.stdout_text(), field);
    assert_eq!(counted("pid"), Some(f64::from(main)), "{}", stat.describe());
    assert!(counted("fetches") > Some(0.0), "{}", stat.describe());
    assert_eq!(service.stop(), (Some(7), String::new()));
}

/// A child of this test with output of its own; [`Running`] has its input from a pipe.
struct Started {
    child: std::process::Child,
}

impl Started {
    fn new(command: &mut Command) -> Started {
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        Started {
            child: child.expect("it can be started"),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// By SIGTERM to the process itself; its exit code, and what it said on stderr.
    fn stop(mut self) -> (Option<i32>, String) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", "TERM", &pid]).status();
        assert!(sent.expect("kill can be started").success());
        let status = self.child.wait().expect("a child of our own");
        let mut said = String::new();
        let stderr = self.child.stderr.as_mut().expect("it is a pipe");
        stderr.read_to_string(&mut said).expect("it is text");
        (status.code(), said)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// systemd's own tool hands over the socket.
#[test]
fn a_service_is_activated_by_systemd_socket_activate() {
    let name = "a_service_is_activated_by_systemd_socket_activate";
    let Some(place) = Place::new(name) else {
        return;
    };
    if !on_path("systemd-socket-activate") {
        return skipped(
            name,
            "systemd-socket-activate is not installed (package systemd)",
        );
    }
    let listens = place.path("service");
    let mut command = Command::new("systemd-socket-activate");
    command.arg(format!("--listen={}", listens.display()));
    command.arg("--setenv=XDG_RUNTIME_DIR");
    command.arg(binary().expect("there is a command"));
    command.args(["run", "--exec", "--resident", "4M", "--"]);
    command.arg(compiled("service", &[])).arg("16");
    command.env("XDG_RUNTIME_DIR", place.directory.path());
    let service = Started::new(&mut command);
    wait_until("systemd-socket-activate listens", || listens.exists());
    assert_eq!(answer(&listens), format!("{}\n", service.pid()));
    let (code, said) = service.stop();
    assert_eq!(code, Some(7), "{said}");
}

#[test]
fn a_signal_to_the_command_is_one_to_the_program() {
    let Some(place) = Place::new("a_signal_to_the_command_is_one_to_the_program") else {
        return;
    };
    let ready = place.path("ready");
    let script = "trap 'echo caught; exit 9' TERM; : >$READY; while :; do sleep 0.1; done";
    let mut command = place.exec(&[], "sh");
    command.args(["-c", script]).env("READY", &ready);
    let running = start(&mut command, b"");
    wait_until("the program is ready", || ready.exists());
    signal(&running, "TERM");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(9);
    assert_eq!(outcome.stdout_text(), "caught\n");
}

#[test]
fn a_program_that_forks_is_governed_as_ever() {
    let Some(place) = Place::new("a_program_that_forks_is_governed_as_ever") else {
        return;
    };
    let program = compile_c("hazards", "fork_verify", &[]);
    let program = program.unwrap_or_else(|error| panic!("{error}"));
    let mib = if is_slow() { "8" } else { "24" };
    let outcome = run(place.exec(&[], printable(&program)).arg(mib), LIMIT * 2);
    outcome.expect_code(0);
    assert_eq!(outcome.stderr_text(), "", "{}", outcome.describe());
}

/// Nobody is there to remove it when the last process ends: the next command does.
#[test]
fn the_run_directory_goes_with_the_next_command() {
    let Some(place) = Place::new("the_run_directory_goes_with_the_next_command") else {
        return;
    };
    let ready = place.path("ready");
    let script = "(echo $BASHPID >$READY; exec sleep 100) >/dev/null 2>&1 & sleep 0.1; exit 0";
    let mut command = place.exec(&[], "bash");
    command.args(["-c", script]).env("READY", &ready);
    let running = start(&mut command, b"");
    let name = format!("run-{}", running.pid());
    running.finish(LIMIT).expect_code(0);
    // A process that goes on keeps it.
    let daemon = || std::fs::read_to_string(&ready).unwrap_or_default();
    wait_until("the daemon has begun", || !daemon().is_empty());
    let daemon = daemon();
    let listed = run(&mut place.pagetide(&["ps"]), LIMIT);
    listed.expect_code(0);
    assert!(
        listed.stdout_text().contains(daemon.trim()),
        "{}",
        listed.describe()
    );
    assert_eq!(place.runs(), [name.as_str()]);
    let _ = Command::new("kill").arg(daemon.trim()).status();
    wait_until("the next command removes it", || {
        run(&mut place.pagetide(&["ps"]), LIMIT).expect_code(0);
        place.runs().is_empty()
    });
}

/// Between the command and the agent in the program nobody but a descriptor says that the run
/// lives.
#[test]
fn the_run_directory_stays_while_the_program_is_loaded() {
    let Some(place) = Place::new("the_run_directory_stays_while_the_program_is_loaded") else {
        return;
    };
    let library = compiled("slow_constructor", &["-shared", "-fPIC"]);
    let go = place.path("go");
    let mut command = place.exec(&[], "sh");
    command.args(["-c", "sort /etc/passwd >/dev/null; exit 5"]);
    command.env("LD_PRELOAD", library).env("SLOW_UNTIL", &go);
    let running = start(&mut command, b"");
    let waits = place.path("go.waits");
    wait_until("the program is being loaded", || waits.exists());
    run(&mut place.pagetide(&["ps"]), LIMIT).expect_code(0);
    assert_eq!(place.runs(), [format!("run-{}", running.pid())]);
    std::fs::write(&go, "").expect("it can be made");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(5);
    assert_eq!(outcome.stderr_text(), "", "{}", outcome.describe());
}

/// In a container that is started again, where each command is process 1.
#[test]
fn a_directory_left_by_an_earlier_process_of_that_number_is_in_nobodys_way() {
    let name = "a_directory_left_by_an_earlier_process_of_that_number_is_in_nobodys_way";
    let Some(place) = Place::new(name) else {
        return;
    };
    for option in ["", "--exec"] {
        let script = format!(
            "umask 077; mkdir -p $XDG_RUNTIME_DIR/pagetide/run-$$; \
             exec $pagetide run {option} --resident 4M -- sh -c 'exit 6'"
        );
        run(&mut place.shell(&script), LIMIT).expect_code(6);
    }
}

#[test]
fn runs_are_kept_and_found_where_it_is_said() {
    let Some(place) = Place::new("runs_are_kept_and_found_where_it_is_said") else {
        return;
    };
    let (here, elsewhere) = (place.path("here"), place.path("elsewhere"));
    for directory in [&here, &elsewhere] {
        std::fs::create_dir(directory).expect("it can be made");
    }
    let script = "echo $$; ls -d $1/run-*; $pagetide ps --json; $pagetide ps --json --run-dir $2";
    let option = format!("--run-dir={}", here.display());
    let ways: [(&[&str], &str, PathBuf); 3] = [
        (&[&option], "PAGETIDE_BASE_DIR", here.clone()),
        (&[], "PAGETIDE_BASE_DIR", here.clone()),
        (&[], "RUNTIME_DIRECTORY", here.join("pagetide")),
    ];
    std::fs::set_permissions(&here, PermissionsExt::from_mode(0o700)).expect("it is ours");
    for (options, variable, base) in ways {
        let mut command = place.pagetide(&["run", "--resident", "4M"]);
        command.args(options).args(["--", "sh", "-c", script, "sh"]);
        command.arg(&base).arg(&elsewhere);
        command.env("pagetide", binary().expect("there is a command"));
        command.env_remove("XDG_RUNTIME_DIR").env(variable, &here);
        let outcome = run(&mut command, LIMIT);
        outcome.expect_code(0);
        let told = outcome.stdout_text();
        let mut lines = told.lines();
        let pid = lines.next().expect("the shell's number");
        let run = lines.next().expect("a directory");
        assert!(run.starts_with(base.to_str().expect("a printable path")));
        let listed = lines.next().expect("those here");
        assert!(listed.contains(&format!("\"pid\":{pid},")), "{told}");
        assert_eq!(lines.next(), Some("[]"), "{told}");
    }
    std::fs::remove_dir(&elsewhere).expect("nothing is in it");
    let absent = format!("--run-dir={}", elsewhere.display());
    for arguments in [
        &["ps"][..],
        &["stat", "1"],
        &["limit", "1", "1M"],
        &["metrics", "--once"],
    ] {
        run(place.pagetide(arguments).arg(&absent), LIMIT)
            .expect_code(2)
            .expect_told("expected the directory that `pagetide run` was given with it");
    }
    let long = "x".repeat(80);
    let mut command = place.pagetide(&["run", "--run-dir", &long, "--", "true"]);
    run(&mut command, LIMIT)
        .expect_code(2)
        .expect_told("too many for the directory of runs; expected at most 76");
}

#[test]
fn what_is_said_is_said_on_the_programs_stderr() {
    let Some(place) = Place::new("what_is_said_is_said_on_the_programs_stderr") else {
        return;
    };
    // A page that the store has lost.
    let mut command = place.exec(
        &["--store", "fault:get-corrupt-after=300:ram:"],
        printable(&four_threads()),
    );
    let outcome = run(command.args(["32", "12"]), LIMIT * 2);
    // Where the kernel cannot poison a page (before 6.6), its loss is a SIGKILL.
    let signal = if can_poison() { 7 } else { 9 };
    outcome
        .expect_code(128 + signal)
        .expect_told("pagetide: data were lost: page at 0x");
    // The program itself, which the agent cannot live in; and a descendant, which runs without.
    let mut limited =
        place.shell("ulimit -v 100000; exec $pagetide run --exec --resident 4M -- echo ran");
    let outcome = run(&mut limited, LIMIT);
    outcome.expect_code(3).expect_told("ulimit -v");
    assert_eq!(outcome.stdout_text(), "", "{}", outcome.describe());
    let mut command = place.exec(&[], "bash");
    let outcome = run(
        command.args(["-c", "(ulimit -v 100000; exec /bin/echo ran); exit 4"]),
        LIMIT,
    );
    outcome.expect_code(4).expect_told("is not governed");
    assert_eq!(outcome.stdout_text(), "ran\n", "{}", outcome.describe());
}

fn four_threads() -> PathBuf {
    compiled("four_threads", &[])
}

#[test]
fn what_needs_a_command_at_the_end_is_refused() {
    let name = "what_needs_a_command_at_the_end_is_refused";
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let place = Place::new(name).expect("able");
    let file = scratch().join("never-written");
    for option in ["--stats", "--plot", "--trace"] {
        let outcome = run(
            place
                .exec(&[option, printable(&file)], "sh")
                .args(["-c", "echo ran"]),
            LIMIT,
        );
        outcome
            .expect_code(2)
            .expect_told(option)
            .expect_told("pagetide stat");
        assert!(
            outcome.stdout.is_empty() && !file.exists(),
            "{}",
            outcome.describe()
        );
    }
}

#[test]
fn a_locked_program_is_the_process_that_the_command_was() {
    let Some(place) = Place::new("a_locked_program_is_the_process_that_the_command_was") else {
        return;
    };
    let mut command = place.pagetide(&["run", "--exec", "--lock", "on-fault", "--"]);
    command.args(["sh", "-c", "echo $$; grep VmLck /proc/$$/status >&2"]);
    let running = start(&mut command, b"");
    let pid = running.pid();
    let outcome = running.finish(LIMIT);
    if outcome.code() == Some(3) {
        return skipped("run --exec --lock", &outcome.stderr_text());
    }
    outcome.expect_code(0);
    assert_eq!(outcome.stdout_text(), format!("{pid}\n"));
    let locked = number(
        &outcome.stderr_text().replace("VmLck:", "\"VmLck\":"),
        "VmLck",
    );
    assert!(locked > Some(0.0), "{}", outcome.describe());
}

/// The files of `examples/FOLDER` with the extension.
fn examples(folder: &str, extension: &str) -> Vec<PathBuf> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = std::fs::read_dir(examples.join(folder)).expect("a folder of examples");
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|other| other == extension))
        .collect()
}

/// systemd's own check has nothing to say of them.
#[test]
fn the_units_are_as_systemd_wants_them() {
    let name = "the_units_are_as_systemd_wants_them";
    if !on_path("systemd-analyze") {
        return skipped(name, "systemd-analyze is not installed (package systemd)");
    }
    let directory = tempfile::tempdir().expect("a directory can be made");
    let command = binary().expect("there is a command");
    let mut check = Command::new("systemd-analyze");
    check.args(["verify", "--man=no"]);
    for kind in ["service", "socket"] {
        for unit in examples("systemd", kind) {
            let text = std::fs::read_to_string(&unit).expect("it can be read");
            let installed = "ExecStart=/usr/bin/pagetide ";
            assert!(kind != "service" || text.contains(installed), "{text}");
            let here = format!("ExecStart={} ", command.display());
            let copy = directory
                .path()
                .join(unit.file_name().expect("it is a file"));
            std::fs::write(&copy, text.replace(installed, &here)).expect("it can be written");
            check.arg(copy);
        }
    }
    let outcome = run(&mut check, LIMIT);
    outcome.expect_code(0);
    assert_eq!(outcome.stderr_text(), "", "{}", outcome.describe());
}

fn manifest(name: &str) -> saphyr::YamlOwned {
    use saphyr::LoadableYamlNode as _;
    let all = examples("kubernetes", "yml");
    let path = all.iter().find(|path| path.ends_with(name));
    let path = path.unwrap_or_else(|| panic!("{name} is not there"));
    let text = std::fs::read_to_string(path).expect("it can be read");
    let mut documents =
        saphyr::YamlOwned::load_from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(documents.len(), 1, "{name}");
    documents.remove(0)
}

/// The words of a list.
fn words(list: &saphyr::YamlOwned) -> Vec<&str> {
    let list = list.as_sequence().expect("a list");
    list.iter()
        .map(|word| word.as_str().expect("a word"))
        .collect()
}

/// Its limit has room for more than the budget.
#[test]
fn the_pod_asks_for_what_the_device_plugin_gives() {
    use saphyr::LoadableYamlNode as _;
    let plugin = manifest("device-plugin.yml");
    let plugin = &plugin["spec"]["template"]["spec"]["containers"][0];
    let arguments = words(&plugin["args"]);
    let after = |option| {
        let at = arguments.iter().position(|word| *word == option);
        arguments[at.expect("the option is given") + 1]
    };
    let device = saphyr::YamlOwned::load_from_str(after("--device")).expect("it is YAML");
    let path = device[0]["groups"][0]["paths"][0]["path"].as_str();
    assert_eq!(path, Some("/dev/userfaultfd"));
    let name = device[0]["name"].as_str().expect("it has a name");
    let resource = format!("{}/{name}", after("--domain"));

    let pod = manifest("pod.yml");
    let container = &pod["spec"]["containers"][0];
    let limits = &container["resources"]["limits"];
    assert_eq!(
        limits[resource.as_str()].as_integer(),
        Some(1),
        "{resource}"
    );
    let bytes = |text: &str| {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = if text[digits.len()..].starts_with('M') {
            1 << 20
        } else {
            1 << 30
        };
        digits.parse::<u64>().expect("a number") * unit
    };
    let command = words(&container["command"]);
    assert_eq!(command[..4], ["pagetide", "run", "--exec", "--resident"]);
    let limit = limits["memory"].as_str().expect("there is a limit");
    assert!(
        bytes(limit) >= 2 * bytes(command[4]),
        "{limit}, {}",
        command[4]
    );
}
