//! Environment variables as a value. It is read once in `main`, so tests never touch the process environment.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, anyhow};

/// All environment variables, by name.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The environment of this process. Variables that are not UTF-8 are skipped.
    pub fn of_process() -> Environment {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Environment(std::env::vars_os().filter_map(text).collect())
    }

    /// The value of a variable; `None` if it is not set or empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Variables whose name has this prefix, as (name without the prefix, value).
    pub fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let inside = self.0.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_str())));
        inside.filter(|(name, _)| !name.is_empty())
    }

    /// Parses a number; the default if the variable is unset.
    pub fn number<T: FromStr<Err: Display>>(&self, name: &str, default: T) -> Result<T> {
        let read = |text: &str| text.trim().parse().map_err(|e| anyhow!("could not read ${name}={text:?}: {e}"));
        self.get(name).map_or(Ok(default), read)
    }

    /// Parses a boolean as Go's `strconv.ParseBool` does; the default if the variable is unset.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(default),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
            Some(other) => Err(anyhow!("could not read ${name}={other:?}: neither true nor false")),
        }
    }

    /// Parses a Go duration; the default if the variable is unset.
    pub fn duration(&self, name: &str, default: Duration) -> Result<Duration> {
        let read = |text: &str| {
            let parsed = model::duration::parse(text).and_then(|duration| Duration::try_from(duration).ok());
            parsed.ok_or_else(|| anyhow!("could not read ${name}={text:?}: not a duration such as 30s"))
        };
        self.get(name).map_or(Ok(default), read)
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Environment {
        Environment(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Environment;

    #[test]
    fn values_are_parsed_by_type_and_errors_name_the_variable() {
        let env: Environment = [("A", "true"), ("B", "5s"), ("C", "7"), ("D", "x"), ("E", "")].into_iter().collect();
        assert!(env.flag("A", false).unwrap() && env.flag("E", true).unwrap());
        assert_eq!(env.duration("B", Duration::ZERO).unwrap(), Duration::from_secs(5));
        assert_eq!((env.number("C", 0).unwrap(), env.number("missing", 3).unwrap()), (7, 3));
        let refused =
            [env.flag("D", true).is_err(), env.number("D", 0).is_err(), env.duration("D", Duration::ZERO).is_err()];
        assert_eq!(refused, [true; 3]);
        assert!(env.number("D", 0).unwrap_err().to_string().contains("$D"));
    }

    #[test]
    fn prefix_is_stripped_from_names() {
        let env: Environment = [("ISTIO_META_X", "1"), ("ISTIO_META_", "2"), ("OTHER", "3")].into_iter().collect();
        assert_eq!(env.with_prefix("ISTIO_META_").collect::<Vec<_>>(), [("X", "1")]);
    }
}
