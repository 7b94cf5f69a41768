//! The program to run: found as `execvp` finds it, and known to take the agent before it is
//! started.
pub mod elf;
pub mod find;
pub mod privilege;

use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};

/// Interpreters that may follow each other, as the kernel allows.
const INTERPRETERS_MAX: usize = 5;

/// Checks that `program`, or the interpreter its `#!` line leads to, will load the agent. What
/// cannot be read is not judged: the launcher notices afterwards if the agent did not load.
pub fn check(program: &Path) -> Result<(), Failure> {
    let mut image = program.to_path_buf();
    for _ in 0..=INTERPRETERS_MAX {
        let Some(head) = head(&image) else {
            return Ok(());
        };
        if let Some(interpreter) = script_interpreter(&head) {
            if !interpreter.exists() {
                return Err(Failure::new(
                    Exit::NotExecutable,
                    format!(
                        "{}: its interpreter {} does not exist; correct the #! line or install it",
                        image.display(),
                        interpreter.display()
                    ),
                ));
            }
            image = interpreter;
            continue;
        }
        // As execvp does: a file that is no program is a script for /bin/sh.
        if !head.starts_with(b"\x7fELF") {
            image = PathBuf::from("/bin/sh");
            continue;
        }
        let refusal = elf::refusal(&image).or_else(|| privilege::refusal(&image));
        let Some(reason) = refusal else { return Ok(()) };
        let subject = if image == program {
            image.display().to_string()
        } else {
            format!("{} (which runs {})", image.display(), program.display())
        };
        return Err(Failure::new(
            Exit::CannotPage,
            format!("{subject} cannot be paged: {reason}"),
        ));
    }
    Err(Failure::new(
        Exit::NotExecutable,
        format!(
            "{}: more than {INTERPRETERS_MAX} interpreters lead to each other",
            program.display()
        ),
    ))
}

/// The first bytes of a file, as many as the kernel looks at.
fn head(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(256);
    File::open(path)
        .ok()?
        .take(256)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// The interpreter in a `#!` line.
fn script_interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let name = line
        .split(|b| matches!(b, b' ' | b'\t' | 0))
        .find(|word| !word.is_empty())?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_of_a_script_is_read_as_the_kernel_reads_it() {
        let read =
            |text: &str| script_interpreter(text.as_bytes()).map(|p| p.display().to_string());
        assert_eq!(read("#!/bin/sh\necho\n").as_deref(), Some("/bin/sh"));
        assert_eq!(
            read("#! \t/usr/bin/env python3\n").as_deref(),
            Some("/usr/bin/env")
        );
        assert_eq!(read("#!/bin/sh"), Some("/bin/sh".into()));
        assert_eq!(read("#!\n/bin/sh"), None);
        assert_eq!(read("echo"), None);
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        assert!(check(&script).is_ok());
        std::fs::write(&script, "#!/no/such/interpreter -x\n").unwrap();
        let failure = check(&script).unwrap_err();
        assert_eq!(failure.exit, Exit::NotExecutable);
        assert!(
            failure.message.contains("/no/such/interpreter"),
            "{failure}"
        );
        std::fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(check(&script).unwrap_err().exit, Exit::NotExecutable);
    }
}
