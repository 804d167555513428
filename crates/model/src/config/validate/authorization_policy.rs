//! Rules of AuthorizationPolicy.

use api::istio::security::v1beta1::authorization_policy::{Action, ActionDetail};
use api::istio::security::v1beta1::{AuthorizationPolicy, Condition, Operation, Rule as PolicyRule, Source};

use super::report::{Report, Rule, Violation};
use super::{names, selector};

const NEVER_TRIGGERED: &str = "is meaningless as it will never be triggered, add an empty rule `{}` if you want it be triggered for every request";

pub(super) fn check(policy: &AuthorizationPolicy, report: &mut Report) {
    selector::policy(policy.selector.as_ref(), policy.target_ref.as_ref(), &policy.target_refs, report);
    let action = policy.action();
    let provider = policy.action_detail.as_ref().map(|ActionDetail::Provider(provider)| provider.name.as_str());
    if action == Action::Custom {
        match policy.rules.is_empty() {
            true => report.error(format_args!("CUSTOM action without `rules` {NEVER_TRIGGERED}")),
            false => report.error_if(provider.unwrap_or("").is_empty(), "`provider.name` must not be empty"),
        }
        report.each("rules", &policy.rules, custom_rule);
    } else {
        let name = action.as_str_name();
        report
            .error_if(provider.is_some(), format_args!("`provider` must not be with non CUSTOM action, found {name}"));
    }
    report.error_if(
        action == Action::Deny && policy.rules.is_empty(),
        format_args!("DENY action without `rules` {NEVER_TRIGGERED}"),
    );
    report.each("rules", &policy.rules, |report, one| rule(one, action, report));
}

/// External authorization runs before the client is authenticated, so its rules cannot use the client's identity.
fn custom_rule(report: &mut Report, rule: &PolicyRule) {
    let mut refuse = |given: bool, name: &str| {
        report.error_if(given, format_args!("{name} is currently not supported with CUSTOM action"));
    };
    for source in rule.from.iter().filter_map(|from| from.source.as_ref()) {
        refuse(!source.namespaces.is_empty(), "From.Namespaces");
        refuse(!source.not_namespaces.is_empty(), "From.NotNamespaces");
        refuse(!source.service_accounts.is_empty(), "From.ServiceAccounts");
        refuse(!source.not_service_accounts.is_empty(), "From.NotServiceAccounts");
        refuse(!source.trust_domains.is_empty(), "From.TrustDomains");
        refuse(!source.not_trust_domains.is_empty(), "From.NotTrustDomains");
        refuse(!source.principals.is_empty(), "From.Principals");
        refuse(!source.not_principals.is_empty(), "From.NotPrincipals");
        refuse(!source.request_principals.is_empty(), "From.RequestPrincipals");
        refuse(!source.not_request_principals.is_empty(), "From.NotRequestPrincipals");
    }
    for condition in &rule.when {
        let key = condition.key.as_str();
        let known_late = ["source.namespace", "source.serviceAccount", "source.trustDomain", "source.principal"];
        refuse(known_late.contains(&key) || key.starts_with("request.auth."), key);
    }
}

fn rule(rule: &PolicyRule, action: Action, report: &mut Report) {
    report.each("from", &rule.from, |report, from| match &from.source {
        None => report.error("`from.source` must not be nil"),
        Some(it) => source(it, report),
    });
    report.each("to", &rule.to, |report, to| match &to.operation {
        None => report.error("`to.operation` must not be nil"),
        Some(it) => operation(it, report),
    });
    report.each("when", &rule.when, condition);
    report.warn_if(
        action == Action::Deny && denies_all_tcp(rule),
        "configured AuthorizationPolicy will deny all traffic to TCP ports under its scope due to the use of only HTTP \
         attributes in a DENY rule; it is recommended to explicitly specify the port",
    );
}

/// Whether the rule has only HTTP conditions: they are ignored for TCP, so the rest would deny everything.
fn denies_all_tcp(rule: &PolicyRule) -> bool {
    let mut sources = rule.from.iter().filter_map(|from| from.source.as_ref()).peekable();
    let mut operations = rule.to.iter().filter_map(|to| to.operation.as_ref()).peekable();
    let (has_from, has_to) = (sources.peek().is_some(), operations.peek().is_some());
    let tcp_from = sources.any(|source| {
        let lists = [
            &source.principals,
            &source.not_principals,
            &source.ip_blocks,
            &source.not_ip_blocks,
            &source.namespaces,
            &source.not_namespaces,
            &source.remote_ip_blocks,
            &source.not_remote_ip_blocks,
            &source.service_accounts,
            &source.not_service_accounts,
        ];
        lists.iter().any(|list| !list.is_empty())
    });
    let tcp_to = operations.any(|operation| !operation.ports.is_empty() || !operation.not_ports.is_empty());
    (has_from && !has_to && !tcp_from) || (has_to && !tcp_to)
}

fn source(source: &Source, report: &mut Report) {
    let accounts = !source.service_accounts.is_empty() || !source.not_service_accounts.is_empty();
    let identities = [&source.principals, &source.not_principals, &source.namespaces, &source.not_namespaces];
    report.error_if(
        accounts && identities.iter().any(|list| !list.is_empty()),
        "cannot set serviceAccounts with namespaces or principals",
    );
    let lists = [
        ("Principals", &source.principals),
        ("RequestPrincipals", &source.request_principals),
        ("Namespaces", &source.namespaces),
        ("IpBlocks", &source.ip_blocks),
        ("RemoteIpBlocks", &source.remote_ip_blocks),
        ("NotPrincipals", &source.not_principals),
        ("NotRequestPrincipals", &source.not_request_principals),
        ("NotNamespaces", &source.not_namespaces),
        ("NotIpBlocks", &source.not_ip_blocks),
        ("NotRemoteIpBlocks", &source.not_remote_ip_blocks),
    ];
    let domains = !source.trust_domains.is_empty() || !source.not_trust_domains.is_empty();
    let empty = lists.iter().all(|(_, list)| list.is_empty()) && !accounts && !domains;
    report.error_if(empty, "`from.source` must not be empty");
    for list in [&source.ip_blocks, &source.not_ip_blocks, &source.remote_ip_blocks, &source.not_remote_ip_blocks] {
        ips(list, report);
    }
    for (name, list) in lists {
        report.check(no_empty_value(name, list));
    }
    report.check(service_accounts("ServiceAccounts", &source.service_accounts));
    report.check(service_accounts("NotServiceAccounts", &source.not_service_accounts));
    report.check(trust_domains("TrustDomains", &source.trust_domains));
    report.check(trust_domains("NotTrustDomains", &source.not_trust_domains));
}

fn operation(operation: &Operation, report: &mut Report) {
    let lists = [
        ("Ports", &operation.ports),
        ("Methods", &operation.methods),
        ("Paths", &operation.paths),
        ("Hosts", &operation.hosts),
        ("NotPorts", &operation.not_ports),
        ("NotMethods", &operation.not_methods),
        ("NotPaths", &operation.not_paths),
        ("NotHosts", &operation.not_hosts),
    ];
    report.error_if(lists.iter().all(|(_, list)| list.is_empty()), "`to.operation` must not be empty");
    ports(&operation.ports, report);
    ports(&operation.not_ports, report);
    for (name, list) in lists {
        report.check(no_empty_value(name, list));
    }
    report.check(path_templates("Paths", &operation.paths));
    report.check(path_templates("NotPaths", &operation.not_paths));
}

fn condition(report: &mut Report, condition: &Condition) {
    let key = condition.key.as_str();
    if key.is_empty() {
        return report.error("`key` must not be empty");
    }
    if condition.values.is_empty() && condition.not_values.is_empty() {
        return report.error(format_args!("at least one of `values` or `notValues` must be set for key {key}"));
    }
    for (name, values) in [("value", &condition.values), ("notValue", &condition.not_values)] {
        if let Err(message) = attribute(key, values) {
            report.error(format_args!("invalid `{name}` for `key` {key}: {message}"));
        }
    }
}

/// A known attribute with valid values.
fn attribute(key: &str, values: &[String]) -> Rule {
    no_empty_value(key, values)?;
    match key {
        "source.ip" | "remote.ip" | "destination.ip" => values.iter().try_for_each(|value| ip_or_block(value)),
        "destination.port" => values.iter().try_for_each(|value| port_text(value)),
        "source.serviceAccount" => service_accounts(key, values),
        "source.trustDomain" => wildcards(key, values),
        "source.namespace" | "source.principal" | "connection.sni" => Ok(()),
        "request.auth.principal" | "request.auth.audiences" | "request.auth.presenter" => Ok(()),
        "destination.namespace" => {
            Err(Violation::from(format!("attribute {key} is replaced by the metadata.namespace")))
        }
        "destination.name" | "destination.user" => {
            Err(Violation::from(format!("deprecated attribute {key}: only supported in v1alpha1")))
        }
        _ if key.starts_with("destination.labels") => {
            Err(Violation::from(format!("attribute {key} is replaced by the workload selector")))
        }
        _ if ["request.headers", "request.auth.claims", "experimental.envoy.filters."]
            .iter()
            .any(|p| key.starts_with(p)) =>
        {
            map_key(key)
        }
        _ => Err(Violation::from(format!("unknown attribute: {key}"))),
    }
}

fn map_key(key: &str) -> Rule {
    let fits = key.ends_with(']') && key.find('[').is_some_and(|open| open > 0 && open + 2 < key.len());
    if fits { Ok(()) } else { Err(Violation::from(format!("bad key ({key}): should have format a[b]"))) }
}

fn ips(values: &[String], report: &mut Report) {
    for value in values {
        report.check(ip_or_block(value));
    }
}

fn ip_or_block(value: &str) -> Rule {
    match value.contains('/') {
        true if names::is_cidr(value) => Ok(()),
        true => Err(Violation::from(format!("bad CIDR range ({value})"))),
        false if names::is_ip(value) => Ok(()),
        false => Err(Violation::from(format!("bad IP address ({value})"))),
    }
}

fn ports(values: &[String], report: &mut Report) {
    for value in values {
        report.check(port_text(value));
    }
}

fn port_text(value: &str) -> Rule {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse::<u32>() {
        Ok(0..=65535) if digits => Ok(()),
        _ => Err(Violation::from(format!("bad port ({value})"))),
    }
}

fn no_empty_value(key: &str, values: &[String]) -> Rule {
    match values.iter().any(String::is_empty) {
        true => Err(Violation::from(format!("empty value not allowed, found in {key}"))),
        false => Ok(()),
    }
}

/// A wildcard is allowed at one end of a value.
fn wildcards(key: &str, values: &[String]) -> Rule {
    no_empty_value(key, values)?;
    for value in values {
        match value.matches('*').count() {
            0 => {}
            1 if value.starts_with('*') || value.ends_with('*') => {}
            1 => {
                return Err(Violation::from(format!(
                    "wildcard is only allowed at the start or end, found in {key}: {value:?}"
                )));
            }
            _ => return Err(Violation::from(format!("at most one wildcard is allowed, found in {key}: {value:?}"))),
        }
    }
    Ok(())
}

fn trust_domains(key: &str, values: &[String]) -> Rule {
    wildcards(key, values)?;
    match values.iter().find(|value| value.contains('/')) {
        Some(value) => Err(Violation::from(format!("trust domain must not contain '/', found in {key}: {value:?}"))),
        None => Ok(()),
    }
}

/// `account` or `namespace/account`.
fn service_accounts(key: &str, values: &[String]) -> Rule {
    if values.len() > 16 {
        return Err(Violation::from("may not have more than 16 values".to_owned()));
    }
    no_empty_value(key, values)?;
    for value in values {
        if value.contains('*') {
            return Err(Violation::from(format!("wildcard not allowed, found in {key}")));
        }
        if value.len() > 320 {
            return Err(Violation::from(format!("value cannot exceed 320 characters, found {value:?} in {key}")));
        }
        let parts: Vec<&str> = value.split('/').collect();
        if parts.len() > 2 || parts.iter().any(|part| part.is_empty()) {
            return Err(Violation::from(format!(
                "expected format 'serviceAccount' or 'namespace/serviceAccount', found {value:?} in {key}"
            )));
        }
    }
    Ok(())
}

/// Paths may contain `{*}` for one segment and, after all others, `{**}` for the rest.
fn path_templates(key: &str, paths: &[String]) -> Rule {
    for path in paths {
        let is_template = path.contains("{*}") || path.contains("{**}");
        let path = path.trim_matches('/');
        let broken =
            |why: String| Err(Violation::from(format!("invalid or unsupported path {path}, found in {key}. {why}")));
        let mut ended = false;
        for segment in path.split('/') {
            match segment {
                "{*}" | "{**}" if ended => return broken("{**} is not the last operator".to_owned()),
                "{*}" => {}
                "{**}" => ended = true,
                text if text.contains(['{', '}']) => {
                    return broken("Contains '{' or '}' beyond a supported path template".to_owned());
                }
                text if is_template && !is_path_literal(text) => {
                    return broken(format!("Contains segment {text} with invalid string literal"));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn is_path_literal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~%!$&'()+,;:@=".contains(&b))
}
