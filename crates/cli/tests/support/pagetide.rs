//! Finds the command and its agent, and says whether paging works on this system.
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::process::{Outcome, run};

/// The command: the one cargo built for these tests, or the one named by `PAGETIDE`.
pub fn binary() -> Result<PathBuf, String> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY
        .get_or_init(|| {
            let path = std::env::var_os("PAGETIDE")
                .or_else(|| option_env!("CARGO_BIN_EXE_pagetide").map(Into::into))
                .map(PathBuf::from)
                .ok_or("there is no `pagetide` command in this package yet")?;
            build_agent(&path)?;
            Ok(path)
        })
        .clone()
}

/// Puts copies of the command and its agent into `directory`, which anybody may use from then on.
pub fn copy_for_anybody(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let readable = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    };
    readable(directory);
    let binary = binary().expect("there is a command");
    for from in [binary.with_file_name("libpagetide_preload.so"), binary] {
        let to = directory.join(from.file_name().expect("it is a file"));
        std::fs::copy(&from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        readable(&to);
    }
}

/// Cargo builds the command for the tests but not the shared library that it loads into programs.
fn build_agent(binary: &Path) -> Result<(), String> {
    let directory = binary.parent().ok_or("the command has no directory")?;
    // When the command was given from outside, its agent is as it is.
    if std::env::var_os("PAGETIDE").is_some() {
        return Ok(());
    }
    let release = directory.file_name() == Some(OsStr::new("release"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--package", "pagetide-preload"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.env(
        "CARGO_TARGET_DIR",
        directory
            .parent()
            .ok_or("the command is not in a target directory")?,
    );
    if release {
        cargo.arg("--release");
    }
    let output = cargo
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    let agent = directory.join("libpagetide_preload.so");
    if output.status.success() && agent.exists() {
        return Ok(());
    }
    Err(format!(
        "{} could not be built:\n{}",
        agent.display(),
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// The command if programs can be paged here, otherwise the reason why not.
pub fn able() -> Result<PathBuf, String> {
    static ABLE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    ABLE.get_or_init(|| {
        if std::env::var_os("PAGETIDE_TESTS_NATIVE").is_some() {
            return Err("PAGETIDE_TESTS_NATIVE asks for the native half only".to_owned());
        }
        // A missing command or agent is a failure of the build, not of this system: those tests
        // must not count as skipped.
        let binary = binary().unwrap_or_else(|error| panic!("{error}"));
        let doctor = run(Command::new(&binary).arg("doctor"), Duration::from_secs(30));
        match doctor.code() {
            Some(3) => Err(format!(
                "this system cannot page programs; pagetide doctor says:\n{}",
                doctor.stdout_text()
            )),
            Some(0 | 1) => Ok(binary),
            _ => panic!("pagetide doctor failed: {}", doctor.describe()),
        }
    })
    .clone()
}

/// `pagetide run OPTIONS -- PROGRAM`, to which arguments can be added. `PAGETIDE_TESTS_STORE` is
/// the store of all that name none, and `PAGETIDE_TESTS_OPTIONS` more options, of all.
pub fn governed(options: &[&str], program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(binary().expect("able() was asked first"));
    command.arg("run").args(options);
    let more = std::env::var("PAGETIDE_TESTS_OPTIONS").unwrap_or_default();
    command.args(more.split_whitespace());
    if let Some(store) = std::env::var_os("PAGETIDE_TESTS_STORE")
        && !options.contains(&"--store")
    {
        command.arg("--store").arg(store);
    }
    command.arg("--").arg(program);
    command
}

/// Whether a governed program can fork: before Linux 5.11 its `fork` fails, as documented.
pub fn can_fork() -> bool {
    pagetide_kernel::probe::syscall_user_dispatch().is_ok()
}

/// Whether a lost page can raise SIGBUS: before Linux 6.6 it is the process's end, as documented.
pub fn can_poison() -> bool {
    let features = pagetide_kernel::probe::userfaultfd_features();
    features.is_ok_and(|features| features & pagetide_kernel::uffd::feature::POISON != 0)
}

/// The command if programs can be paged here and fork, otherwise the reason why not.
pub fn able_to_fork() -> Result<PathBuf, String> {
    let binary = able()?;
    match can_fork() {
        true => Ok(binary),
        false => Err(NO_FORK.to_owned()),
    }
}

/// Whether a program of the hazards ended because it could not fork, as documented.
pub fn could_not_fork(outcome: &Outcome) -> bool {
    outcome.code() == Some(1) && outcome.stderr_text().contains("fork: ") && !can_fork()
}

/// Why a governed program cannot fork here.
pub const NO_FORK: &str =
    "fork fails with an error, as documented: no syscall user dispatch (Linux 5.11)";

/// The number of a field in a JSON object, without a parser: enough for flat objects of our own
/// making.
pub fn number(json: &str, field: &str) -> Option<f64> {
    let rest = json
        .split_once(&format!("\"{field}\""))?
        .1
        .trim_start()
        .strip_prefix(':')?
        .trim_start();
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && !"+-.eE".contains(c))
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The largest value a field has over all objects of a statistics file.
pub fn largest(stats: &str, field: &str) -> Option<f64> {
    stats
        .split('{')
        .filter_map(|object| number(object, field))
        .max_by(f64::total_cmp)
}

/// The command with these arguments, once [`able`] was asked.
pub fn pagetide(arguments: &[&str], limit: Duration) -> Outcome {
    let mut command = Command::new(binary().expect("able() was asked first"));
    run(command.args(arguments), limit)
}

/// The largest number `field` of a running process, or of the one that launcher `pid` has.
pub fn number_of(pid: &str, field: &str) -> f64 {
    let outcome = pagetide(&["stat", pid, "--json"], Duration::from_secs(60));
    largest(&outcome.stdout_text(), field).unwrap_or(0.0)
}
