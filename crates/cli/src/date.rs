//! Seconds since 1970 as the date and time they are in UTC.

use time::OffsetDateTime;

/// `2026-11-22 02:43:16 UTC`; the number itself where it is no date.
pub fn utc(unix_seconds: u64) -> String {
    let seconds = i64::try_from(unix_seconds).ok();
    match seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok()) {
        Some(moment) => {
            let (hour, minute, second) = moment.to_hms();
            format!("{} {hour:02}:{minute:02}:{second:02} UTC", moment.date())
        }
        None => format!("{unix_seconds} s after 1970"),
    }
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_795_314_174, "2026-11-22 02:22:54 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (u64::MAX, "18446744073709551615 s after 1970"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
