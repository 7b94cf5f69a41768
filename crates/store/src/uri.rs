//! Store URIs: `scheme:rest?option=value&option=value`, and sizes written by people.

use crate::{ErrorKind, StoreError};
#[cfg(feature = "remote")]
use std::time::Duration;

/// Digits after the point that a size may have.
const FRACTION_DIGITS: usize = 6;

/// The part after the scheme, taken apart.
pub(crate) struct Parts<'a> {
    /// What stands before the options.
    pub(crate) place: &'a str,
    options: Vec<(&'a str, &'a str)>,
}

impl<'a> Parts<'a> {
    /// Takes `rest` apart and checks its options against those `scheme` knows.
    pub(crate) fn parse(
        scheme: &str,
        rest: &'a str,
        known: &[&str],
    ) -> Result<Parts<'a>, StoreError> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let options: Vec<_> = query
            .split('&')
            .filter(|option| !option.is_empty())
            .map(|option| option.split_once('=').unwrap_or((option, "")))
            .collect();
        if let Some((name, _)) = options.iter().find(|(name, _)| !known.contains(name)) {
            let known = known.join(", ");
            return Err(config(format!(
                "unknown option `{name}` of the {scheme} store; its options are: {known}"
            )));
        }
        for (at, (name, value)) in options.iter().enumerate() {
            if let Some((_, first)) = options[..at].iter().find(|(other, _)| other == name) {
                return Err(config(format!(
                    "option `{name}` of the {scheme} store is there twice, as `{first}` and as \
                     `{value}`; leave one of them"
                )));
            }
        }
        Ok(Parts { place, options })
    }

    /// The value of an option.
    pub(crate) fn option(&self, name: &str) -> Option<&'a str> {
        self.options
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    }

    /// The value of an option that is a size.
    pub(crate) fn size(&self, name: &str) -> Result<Option<u64>, StoreError> {
        self.option(name)
            .map(|value| {
                parse_size(value).map_err(|mut error| {
                    error.context = format!("option `{name}`: {}", error.context);
                    error
                })
            })
            .transpose()
    }

    /// The value of an option that is 1 or 0. Named alone it is on.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, StoreError> {
        match self.option(name) {
            None | Some("0") => Ok(false),
            Some("1" | "") => Ok(true),
            Some(other) => Err(config(format!(
                "option `{name}`: `{other}` is neither 1 nor 0"
            ))),
        }
    }
}

/// What `file:PLACE` names: `file:///path` is the same as `file:/path`, an empty host.
pub(crate) fn file_place(place: &str) -> &str {
    let path = place.strip_prefix("//");
    path.filter(|path| path.starts_with('/')).unwrap_or(place)
}

/// The directory that `uri` names, if it is `file:DIR`, for what keeps files of its own there.
///
/// # Errors
/// It has options, which are those of a run's store, or names nothing.
pub fn file_directory(uri: &str) -> Result<Option<&str>, StoreError> {
    let Some(rest) = uri.strip_prefix("file:") else {
        return Ok(None);
    };
    match (rest.split_once('?'), file_place(rest)) {
        (Some((_, options)), _) => Err(config(format!(
            "`{uri}`: the options of `file:` are for the pages of a run; leave `?{options}` out"
        ))),
        (None, "") => Err(config("`file:` names no directory; write file:DIR")),
        (None, place) => Ok(Some(place)),
    }
}

pub(crate) fn config(context: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Config, context)
}

/// Bytes named by a size such as `4096`, `512M`, `1.5G`, `2GiB`: units are binary and of either
/// case.
pub fn parse_size(text: &str) -> Result<u64, StoreError> {
    let refused = || {
        config(format!(
            "`{text}` is not a size: write bytes (4096) or a number with K, M, G or T (512M, 1.5G)"
        ))
    };
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KI" | "KIB" => 10,
        "M" | "MB" | "MI" | "MIB" => 20,
        "G" | "GB" | "GI" | "GIB" => 30,
        "T" | "TB" | "TI" | "TIB" => 40,
        _ => return Err(refused()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let dangling = number.len() > whole.len() && fraction.is_empty();
    if dangling || fraction.len() > FRACTION_DIGITS || (shift == 0 && !fraction.is_empty()) {
        return Err(refused());
    }
    // Exact arithmetic: with floats, sizes of terabytes would come out bytes off.
    let digits: u64 = format!("{whole}{fraction}")
        .parse()
        .map_err(|_| refused())?;
    let bytes = (u128::from(digits) << shift) / 10u128.pow(fraction.len() as u32);
    u64::try_from(bytes).map_err(|_| refused())
}

/// The time named by a text such as `500ms`, `5s`, `10m`, `24h`, or `5` for seconds.
#[cfg(feature = "remote")]
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u32 = number.parse().ok()?;
    let one = match unit {
        "us" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "" | "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        _ => return None,
    };
    Some(one * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let good = [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("1K", 1024),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("1.5G", 3 << 29),
            ("2GiB", 2 << 30),
            ("2Gi", 2 << 30),
            (".5G", 1 << 29),
            ("0.5T", 1 << 39),
            ("1.001k", 1025),
        ];
        for (text, bytes) in good {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in [
            "",
            "G",
            ".",
            "1.",
            ".5G ",
            "-1",
            "1.5",
            "1.2.3K",
            "1X",
            "99999999999999999999",
            "99999999T",
            " 1G",
        ] {
            let error = parse_size(text).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Config, "{text}");
            assert!(error.to_string().contains(&format!("`{text}`")));
        }
    }

    #[cfg(feature = "remote")]
    #[test]
    fn durations() {
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("5"), Some(Duration::from_secs(5)));
        assert_eq!(parse_duration("24h"), Some(Duration::from_secs(86_400)));
        for text in ["", "s", "-1s", "1.5s", "1 s", "99999999999s", "5d"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn options() {
        let parts = Parts::parse("x", "/a/b?keep=0&max=2K", &["keep", "max"]).unwrap();
        assert_eq!(parts.place, "/a/b");
        assert_eq!(parts.size("max").unwrap(), Some(2048));
        assert!(!parts.flag("keep").unwrap());
        let twice = Parts::parse("x", "/a?max=1&max=2", &["max"]).err().unwrap();
        assert!(twice.to_string().contains("`max`") && twice.to_string().contains("twice"));
        let error = Parts::parse("x", "/a?kep=1", &["keep", "max"])
            .err()
            .unwrap();
        assert!(error.to_string().contains("`kep`") && error.to_string().contains("keep, max"));
        assert!(
            Parts::parse("x", "?keep=yes", &["keep"])
                .unwrap()
                .flag("keep")
                .is_err()
        );
    }
}
