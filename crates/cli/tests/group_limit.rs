//! A run in a memory cgroup that it does not fit in: what is said.
mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use support::compile::compile_c;
use support::pagetide::able;
use support::process::run;
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(120);
const GROUP_BYTES: u64 = 64 << 20;

/// A memory cgroup, removed at the end.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Result<Group, String> {
        let root = Path::new("/sys/fs/cgroup");
        let (root, bound) = if root.join("cgroup.controllers").exists() {
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
            (root.to_owned(), "memory.max")
        } else {
            (root.join("memory"), "memory.limit_in_bytes")
        };
        let directory = root.join(format!("pagetide-{name}-{}", std::process::id()));
        let failed = |error| format!("{}: {error}", directory.display());
        std::fs::create_dir(&directory).map_err(failed)?;
        let group = Group(directory.clone());
        // Made by the kernel: else this is no cgroup.
        match directory.join(bound).exists() {
            true => std::fs::write(directory.join(bound), GROUP_BYTES.to_string()),
            false => Err(std::io::ErrorKind::NotFound.into()),
        }
        .map_err(failed)?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Busy for a moment after its last process has been waited for.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{}: could not be removed", self.0.display());
    }
}

/// Runs a program of half as much again as `mib` MiB in a cgroup that allows 64; what was said, and
/// the exit code.
fn said(name: &str, options: &str, mib: &str) -> Option<(String, Option<i32>)> {
    let pagetide = match able() {
        Ok(pagetide) => pagetide,
        Err(reason) => {
            skipped(name, &reason);
            return None;
        }
    };
    let group = match Group::new(name) {
        Ok(group) => group,
        Err(reason) => {
            skipped(name, &format!("no memory cgroup can be made: {reason}"));
            return None;
        }
    };
    let program = compile_c("hazards", "munmap_whole", &[]).unwrap_or_else(|why| panic!("{why}"));
    let script = format!(r#"echo $$ > "$0/cgroup.procs" && exec "$1" run {options} -- "$2" {mib}"#);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).arg(&group.0);
    command.arg(pagetide).arg(program);
    let outcome = run(&mut command, LIMIT);
    Some((outcome.stderr_text(), outcome.code()))
}

#[test]
fn the_oom_killer_is_named_with_what_did_not_fit() {
    let name = "the_oom_killer_is_named_with_what_did_not_fit";
    let Some((text, code)) = said(name, "--resident 512M", "96") else {
        return;
    };
    assert_eq!(code, Some(137), "{text}");
    assert!(text.contains("the memory cgroup allows 64 MiB"), "{text}");
    assert!(text.contains("OOM killer ended a process"), "{text}");
    assert!(
        text.contains("whose limit is 64 MiB: the budget is 512 MiB"),
        "{text}"
    );
}

#[test]
fn a_run_that_fits_is_told_nothing() {
    let name = "a_run_that_fits_is_told_nothing";
    let options = "--resident 8M";
    let Some((text, code)) = said(name, options, "16") else {
        return;
    };
    assert_eq!((text.as_str(), code), ("", Some(0)));
}
