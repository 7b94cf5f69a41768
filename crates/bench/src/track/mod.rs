//! Measurements of tracking: write-protecting memory ([`wp`]), dirty tracking ([`dirty`]), snapshots beside `fork`
//! ([`snapshot`]), and bringing them back ([`restore`]).
pub mod dirty;
pub mod memory;
pub mod plot;
pub mod restore;
pub mod snapshot;
pub mod wp;
pub mod writers;

use std::time::Duration;

/// Reads a size such as `10G`, `256M` or a number of bytes; whole pages.
pub fn size(text: &str) -> Result<usize, String> {
    let expected =
        || format!("'{text}' is not a size; expected whole pages such as 10G, 256M or 1073741824");
    let (digits, shift) = match text.trim_end_matches(['i', 'B']).char_indices().next_back() {
        Some((at, unit)) if unit.is_ascii_alphabetic() => {
            let shift = match unit.to_ascii_uppercase() {
                'K' => 10,
                'M' => 20,
                'G' => 30,
                'T' => 40,
                _ => return Err(expected()),
            };
            (&text[..at], shift)
        }
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| expected())?;
    let bytes = number
        .checked_shl(shift)
        .filter(|bytes| bytes >> shift == number);
    bytes
        .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(4096))
        .ok_or_else(expected)
}

/// The middle value; the mean of the two middle ones of an even number.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len.is_multiple_of(2) => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// Microseconds, with their fraction.
pub fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_pages() {
        assert_eq!(size("10G"), Ok(10 << 30));
        assert_eq!(size("256M"), Ok(256 << 20));
        assert_eq!(size("8192"), Ok(8192));
        for wrong in ["", "G", "1.5G", "4095", "0", "99999999999T", "1X", "-1"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
