//! Reading a program's ELF headers: will the dynamic linker of this machine load the agent into it?
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::elf::{ET_DYN, ET_EXEC, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, ReadCache};

#[cfg(target_arch = "x86_64")]
const MACHINE: (object::elf::Machine, &str) = (object::elf::EM_X86_64, "x86-64");
#[cfg(target_arch = "aarch64")]
const MACHINE: (object::elf::Machine, &str) = (object::elf::EM_AARCH64, "AArch64");

/// What an ELF file is to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Loaded by this dynamic linker, which takes the agent.
    Dynamic(PathBuf),
    /// The dynamic linker itself, run as a command.
    Linker,
    /// No dynamic linker takes part.
    Static,
    /// 32-bit, or made for another architecture.
    Foreign(String),
    /// Not a program at all.
    Broken(String),
}

/// Why the agent cannot be loaded into `program`, and what to do; `None` if it can, or the file
/// cannot be read.
pub fn refusal(program: &Path) -> Option<String> {
    let agent_needs = "the agent is loaded by the dynamic linker of the C library it was built for";
    match classify(program)? {
        Kind::Linker => None,
        Kind::Dynamic(linker)
            if linker
                .as_os_str()
                .as_bytes()
                .windows(7)
                .any(|w| w == b"ld-musl") =>
        {
            Some(format!(
                "it uses the musl C library ({}), and {agent_needs}, glibc; run a build of it for \
             glibc",
                linker.display()
            ))
        }
        Kind::Dynamic(linker) if !linker.exists() => Some(format!(
            "its dynamic linker {} does not exist; install it",
            linker.display()
        )),
        Kind::Dynamic(_) => None,
        Kind::Static => Some(
            "it is statically linked, and the agent is loaded by the dynamic linker; build it \
             without -static \
             (a Go program: with cgo, or `go build -ldflags=-linkmode=external`), or use the \
             pagetide library in it"
                .into(),
        ),
        Kind::Foreign(what) => Some(format!(
            "it is a {what} program, and {agent_needs}, {}; run a build of it for \
                that",
            MACHINE.1
        )),
        Kind::Broken(why) => Some(format!("it is not a program this system can run ({why})")),
    }
}

/// Whether the dynamic linker of this machine could load `file` into a program.
pub fn is_library(file: &Path) -> bool {
    matches!(
        classify(file),
        Some(Kind::Dynamic(_) | Kind::Linker | Kind::Static)
    )
}

/// What the ELF file is; `None` if it cannot be read.
pub fn classify(program: &Path) -> Option<Kind> {
    let cache = ReadCache::new(File::open(program).ok()?);
    let broken = |error: object::Error| Some(Kind::Broken(error.to_string()));
    let identity = match object::ReadRef::read_bytes_at(&cache, 0, 20) {
        Ok(bytes) => bytes,
        Err(()) => return Some(Kind::Broken("its header is cut short".into())),
    };
    if identity[4] != object::elf::ELFCLASS64.0 {
        return Some(Kind::Foreign("32-bit".into()));
    }
    let header = match FileHeader64::<Endianness>::parse(&cache) {
        Ok(header) => header,
        Err(error) => return broken(error),
    };
    let endian = match header.endian() {
        Ok(endian) => endian,
        Err(error) => return broken(error),
    };
    let machine = header.e_machine(endian);
    if machine != MACHINE.0 || endian != Endianness::default() {
        return Some(Kind::Foreign(format!(
            "foreign (ELF machine {})",
            machine.0
        )));
    }
    let kind = header.e_type(endian);
    if kind != ET_DYN && kind != ET_EXEC {
        return Some(Kind::Broken(format!("ELF type {}", kind.0)));
    }
    let segments = match header.program_headers(endian, &cache) {
        Ok(segments) => segments,
        Err(error) => return broken(error),
    };
    let Some(interpreter) = segments.iter().find(|s| s.p_type(endian) == PT_INTERP) else {
        return Some(if is_linker(program) {
            Kind::Linker
        } else {
            Kind::Static
        });
    };
    let Ok(name) = interpreter.data(endian, &cache) else {
        return Some(Kind::Broken(
            "its dynamic linker's name is cut short".into(),
        ));
    };
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    Some(Kind::Dynamic(PathBuf::from(OsStr::from_bytes(name))))
}

/// `ld-linux-x86-64.so.2 PROGRAM` has no linker above it, but loads the agent all the same.
fn is_linker(program: &Path) -> bool {
    let real = program
        .canonicalize()
        .unwrap_or_else(|_| program.to_path_buf());
    real.file_name()
        .is_some_and(|name| name.as_bytes().starts_with(b"ld-") || name == "ld.so")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_system_s_own_programs_are_dynamic() {
        for program in ["/bin/true", "/bin/sh"] {
            assert!(
                matches!(classify(Path::new(program)), Some(Kind::Dynamic(_))),
                "{program}"
            );
            assert_eq!(refusal(Path::new(program)), None, "{program}");
        }
    }

    #[test]
    fn static_programs_and_the_linker_itself_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let (source, out) = (dir.path().join("a.c"), dir.path().join("a"));
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        for flag in ["-static", "-static-pie"] {
            let built = Command::new("gcc")
                .arg(flag)
                .arg("-o")
                .arg(&out)
                .arg(&source)
                .status();
            if !built.is_ok_and(|status| status.success()) {
                eprintln!("SKIPPED: gcc {flag} does not work here");
                continue;
            }
            assert_eq!(classify(&out), Some(Kind::Static), "{flag}");
            assert!(refusal(&out).unwrap().contains("statically linked"));
        }
        let Some(Kind::Dynamic(linker)) = classify(Path::new("/bin/true")) else {
            panic!("/bin/true is not dynamic")
        };
        assert_eq!(classify(&linker), Some(Kind::Linker));
    }

    #[test]
    fn headers_of_other_machines_and_damaged_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        let good = std::fs::read("/bin/true").unwrap();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            std::fs::write(&file, bytes).unwrap();
            classify(&file).unwrap()
        };
        assert_eq!(with(4, 1), Kind::Foreign("32-bit".into()));
        assert!(matches!(with(18, 8), Kind::Foreign(_)));
        assert!(matches!(with(16, 1), Kind::Broken(_)));
        assert!(matches!(with(5, 9), Kind::Broken(_)));
        std::fs::write(&file, &good[..12]).unwrap();
        assert!(matches!(classify(&file), Some(Kind::Broken(_))));
        std::fs::write(&file, &good[..64]).unwrap();
        assert!(matches!(classify(&file), Some(Kind::Broken(_))));
        assert_eq!(classify(&dir.path().join("none")), None);
    }
}
