//! Seconds since 1970 as the date and time they are in UTC.

const DAY_SECONDS: u64 = 86_400;
/// From 1 March of the year 0 to 1 January 1970: counted from a March, the leap day is a year's last.
const DAYS_BEFORE_1970: u64 = 719_468;
/// The calendar repeats itself after 400 years of so many days.
const ERA_DAYS: u64 = 146_097;

/// `2026-11-22 02:43:16 UTC`.
pub fn utc(unix_seconds: u64) -> String {
    let days = unix_seconds / DAY_SECONDS + DAYS_BEFORE_1970;
    let (era, day) = (days / ERA_DAYS, days % ERA_DAYS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months from March on have 153 days in every five.
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year + u64::from(month <= 2);
    let second = unix_seconds % DAY_SECONDS;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
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
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
