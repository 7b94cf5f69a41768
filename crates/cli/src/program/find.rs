//! Finding a command in `PATH` as `execvp` does, with the answers a shell gives when there is none.
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::exit::{Exit, Failure};
use crate::size::Resident;

/// What the C library searches when `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The file that `command` names: itself if it has a slash, else the first executable of that name
/// in `path`.
pub fn find(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let shown = Path::new(command).display();
    if command.is_empty() {
        return Err(Failure::new(
            Exit::NotFound,
            "the command is empty; expected a program and its arguments after --",
        ));
    }
    if command.as_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return match judge(&file) {
            Found::Executable => Ok(file),
            Found::Nothing => Err(Failure::new(
                Exit::NotFound,
                format!("{shown}: no such file; check the path of the program"),
            )),
            Found::Other(why) => Err(Failure::new(Exit::NotExecutable, format!("{shown}: {why}"))),
        };
    }
    let mut refused = None;
    for directory in path
        .unwrap_or(OsStr::new(DEFAULT_PATH))
        .as_bytes()
        .split(|b| *b == b':')
    {
        // An empty entry is the working directory; "./" keeps the name from being searched for
        // again.
        let directory = if directory.is_empty() {
            OsStr::new(".")
        } else {
            OsStr::from_bytes(directory)
        };
        let file = Path::new(directory).join(command);
        match judge(&file) {
            Found::Executable => return Ok(file),
            Found::Nothing => {}
            Found::Other(why) => refused = refused.or(Some(format!("{}: {why}", file.display()))),
        }
    }
    Err(match refused {
        Some(message) => Failure::new(Exit::NotExecutable, message),
        None => {
            let next = match command
                .to_str()
                .and_then(|word| word.parse::<Resident>().ok())
            {
                Some(_) => format!("if it is the budget: pagetide run --resident {shown} -- CMD"),
                None => "check the name, or give the program's path".to_owned(),
            };
            let text = format!("{shown}: command not found in PATH; {next}");
            Failure::new(Exit::NotFound, text)
        }
    })
}

enum Found {
    Executable,
    Nothing,
    Other(String),
}

fn judge(file: &Path) -> Found {
    match std::fs::metadata(file) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Found::Other("a directory on its path may not be searched".into())
        }
        Err(_) => Found::Nothing,
        Ok(meta) if meta.is_dir() => Found::Other("is a directory; expected a program".into()),
        Ok(_) => match accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS) {
            Ok(()) => Found::Executable,
            Err(error) => Found::Other(format!(
                "may not be executed ({error}); make it executable with chmod +x"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit_of(command: &str, path: Option<&str>) -> Exit {
        find(OsStr::new(command), path.map(OsStr::new))
            .unwrap_err()
            .exit
    }

    #[test]
    fn the_first_executable_in_path_order_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("a"), dir.path().join("b"));
        for d in [&first, &second] {
            std::fs::create_dir(d).unwrap();
            std::fs::write(d.join("tool"), "").unwrap();
        }
        std::fs::set_permissions(
            second.join("tool"),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let path = format!("/no/such:{}:{}", first.display(), second.display());
        assert_eq!(
            find(OsStr::new("tool"), Some(OsStr::new(&path))).unwrap(),
            second.join("tool")
        );
        let only_first = first.display().to_string();
        assert_eq!(exit_of("tool", Some(&only_first)), Exit::NotExecutable);
    }

    #[test]
    fn what_is_not_there_is_127_and_what_may_not_run_126() {
        assert_eq!(
            exit_of("no-such-command-here", Some("/bin:/usr/bin")),
            Exit::NotFound
        );
        let size = find(OsStr::new("64M"), Some(OsStr::new("/bin"))).unwrap_err();
        assert!(size.message.contains("--resident 64M -- CMD"), "{size}");
        assert_eq!(exit_of("/no/such/file", None), Exit::NotFound);
        assert_eq!(exit_of("/etc/passwd", None), Exit::NotExecutable);
        assert_eq!(exit_of("/etc", None), Exit::NotExecutable);
        assert_eq!(exit_of("", None), Exit::NotFound);
        assert!(find(OsStr::new("sh"), None).is_ok());
    }
}
