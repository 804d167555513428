//! Parameters of requests, from the query string.

use std::time::Duration;

use crate::error::ApiError;
use crate::store::Revision;

/// What to do about fields that a kind does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// How a resource version of a list is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    NotOlderThan,
    Exact,
}

/// Parameters of all kinds of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) is_watch: bool,
    /// `None` if absent; 0 means any version.
    pub(crate) revision: Option<Revision>,
    pub(crate) version_match: Option<VersionMatch>,
    pub(crate) limit: usize,
    pub(crate) continue_token: String,
    pub(crate) label_selector: String,
    pub(crate) field_selector: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) allows_bookmarks: bool,
    pub(crate) sends_initial_events: bool,
    pub(crate) field_manager: String,
    pub(crate) is_forced: bool,
    pub(crate) is_dry_run: bool,
    pub(crate) field_validation: Option<FieldValidation>,
    /// What happens to the objects that a deleted one owns.
    pub(crate) propagation: String,
    /// What rows of tables contain: `Metadata` by default, `Object` or `None`.
    pub(crate) include_object: String,
}

impl Query {
    pub(crate) fn parse(text: &str) -> Result<Query, ApiError> {
        let mut query = Query {
            is_watch: false,
            revision: None,
            version_match: None,
            limit: 0,
            continue_token: String::new(),
            label_selector: String::new(),
            field_selector: String::new(),
            timeout: None,
            allows_bookmarks: false,
            sends_initial_events: false,
            field_manager: String::new(),
            is_forced: false,
            is_dry_run: false,
            field_validation: None,
            propagation: String::new(),
            include_object: String::new(),
        };
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            query.set(&name, &value)?;
        }
        Ok(query)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ApiError> {
        let bad =
            |expected: &str| ApiError::bad_request(format!("Invalid value {value:?} of {name}: expected {expected}"));
        let number = || value.parse::<u64>().map_err(|_| bad("a number"));
        match name {
            "watch" => self.is_watch = is_true(value),
            "resourceVersion" if value.is_empty() => {}
            "resourceVersion" => self.revision = Some(number()?),
            "resourceVersionMatch" => {
                self.version_match = match value {
                    "" => None,
                    "Exact" => Some(VersionMatch::Exact),
                    "NotOlderThan" => Some(VersionMatch::NotOlderThan),
                    _ => return Err(bad("Exact or NotOlderThan")),
                };
            }
            "limit" => self.limit = usize::try_from(number()?).unwrap_or(usize::MAX),
            "continue" => value.clone_into(&mut self.continue_token),
            "labelSelector" => value.clone_into(&mut self.label_selector),
            "fieldSelector" => value.clone_into(&mut self.field_selector),
            "timeoutSeconds" => self.timeout = Some(Duration::from_secs(number()?)).filter(|limit| !limit.is_zero()),
            "allowWatchBookmarks" => self.allows_bookmarks = is_true(value),
            "sendInitialEvents" => self.sends_initial_events = is_true(value),
            "fieldManager" => {
                if value.len() > 128 || value.chars().any(|c| !(' '..='~').contains(&c)) {
                    return Err(bad("at most 128 printable characters"));
                }
                value.clone_into(&mut self.field_manager);
            }
            "force" => self.is_forced = is_true(value),
            "dryRun" => match value {
                "" => {}
                "All" => self.is_dry_run = true,
                _ => return Err(bad("All")),
            },
            "fieldValidation" => {
                self.field_validation = Some(match value {
                    "" | "Warn" => FieldValidation::Warn,
                    "Strict" => FieldValidation::Strict,
                    "Ignore" => FieldValidation::Ignore,
                    _ => return Err(bad("Ignore, Warn or Strict")),
                });
            }
            "propagationPolicy" => value.clone_into(&mut self.propagation),
            "includeObject" => value.clone_into(&mut self.include_object),
            _ => {}
        }
        Ok(())
    }
}

fn is_true(value: &str) -> bool {
    !["false", "0", "False", "FALSE", "f", "F"].contains(&value)
}

#[cfg(test)]
mod tests {
    use super::{FieldValidation, Query, VersionMatch};

    #[test]
    fn parameters_are_decoded() {
        let query =
            Query::parse("watch=1&resourceVersion=7&labelSelector=a%3Db%2Cc&limit=500&fieldValidation=Strict&x=y");
        let query = query.unwrap();
        assert!(query.is_watch);
        assert_eq!((query.revision, query.limit), (Some(7), 500));
        assert_eq!(query.label_selector, "a=b,c");
        assert_eq!(query.field_validation, Some(FieldValidation::Strict));
        assert_eq!(Query::parse("resourceVersion=&watch=false").unwrap(), Query::parse("").unwrap());
        assert_eq!(Query::parse("resourceVersionMatch=Exact").unwrap().version_match, Some(VersionMatch::Exact));
    }

    #[test]
    fn malformed_values_are_errors_of_the_client() {
        for bad in ["resourceVersion=x", "limit=-1", "dryRun=Some", "fieldValidation=no", "resourceVersionMatch=Any"] {
            assert_eq!(Query::parse(bad).unwrap_err().code, 400, "{bad}");
        }
    }
}
