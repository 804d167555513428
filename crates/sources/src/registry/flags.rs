//! Flags that registries declare. `pilot-discovery` adds them to its command line and returns their values.

use std::collections::BTreeMap;
use std::time::Duration;

/// One flag of `pilot-discovery`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistryFlag {
    /// Name without dashes.
    pub name: &'static str,
    pub kind: FlagKind,
    /// The placeholder of the value in the help text.
    pub value_name: &'static str,
    /// The value where the flag is absent; empty for none.
    pub default: &'static str,
    pub help: &'static str,
}

/// What a flag accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagKind {
    Text,
    /// A Go duration such as `2s`.
    Duration,
}

/// Values of the flags of all registries, defaults included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlagValues {
    /// The DNS suffix of the mesh, `--domain`.
    pub domain: String,
    /// By flag name.
    pub values: BTreeMap<&'static str, String>,
}

impl FlagValues {
    /// A flag's text; empty where it was not given.
    pub fn text(&self, flag: &str) -> &str {
        self.values.get(flag).map_or("", String::as_str)
    }

    /// Items of a comma-separated flag.
    pub fn list(&self, flag: &str) -> Vec<String> {
        let items = self.text(flag).split(',').map(str::trim);
        items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }

    /// A flag of kind [`FlagKind::Duration`]; the command line has checked it.
    pub fn duration(&self, flag: &str) -> Duration {
        let parsed = model::duration::parse(self.text(flag));
        parsed.and_then(|parsed| Duration::try_from(parsed).ok()).unwrap_or_default()
    }
}
