//! RFC 3339 timestamps.

/// Seconds since 1970 and nanoseconds; `None` if the text is not an RFC 3339 timestamp.
pub fn parse(text: &str) -> Option<(i64, i32)> {
    let (date, time) = text.split_once(['T', 't'])?;
    let (days, time) = (days_of(date)?, time);
    let zone_at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone_at);
    let (seconds, nanos) = clock_of(clock)?;
    Some((days * 86_400 + seconds - zone_of(zone)?, nanos))
}

/// `2024-01-02T03:04:05Z`.
pub fn format(seconds: i64) -> String {
    let (days, clock) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil_of(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", clock / 3600, clock / 60 % 60, clock % 60)
}

fn days_of(date: &str) -> Option<i64> {
    let mut parts = date.split('-');
    let (year, month, day) = (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    if parts.next().is_some() || !(1..=12).contains(&month) || !(1..=days_in(year, month)).contains(&day) {
        return None;
    }
    Some(days_from_civil(year, month, day))
}

fn clock_of(clock: &str) -> Option<(i64, i32)> {
    let (whole, fraction) = clock.split_once('.').map_or((clock, None), |(w, f)| (w, Some(f)));
    let mut parts = whole.split(':');
    let (hour, minute, second) = (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    if parts.next().is_some() || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let nanos = match fraction {
        None => 0,
        Some(f) if (1..=9).contains(&f.len()) => digits(&format!("{f:0<9}"), 9)?,
        Some(_) => return None,
    };
    Some((hour * 3600 + minute * 60 + second, i32::try_from(nanos).ok()?))
}

/// The offset from UTC in seconds.
fn zone_of(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn digits(text: &str, count: usize) -> Option<i64> {
    (text.len() == count && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970. Years are counted from March, so that the leap day comes last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = (shifted + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::{format, parse};

    #[test]
    fn timestamps_are_read() {
        assert_eq!(parse("1970-01-01T00:00:00Z"), Some((0, 0)));
        assert_eq!(parse("2024-02-29T12:30:45Z"), Some((1_709_209_845, 0)));
        assert_eq!(parse("2024-02-29T12:30:45.25+02:00"), Some((1_709_202_645, 250_000_000)));
        assert_eq!(parse("1969-12-31T23:59:59Z"), Some((-1, 0)));
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "2024-01-01", "2023-02-29T00:00:00Z", "2024-13-01T00:00:00Z", "2024-01-01T24:00:00Z"] {
            assert_eq!(parse(text), None, "{text}");
        }
        for text in ["2024-01-01T00:00:00", "2024-01-01T00:00:00.Z", "+024-01-01T00:00:00Z", "2024-01-01T00:00:00+é"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_reads_the_same() {
        for seconds in (-4_000_000_000..9_000_000_000i64).step_by(86_399_983) {
            assert_eq!(parse(&format(seconds)), Some((seconds, 0)), "{}", format(seconds));
        }
    }
}
