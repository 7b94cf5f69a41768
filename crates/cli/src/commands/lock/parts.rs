//! Ranges and durations as people write them.
use std::time::Duration;

use crate::size::PAGE_BYTES;

/// Reads `OFFSET:LENGTH`, both sizes, the offset a multiple of the page.
pub fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let expected = "expected OFFSET:LENGTH such as 0:64M or 1G:512M, the offset a multiple of 4096";
    let (offset, len) = text
        .split_once(':')
        .ok_or_else(|| format!("'{text}' is not a range; {expected}"))?;
    let size = |part: &str| {
        pagetide_store::parse_size(part)
            .map_err(|_| format!("'{part}' in '{text}' is not a size; {expected}"))
    };
    let (offset, len) = (size(offset)?, size(len)?);
    if offset % PAGE_BYTES != 0 {
        return Err(format!(
            "'{text}': the offset, {offset} bytes, is no multiple of {PAGE_BYTES}, where a page \
             begins; {expected}"
        ));
    }
    if len < PAGE_BYTES {
        return Err(format!(
            "'{text}': the length, {len} bytes, is less than a page ({PAGE_BYTES}); {expected}"
        ));
    }
    Ok((offset, len))
}

/// Reads seconds, or a number with `ms`, `s`, `m`, `h` or `d`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time; expected 30 (seconds), 500ms, 10m, 2h or 1d");
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * factor;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero() && time.as_secs() < 1 << 32)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_begin_on_a_page() {
        assert_eq!(parse_range("0:64M"), Ok((0, 64 << 20)));
        assert_eq!(parse_range("4096:1G"), Ok((4096, 1 << 30)));
        for wrong in ["", "5", "1:4096", "0:0", "0:", "a:b", "0:25%"] {
            assert!(parse_range(wrong).is_err(), "{wrong}");
        }
        let why = |text| parse_range(text).unwrap_err();
        assert!(
            why("1:4096").contains("no multiple of 4096")
                && why("0:1").contains("less than a page")
        );
    }

    #[test]
    fn durations_have_units() {
        for (text, ms) in [("2", 2000), ("1.5s", 1500), ("10m", 600_000), ("50ms", 50)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)));
        }
        for wrong in ["", "0", "s", "-1", "1w", "1e9d", "99999999999d"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
