//! Small files of /proc and /sys, read and written with errors that name them.
use std::fs;
use std::io::{Error, Result};
use std::path::Path;

/// The trimmed contents of a file.
pub fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    let text = fs::read_to_string(path).map_err(|error| named(path, "reading", &error))?;
    Ok(text.trim().to_owned())
}

/// Writes a value to a file that exists.
pub fn write(path: impl AsRef<Path>, value: impl AsRef<str>) -> Result<()> {
    let path = path.as_ref();
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, value.as_ref().as_bytes()))
        .map_err(|error| named(path, &format!("writing `{}` to", value.as_ref()), &error))
}

fn named(path: &Path, doing: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("{doing} {}: {error}", path.display()))
}

/// A field of /proc/PID/status in bytes.
pub fn status_bytes(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
