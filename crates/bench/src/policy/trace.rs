//! Traces: the pages a program touched, in order.
use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use pagetide_pager::recorder;

use super::accesses;

/// A trace, its pages numbered from 0 in the order of their first access.
#[derive(Debug, Clone)]
pub struct Trace {
    /// For the table.
    pub name: String,
    /// Different pages.
    pub pages: usize,
    /// One page number each.
    pub accesses: Vec<u32>,
}

impl Trace {
    /// Of pages by any numbers.
    pub fn new(name: String, pages: impl Iterator<Item = u64>) -> Trace {
        let mut numbers = HashMap::new();
        let accesses = pages
            .map(|page| {
                let next = numbers.len() as u32;
                *numbers.entry(page).or_insert(next)
            })
            .collect();
        Trace {
            name,
            pages: numbers.len(),
            accesses,
        }
    }
}

/// Reads a recorded trace of faults or of accesses, or text with a page number a line (decimal, or
/// hexadecimal after 0x; # begins a comment).
pub fn read(path: &Path) -> Result<Trace> {
    let named = |kind, what: String| Error::new(kind, format!("{}: {what}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| named(error.kind(), error.to_string()))?;
    let name = path.file_name().map_or_else(
        || path.display().to_string(),
        |n| n.to_string_lossy().into_owned(),
    );
    let invalid = |what: String| named(ErrorKind::InvalidData, what);
    if let Some(records) = recorder::parse(&bytes).map_err(&invalid)? {
        return Ok(Trace::new(name, records.map(|record| record.page.0)));
    }
    if let Some(accesses) = accesses::parse(&bytes) {
        return Ok(Trace::new(name, accesses.map(|access| access.page)));
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        let known = "`pagetide run --trace`, of `record-accesses`";
        invalid(format!("neither a trace of {known}, nor text"))
    })?;
    let mut pages = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let number = match line.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => line.parse(),
        };
        pages.push(number.map_err(|_| {
            let at = index + 1;
            invalid(format!(
                "line {at}: '{line}' is not a page number; expected one a line, such as 42 or 0x2a"
            ))
        })?);
    }
    Ok(Trace::new(name, pages.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_and_a_wrong_line_is_named() {
        let path = std::env::temp_dir().join(format!("pagetide-trace-{}", std::process::id()));
        std::fs::write(&path, "# pages\n7\n0x7\n 9 # again\n").unwrap();
        let trace = read(&path).unwrap();
        assert_eq!((trace.pages, &trace.accesses[..]), (2, &[0, 0, 1][..]));
        std::fs::write(&path, "7\nx\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 2: 'x'"));
        std::fs::remove_file(&path).unwrap();
    }
}
