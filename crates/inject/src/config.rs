//! The injector's configuration: ConfigMap key `config`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::error::InjectError;
use crate::gotemplate::Template;
use crate::values::read;
use crate::yaml;

/// Whether pods are injected that have neither a label nor an annotation about injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They are injected.
    Enabled,
    /// They are not injected.
    Disabled,
    /// The configuration has another value: no pod is injected.
    Unknown,
}

/// The parsed key `config` of ConfigMap `istio-sidecar-injector`.
#[derive(Clone, Debug)]
pub struct InjectorConfig {
    pub(crate) policy: Policy,
    pub(crate) default_templates: Vec<String>,
    pub(crate) templates: BTreeMap<String, CustomTemplate>,
    pub(crate) aliases: BTreeMap<String, Vec<String>>,
    pub(crate) never: Vec<LabelSelector>,
    pub(crate) always: Vec<LabelSelector>,
    pub(crate) injected_annotations: BTreeMap<String, String>,
}

/// A custom template, or why it could not be parsed: only workloads that use it are affected.
pub(crate) type CustomTemplate = Result<Arc<Template>, String>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawConfig {
    policy: Option<String>,
    default_templates: Option<Vec<String>>,
    templates: Option<Value>,
    aliases: Option<BTreeMap<String, Vec<String>>>,
    never_inject_selector: Option<Vec<LabelSelector>>,
    always_inject_selector: Option<Vec<LabelSelector>>,
    injected_annotations: Option<BTreeMap<String, String>>,
}

impl Default for InjectorConfig {
    /// The configuration of a default installation: built-in templates, policy `enabled`.
    fn default() -> InjectorConfig {
        InjectorConfig::of(RawConfig { policy: Some("enabled".to_owned()), ..RawConfig::default() }).0
    }
}

impl InjectorConfig {
    /// Parses the configuration. The returned texts are problems of single parts; the rest can be used.
    pub fn parse(text: &str) -> Result<(InjectorConfig, Vec<String>), InjectError> {
        let raw = read("injector configuration", text)?;
        let raw = if raw.is_null() { Value::Object(serde_json::Map::new()) } else { raw };
        let raw = serde_json::from_value(raw)
            .map_err(|error| InjectError::Config { what: "injector configuration", reason: error.to_string() })?;
        Ok(InjectorConfig::of(raw))
    }

    fn of(raw: RawConfig) -> (InjectorConfig, Vec<String>) {
        let mut problems = Vec::new();
        let policy = match raw.policy.as_deref() {
            Some("enabled") => Policy::Enabled,
            Some("disabled") => Policy::Disabled,
            other => {
                let found = other.unwrap_or_default();
                problems.push(format!("policy is {found:?}, expected enabled or disabled: no pod is injected"));
                Policy::Unknown
            }
        };
        let templates = match raw.templates {
            // Upstream's old form: one text is the sidecar's template.
            Some(Value::String(text)) => BTreeMap::from([("sidecar".to_owned(), text)]),
            Some(Value::Object(map)) => {
                let text = |value: Value| value.as_str().map(str::to_owned).unwrap_or_default();
                map.into_iter().map(|(name, value)| (name, text(value))).collect()
            }
            _ => BTreeMap::new(),
        };
        let parsed = |(name, text): (String, String)| {
            let template = Template::parse(&text).map(Arc::new).map_err(|error| error.to_string());
            if let Err(error) = &template {
                problems.push(format!("could not parse template {name}: {error}; workloads that use it are refused"));
            }
            (name, template)
        };
        let config = InjectorConfig {
            policy,
            templates: templates.into_iter().map(parsed).collect(),
            default_templates: raw
                .default_templates
                .filter(|names| !names.is_empty())
                .unwrap_or_else(|| vec!["sidecar".to_owned()]),
            aliases: raw.aliases.unwrap_or_default(),
            never: raw.never_inject_selector.unwrap_or_default(),
            always: raw.always_inject_selector.unwrap_or_default(),
            injected_annotations: raw.injected_annotations.unwrap_or_default(),
        };
        (config, problems)
    }

    /// Whether a text is a configuration, and not a template on its own.
    pub fn is_config(text: &str) -> bool {
        const KEYS: [&str; 5] = ["policy", "templates", "defaultTemplates", "aliases", "injectedAnnotations"];
        yaml::read(text).is_ok_and(|read| read.is_null() || KEYS.iter().any(|key| read.get(key).is_some()))
    }

    /// A configuration whose only template is `text`, under the name `sidecar`.
    pub fn of_template(text: &str) -> Result<InjectorConfig, InjectError> {
        let template = Template::parse(text)
            .map_err(|error| InjectError::Template { name: "sidecar".to_owned(), reason: error.to_string() })?;
        let mut config = InjectorConfig::default();
        config.templates.insert("sidecar".to_owned(), Ok(Arc::new(template)));
        Ok(config)
    }
}

/// A Kubernetes label selector.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LabelSelector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<LabelExpression>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LabelExpression {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl LabelSelector {
    /// Whether labels match. An empty selector matches nothing, and neither does one with an unknown operator.
    pub(crate) fn matches(&self, labels: &Value) -> bool {
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        let by_expression = |expression: &LabelExpression| {
            let value = label(&expression.key);
            let listed = value.is_some_and(|value| expression.values.iter().any(|known| known == value));
            match expression.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        };
        let is_empty = self.match_labels.is_empty() && self.match_expressions.is_empty();
        !is_empty
            && self.match_labels.iter().all(|(key, value)| label(key) == Some(value))
            && self.match_expressions.iter().all(by_expression)
    }
}
