//! Command-line values that several benchmarks read, and arguments that are wrong.
use std::fmt;
use std::io::{Error, ErrorKind};

use clap::builder::RangedU64ValueParser;

/// An argument that is wrong for what another says, or for what is on this machine: exit code 2.
#[derive(Debug)]
pub struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

impl Usage {
    /// As an error of the command.
    pub fn error(text: String) -> Error {
        Error::new(ErrorKind::InvalidInput, Usage(text))
    }

    /// Whether it is why a command failed.
    pub fn is_cause_of(error: &Error) -> bool {
        error.get_ref().is_some_and(|cause| cause.is::<Usage>())
    }
}

/// Reads a number that is not 0.
pub fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// Reads a number of runs.
pub fn runs() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=100)
}

/// Reads a size such as `10G`, `256M` or a number of bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    pagetide_store::parse_size(text).map_err(|error| error.to_string())
}

/// Reads a size in whole pages.
pub fn size(text: &str) -> Result<usize, String> {
    let whole = |bytes: &u64| *bytes > 0 && bytes.is_multiple_of(4096);
    let size = bytes(text).ok().filter(whole);
    size.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        format!("'{text}' is not a size; expected whole pages such as 10G, 256M or 1073741824")
    })
}

/// Reads percent of something, more than none and at most all of it.
pub fn share(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err(format!(
            "'{text}' is not a share in percent; expected more than 0 and at most 100"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_pages() {
        assert_eq!(size("10G"), Ok(10 << 30));
        assert_eq!(size("256M"), Ok(256 << 20));
        assert_eq!(size("8192"), Ok(8192));
        for wrong in ["", "G", "1.3K", "4095", "0", "99999999999T", "1X", "-1"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_more_than_nothing_and_at_most_everything() {
        assert_eq!(share("0.5"), Ok(0.5));
        assert_eq!(share("100%"), Ok(100.0));
        for wrong in ["0", "-1", "100.1", "101", "nan", "inf", "", "1x", "0%"] {
            assert!(share(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
