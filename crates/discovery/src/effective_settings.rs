//! Each flag and environment variable of this server with its value and origin: `pilot-discovery settings` and the page
//! `/debug/settings`. Passwords and tokens are not shown.

use std::fmt::Write;

use model::settings::Knobs;
use serde::Serialize;

use crate::args::DiscoveryFlags;
use crate::environment::{Environment, PROCESS_VARIABLES};

/// One flag or variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffectiveSetting {
    /// `--NAME` for a flag.
    pub name: String,
    pub value: String,
    pub origin: SettingOrigin,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SettingOrigin {
    Default,
    Flag,
    Environment,
    /// The variable could not be read; the default is in effect.
    Invalid,
}

impl SettingOrigin {
    fn name(self) -> &'static str {
        match self {
            SettingOrigin::Default => "default",
            SettingOrigin::Flag => "flag",
            SettingOrigin::Environment => "environment",
            SettingOrigin::Invalid => "default (the variable could not be read)",
        }
    }
}

/// All settings: flags, settings of the mesh, other variables; each part by name.
pub fn settings(args: &DiscoveryFlags, environment: Environment<'_>) -> Vec<EffectiveSetting> {
    let flags = args.values.iter().map(|flag| EffectiveSetting {
        value: hidden(&flag.name, &flag.value),
        name: format!("--{}", flag.name),
        origin: if flag.is_given { SettingOrigin::Flag } else { SettingOrigin::Default },
    });
    let (knobs, invalid) = Knobs::read(environment);
    let mut variables: Vec<EffectiveSetting> = knobs
        .shown()
        .into_iter()
        .map(|(name, value)| {
            let origin = match environment(name) {
                None => SettingOrigin::Default,
                Some(_) if invalid.contains(&name) => SettingOrigin::Invalid,
                Some(_) => SettingOrigin::Environment,
            };
            EffectiveSetting { value: hidden(name, &value), name: name.to_owned(), origin }
        })
        .collect();
    let others = PROCESS_VARIABLES.iter().map(|name| {
        let value = environment(name);
        let origin = if value.is_some() { SettingOrigin::Environment } else { SettingOrigin::Default };
        EffectiveSetting { name: (*name).to_owned(), value: hidden(name, &value.unwrap_or_default()), origin }
    });
    variables.extend(others);
    variables.sort_by(|a, b| a.name.cmp(&b.name));
    flags.chain(variables).collect()
}

/// The settings as a table.
pub fn table(settings: &[EffectiveSetting]) -> String {
    let widest = |of: fn(&EffectiveSetting) -> usize| settings.iter().map(of).max().unwrap_or_default().min(60);
    let (names, values) = (widest(|s| s.name.len()), widest(|s| s.value.len()));
    let mut text = format!("{:names$}  {:values$}  ORIGIN", "NAME", "VALUE");
    for EffectiveSetting { name, value, origin } in settings {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{name:names$}  {value:values$}  {}", origin.name());
    }
    text
}

/// The value without secrets: those of flags and variables that hold one, and passwords in URLs.
fn hidden(name: &str, value: &str) -> String {
    let name = name.to_lowercase();
    let is_secret = ["password", "token", "secret"].iter().any(|word| name.contains(word));
    let is_path =
        name.ends_with("file") || name.ends_with("path") || name.ends_with("dir") || name.ends_with("audiences");
    let is_switch = matches!(value, "" | "true" | "false") || value.ends_with(['s', 'm', 'h']) && value.len() < 8;
    if is_secret && !is_path && !is_switch {
        return "(hidden)".to_owned();
    }
    value.split(',').map(without_password).collect::<Vec<_>>().join(",")
}

fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match host.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://(hidden)@{host}{path}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{EffectiveSetting, SettingOrigin, hidden, settings, table};
    use crate::args::{Cli, DiscoveryCommand};

    fn of(flags: &[&str], variables: &[(&str, &str)]) -> Vec<EffectiveSetting> {
        let line = ["pilot-discovery", "discovery"].iter().chain(flags).map(|word| (*word).to_owned());
        let DiscoveryCommand::Discovery(args) = Cli::read(line).unwrap().command else { panic!("not discovery") };
        let look_up = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
        settings(&args, &look_up)
    }

    #[test]
    fn every_setting_has_a_value_and_an_origin() {
        let flags = ["--registries=Consul", "--domain", "mesh.test"];
        let all = of(&flags, &[("PILOT_HTTP10", "true"), ("PILOT_DEBOUNCE_AFTER", "soon"), ("POD_NAME", "a-1")]);
        let check = |name: &str, value: &str, origin: SettingOrigin| {
            let found = all.iter().find(|setting| setting.name == name).unwrap_or_else(|| panic!("no {name}"));
            assert_eq!((&*found.value, found.origin), (value, origin), "{name}");
        };
        check("--registries", "Consul", SettingOrigin::Flag);
        check("--domain", "mesh.test", SettingOrigin::Flag);
        check("--grpcAddr", ":15010", SettingOrigin::Default);
        check("PILOT_HTTP10", "true", SettingOrigin::Environment);
        check("PILOT_DEBOUNCE_AFTER", "100ms", SettingOrigin::Invalid);
        check("PILOT_DEBOUNCE_MAX", "10s", SettingOrigin::Default);
        check("POD_NAME", "a-1", SettingOrigin::Environment);
        assert!(table(&all).lines().any(|line| line.starts_with("--grpcAddr ") && line.ends_with(" default")));
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(hidden("consultoken", "abc"), "(hidden)");
        assert_eq!(hidden("consulTokenFile", "/etc/token"), "/etc/token");
        assert_eq!(hidden("eurekaserverURL", "http://a:b@e:1/v2,http://c:2"), "http://(hidden)@e:1/v2,http://c:2");
    }
}
