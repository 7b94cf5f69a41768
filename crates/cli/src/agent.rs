//! Finding the agent, the shared library that puts a program's memory under the pager.
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pagetide_pager::protocol::environment::{AGENT_FILE, LD_PRELOAD, Variables};

use crate::exit::{Exit, Failure};
use crate::program::elf;

/// File name of the agent.
pub const FILE_NAME: &str = "libpagetide_preload.so";

/// Where the agent may be, seen from the directory of this executable: beside it, installed under
/// the same prefix, and (for test programs) beside cargo's `deps`.
const PLACES: [&str; 4] = [".", "../lib/pagetide", "../lib", ".."];

/// The agent's absolute path.
pub fn find() -> Result<PathBuf, Failure> {
    let executable = std::env::current_exe()
        .and_then(|path| path.canonicalize())
        .unwrap_or_default();
    find_from(
        std::env::var_os(AGENT_FILE),
        executable.parent().unwrap_or(Path::new("/")),
    )
}

fn find_from(named: Option<OsString>, directory: &Path) -> Result<PathBuf, Failure> {
    let candidates: Vec<PathBuf> = match &named {
        Some(file) if !file.is_empty() => vec![PathBuf::from(file)],
        _ => PLACES
            .iter()
            .map(|place| directory.join(place).join(FILE_NAME))
            .collect(),
    };
    let cannot = |message: String| Failure::new(Exit::CannotPage, message);
    let mut files = candidates
        .iter()
        .filter_map(|file| file.canonicalize().ok());
    let Some(agent) = files.find(|file| file.is_file()) else {
        let looked: Vec<String> = candidates
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        return Err(cannot(format!(
            "the agent {FILE_NAME} was not found (looked at {}); install it with `make install`, \
             build it with `cargo build --release -p pagetide-preload`, or name its file in \
             {AGENT_FILE}",
            looked.join(", ")
        )));
    };
    let shown = agent.display();
    if !elf::is_library(&agent) {
        return Err(cannot(format!(
            "'{shown}' is not a shared library of this machine's kind, so it is not the agent \
             {FILE_NAME}; name its file in {AGENT_FILE}, or unset that"
        )));
    }
    let is_odd = |b: &u8| b.is_ascii_whitespace() || matches!(b, b':' | b'$');
    if agent.as_os_str().as_bytes().iter().any(is_odd) {
        return Err(cannot(format!(
            "the agent's path '{shown}' has a space, ':' or '$', which LD_PRELOAD cannot hold; \
             move it, or name a copy in {AGENT_FILE}"
        )));
    }
    Ok(agent)
}

/// `variables`, and the one that has the agent loaded.
pub fn preloaded(agent: &Path, mut variables: Variables) -> Variables {
    let list = preload_list(agent, std::env::var_os(LD_PRELOAD));
    variables.push((LD_PRELOAD, list));
    variables
}

/// `LD_PRELOAD` for the program: the agent, then what was there before.
fn preload_list(agent: &Path, before: Option<OsString>) -> OsString {
    let mut list = agent.as_os_str().to_owned();
    for entry in before
        .unwrap_or_default()
        .as_bytes()
        .split(|b| matches!(b, b':' | b' '))
    {
        if !entry.is_empty() && entry != agent.as_os_str().as_bytes() {
            list.push(":");
            list.push(std::ffi::OsStr::from_bytes(entry));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library of this machine's kind, if not the agent.
    fn put_library(path: &Path) {
        std::fs::copy("/bin/true", path).unwrap();
    }

    #[test]
    fn the_agent_is_found_beside_the_executable_and_under_its_prefix() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for place in ["bin", "lib/pagetide"] {
            std::fs::create_dir_all(root.join(place)).unwrap();
        }
        let failure = find_from(None, &root.join("bin")).unwrap_err();
        assert_eq!(failure.exit, Exit::CannotPage);
        assert!(failure.message.contains("make install"), "{failure}");
        let installed = root.join("lib/pagetide").join(FILE_NAME);
        put_library(&installed);
        assert_eq!(find_from(None, &root.join("bin")).unwrap(), installed);
        let beside = root.join("bin").join(FILE_NAME);
        put_library(&beside);
        assert_eq!(find_from(None, &root.join("bin")).unwrap(), beside);
        assert_eq!(
            find_from(Some(installed.clone().into()), &root.join("bin")).unwrap(),
            installed
        );
        assert!(find_from(Some("/no/such/agent.so".into()), &root.join("bin")).is_err());
        std::fs::write(&beside, "not a library").unwrap();
        let failure = find_from(None, &root.join("bin")).unwrap_err();
        assert!(
            failure.message.contains("not a shared library"),
            "{failure}"
        );
    }

    #[test]
    fn a_path_that_ld_preload_cannot_hold_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a:b");
        std::fs::create_dir(&odd).unwrap();
        put_library(&odd.join(FILE_NAME));
        assert!(
            find_from(None, &odd)
                .unwrap_err()
                .message
                .contains("LD_PRELOAD")
        );
    }

    #[test]
    fn the_agent_comes_first_and_once() {
        let agent = Path::new("/a.so");
        assert_eq!(preload_list(agent, None), "/a.so");
        assert_eq!(preload_list(agent, Some("".into())), "/a.so");
        assert_eq!(
            preload_list(agent, Some("/b.so:/a.so /c.so".into())),
            "/a.so:/b.so:/c.so"
        );
    }
}
