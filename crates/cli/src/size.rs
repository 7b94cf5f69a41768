//! Sizes as people write and read them: `256M`, `1.5G`, `25%`, plain bytes; powers of 1024
//! throughout.
use std::fmt;
use std::str::FromStr;

/// The unit of paging, in bytes.
pub const PAGE_BYTES: u64 = 4096;

const EXPECTED: &str = "a size such as 256M, 1.5G or 1073741824 (bytes; K, M, G and T are powers \
    of 1024), \
                        or a share of the available memory such as 25%";

/// A resident budget as given on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// So many millionths of the memory available.
    Share {
        /// 1_000_000 is all of it.
        millionths: u32,
    },
}

/// Why a text is not a size: names the text and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with a known unit.
    #[error("'{0}' is not a size; expected {EXPECTED}")]
    Malformed(String),
    /// Less than one page.
    #[error(
        "'{0}' is less than one page ({PAGE_BYTES} bytes); expected one page or more, such as 4K \
         or 256M"
    )]
    BelowPage(String),
    /// More than 64 bits of bytes.
    #[error("'{0}' is more bytes than 64 bits can count; expected {EXPECTED}")]
    TooLarge(String),
    /// A share that is zero or more than everything.
    #[error("'{0}' is not a share of the available memory; expected more than 0% and at most 100%")]
    BadShare(String),
}

impl Size {
    /// The whole pages in this size, in bytes, where `available` bytes are what a share is of. At
    /// least one page.
    pub fn resolve(self, available: u64) -> u64 {
        let bytes = match self {
            Size::Bytes(bytes) => bytes,
            Size::Share { millionths } => {
                (u128::from(available) * u128::from(millionths) / 1_000_000) as u64
            }
        };
        (bytes / PAGE_BYTES * PAGE_BYTES).max(PAGE_BYTES)
    }
}

/// Splits a decimal number into its digits and the power of ten they are over; `None` if it is not
/// one.
fn decimal(text: &str) -> Option<(u128, u128)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > 24 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((digits.parse().ok()?, 10u128.pow(fraction.len() as u32)))
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Size, SizeError> {
        let malformed = || SizeError::Malformed(text.to_owned());
        let number_end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(number_end);
        let (digits, scale) = decimal(number).ok_or_else(malformed)?;
        if unit == "%" {
            let millionths = digits * 10_000 / scale;
            if millionths == 0 || digits > 100 * scale {
                return Err(SizeError::BadShare(text.to_owned()));
            }
            return Ok(Size::Share {
                millionths: millionths as u32,
            });
        }
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "ki" | "kib" => 10,
            "m" | "mb" | "mi" | "mib" => 20,
            "g" | "gb" | "gi" | "gib" => 30,
            "t" | "tb" | "ti" | "tib" => 40,
            _ => return Err(malformed()),
        };
        let bytes = digits
            .checked_mul(1 << shift)
            .map(|scaled| scaled / scale)
            .and_then(|bytes| u64::try_from(bytes).ok())
            .ok_or_else(|| SizeError::TooLarge(text.to_owned()))?;
        if bytes < PAGE_BYTES {
            return Err(SizeError::BelowPage(text.to_owned()));
        }
        Ok(Size::Bytes(bytes))
    }
}

/// A budget as `run` is given it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Resident {
    /// So much.
    Fixed(Size),
    /// The least with which the program loses no more than this share of its time.
    Automatic {
        /// From 0.001 to 1.
        slowdown: f64,
    },
}

impl FromStr for Resident {
    type Err = String;

    fn from_str(text: &str) -> Result<Resident, String> {
        /// What may be lost if it is not said.
        const SLOWDOWN: f64 = 0.1;
        let share = match text.strip_prefix("auto") {
            Some("") => return Ok(Resident::Automatic { slowdown: SLOWDOWN }),
            Some(rest) => rest.strip_prefix(':'),
            None => {
                let size = text.parse().map_err(|error: SizeError| match error {
                    SizeError::Malformed(_) => {
                        format!("{error}, or auto or auto:10%, which follows what the program uses")
                    }
                    other => other.to_string(),
                });
                return size.map(Resident::Fixed);
            }
        };
        let percent = share.and_then(|share| share.strip_suffix('%'));
        let percent = percent.and_then(|number| number.parse::<f64>().ok());
        percent
            .filter(|percent| (0.1..=100.0).contains(percent))
            .map(|percent| Resident::Automatic {
                slowdown: percent / 100.0,
            })
            .ok_or_else(|| {
                format!(
                    "'{text}' is no budget; expected auto, or auto:10% with the share of its time \
                     that the program may lose, from 0.1% to 100%"
                )
            })
    }
}

/// Bytes in the unit a person would choose: `4 KiB`, `256 MiB`, `1.50 GiB`.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&scaled(
            self.0 as f64,
            1024.0,
            &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"],
        ))
    }
}

/// Nanoseconds in the unit a person would choose: `850 ns`, `12.5 us`, `3.20 ms`.
#[derive(Debug, Clone, Copy)]
pub struct Nanoseconds(pub u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&scaled(self.0 as f64, 1000.0, &["ns", "us", "ms", "s"]))
    }
}

/// A count or rate in the unit a person would choose: `950`, `12.5 k`, `3.20 M`.
#[derive(Debug, Clone, Copy)]
pub struct Count(pub f64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A sum of no numbers is -0.
        f.pad(scaled(self.0 + 0.0, 1000.0, &["", "k", "M", "G"]).trim_end())
    }
}

/// The same as [`Nanoseconds`] in at most five characters, for narrow columns: `850ns`, `12us`,
/// `3.2ms`.
#[derive(Debug, Clone, Copy)]
pub struct ShortNanoseconds(pub u64);

impl fmt::Display for ShortNanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut units) = (self.0 as f64, ["ns", "us", "ms", "s"].into_iter());
        let mut unit = units.next().unwrap_or_default();
        // 0.5 below the step rounds up to it.
        while value >= 999.5
            && let Some(next) = units.next()
        {
            (value, unit) = (value / 1000.0, next);
        }
        let digits = usize::from(unit != "ns" && value < 9.95);
        f.pad(&format!("{value:.digits$}{unit}"))
    }
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // 0.5 below the step rounds up to it.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if unit == 0 || value.fract() == 0.0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_people_write_are_read() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4K", 4096),
            ("256M", 256 << 20),
            ("256m", 256 << 20),
            ("256MiB", 256 << 20),
            ("256MB", 256 << 20),
            ("1.5G", 3 << 29),
            ("0.5G", 1 << 29),
            (".5G", 1 << 29),
            ("16Gi", 16 << 30),
            ("2T", 2 << 40),
            ("5000", 5000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!(
            "25%".parse(),
            Ok(Size::Share {
                millionths: 250_000
            })
        );
        assert_eq!(
            "12.5%".parse(),
            Ok(Size::Share {
                millionths: 125_000
            })
        );
        assert_eq!(
            "100%".parse(),
            Ok(Size::Share {
                millionths: 1_000_000
            })
        );
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in [
            "", "M", "-1", "-5M", "1.2.3M", ".", ".G", "12X", "1 G", "0x10", "1e9", "%", "25%%",
            "\u{661}M", "1.G ",
        ] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::Malformed(text.into())));
        }
        for text in ["0", "4095", "0M", "3.9K"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::BelowPage(text.into())));
        }
        for text in ["18446744073709551616", "99999999999999T"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::TooLarge(text.into())));
        }
        for text in ["0%", "101%", "100.01%", "99999999999%"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::BadShare(text.into())));
        }
    }

    #[test]
    fn budgets_are_whole_pages_and_at_least_one() {
        assert_eq!(Size::Bytes(5000).resolve(0), 4096);
        assert_eq!(Size::Bytes(8192).resolve(0), 8192);
        assert_eq!(
            Size::Share {
                millionths: 250_000
            }
            .resolve(1 << 30),
            1 << 28
        );
        assert_eq!(Size::Share { millionths: 1 }.resolve(1 << 20), 4096);
    }

    #[test]
    fn people_get_chosen_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1000, "1000 B"),
            (4096, "4 KiB"),
            (1536, "1.50 KiB"),
            (256 << 20, "256 MiB"),
            ((256 << 20) + 4096, "256 MiB"),
            (3 << 29, "1.50 GiB"),
            ((1 << 30) - 1, "1.00 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Nanoseconds(12_500).to_string(), "12.5 us");
        assert_eq!(Count(12_500.0).to_string(), "12.5 k");
        assert_eq!(Count(17.0).to_string(), "17");
        assert_eq!(Count(std::iter::empty::<f64>().sum()).to_string(), "0");
    }

    #[test]
    fn short_times_have_five_characters_at_most() {
        for (ns, text) in [
            (0, "0ns"),
            (850, "850ns"),
            (1180, "1.2us"),
            (9_960, "10us"),
            (64_300, "64us"),
            (999_499, "999us"),
            (999_500, "1.0ms"),
            (3_200_000_000, "3.2s"),
        ] {
            assert_eq!(ShortNanoseconds(ns).to_string(), text);
        }
        let mut ns: u64 = 1;
        while ns < 9_999_000_000_000 {
            let text = ShortNanoseconds(ns).to_string();
            assert!(text.len() <= 5, "{ns}: {text}");
            ns += 1 + ns / 7;
        }
    }

    #[test]
    fn what_may_be_a_budget_is_said_in_full() {
        let said = "abc".parse::<Resident>().unwrap_err();
        for way in ["'abc' is not a size", "256M", "25%", "auto:10%"] {
            assert!(said.contains(way), "{way} is not in: {said}");
        }
        let small = "1K".parse::<Resident>().unwrap_err();
        assert!(!small.contains("auto"), "{small}");
    }
}
