//! Compiles the C programs of the tests into the target directory, once each.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

/// A directory for this package's tests, inside the target directory.
pub fn scratch() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// The folder of this package's tests.
pub fn tests_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Whether `program` is on the path.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Whether `PAGETIDE_TESTS_PREBUILT` says that every program was compiled before: where the tests
/// run there is no compiler, or a slow one.
fn is_prebuilt() -> bool {
    std::env::var_os("PAGETIDE_TESTS_PREBUILT").is_some()
}

/// The C programs of `tests/FOLDER`, by name.
pub fn c_programs(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(tests_folder().join(folder)).expect("a folder of C programs");
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect()
}

/// Compiles `tests/FOLDER/NAME.c`; the error is the compiler's.
pub fn compile_c(folder: &str, name: &str, extra: &[&str]) -> Result<PathBuf, String> {
    static DONE: OnceLock<Mutex<HashMap<PathBuf, Result<PathBuf, String>>>> = OnceLock::new();
    let mut done = DONE
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = scratch().join(folder);
    let output = directory.join(format!("{name}{}", extra.concat()));
    done.entry(output.clone())
        .or_insert_with(|| compile(folder, name, extra, &output))
        .clone()
}

fn compile(folder: &str, name: &str, extra: &[&str], output: &Path) -> Result<PathBuf, String> {
    if is_prebuilt() {
        return match output.is_file() {
            true => Ok(output.to_owned()),
            false => Err(format!("{} was not compiled before", output.display())),
        };
    }
    let source = tests_folder().join(folder).join(format!("{name}.c"));
    std::fs::create_dir_all(output.parent().expect("inside a directory"))
        .map_err(|error| error.to_string())?;
    // Other test binaries may run the same program at this moment: put it in place by rename.
    let fresh = output.with_extension(std::process::id().to_string());
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let result = Command::new(&compiler)
        .args([
            "-O2",
            "-g",
            "-pthread",
            "-Wall",
            "-Werror",
            &format!("-DHAZARD=\"{name}\""),
            "-o",
        ])
        .args([&fresh, &source])
        .arg(format!("-I{}", tests_folder().join("hazards").display()))
        .args(extra)
        .output()
        .map_err(|error| format!("cannot start the C compiler `{compiler}`: {error}"))?;
    if !result.status.success() {
        return Err(format!(
            "{} does not compile:\n{}",
            source.display(),
            String::from_utf8_lossy(&result.stderr)
        ));
    }
    std::fs::rename(&fresh, output).map_err(|error| error.to_string())?;
    Ok(output.to_owned())
}
