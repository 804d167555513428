//! A moment in the past, as users write it.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::config::timestamp;

/// A time or the number of a snapshot.
#[derive(Clone, Debug)]
pub(crate) enum Moment {
    Snapshot(u64),
    /// In RFC 3339.
    Time(String),
}

impl Moment {
    /// As the server reads it.
    pub(crate) fn text(&self) -> String {
        match self {
            Moment::Snapshot(number) => number.to_string(),
            Moment::Time(text) => text.clone(),
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        if let Ok(number) = text.parse() {
            return Ok(Moment::Snapshot(number));
        }
        if timestamp::parse(text).is_some() {
            return Ok(Moment::Time(text.to_owned()));
        }
        let ago = duration(text).ok_or("expected RFC 3339, a duration such as 10m, or the number of a snapshot")?;
        let then = SystemTime::now().checked_sub(ago).and_then(|then| then.duration_since(UNIX_EPOCH).ok());
        let then = then.ok_or("before 1970")?;
        Ok(Moment::Time(timestamp::format(i64::try_from(then.as_secs()).unwrap_or_default())))
    }
}

/// A duration, for the command line.
pub(crate) fn parsed_duration(text: &str) -> Result<Duration, String> {
    duration(text).ok_or_else(|| "expected a duration such as 90s, 10m or 2h".to_owned())
}

/// A duration such as `90s`, `10m` or `2h`.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.find(|letter: char| !letter.is_ascii_digit())?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::{Moment, duration};

    #[test]
    fn times_snapshots_and_durations_are_read() {
        assert!(matches!("17".parse(), Ok(Moment::Snapshot(17))));
        assert!(matches!("2026-01-02T03:04:05Z".parse(), Ok(Moment::Time(text)) if text == "2026-01-02T03:04:05Z"));
        assert!(matches!("10m".parse(), Ok(Moment::Time(_))));
        assert_eq!(duration("2h").map(|time| time.as_secs()), Some(7200));
        for bad in ["", "m", "10x", "yesterday", "99999999999999999999s"] {
            assert!(bad.parse::<Moment>().is_err(), "{bad}");
        }
    }
}
