//! Whether a cluster is ready: version of the API server, permissions of the installing user, definitions, control planes
//! and webhooks that are there already.

use std::collections::BTreeSet;

use anyhow::Result;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use model::config::Kind;

use super::pre_finding::{PreFinding, PreLevel};

/// The oldest minor version of Kubernetes whose stable APIs have everything that is used (EndpointSlice v1, CEL in
/// definitions).
const OLDEST_MINOR: u32 = 25;
/// What an installation creates: group, resource, and whether it is in the namespace of the control plane.
const CREATED: [(&str, &str, bool); 11] = [
    ("", "namespaces", false),
    ("apiextensions.k8s.io", "customresourcedefinitions", false),
    ("rbac.authorization.k8s.io", "clusterroles", false),
    ("rbac.authorization.k8s.io", "clusterrolebindings", false),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", false),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", false),
    ("", "serviceaccounts", true),
    ("", "configmaps", true),
    ("", "services", true),
    ("apps", "deployments", true),
    ("rbac.authorization.k8s.io", "roles", true),
];
const REVISION: &str = "istio.io/rev";

/// Major and minor version of the API server.
pub(super) async fn version(client: &Client) -> Result<(String, u32)> {
    let info = client.apiserver_version().await?;
    let digits: String = info.minor.chars().take_while(char::is_ascii_digit).collect();
    Ok((info.git_version, digits.parse().unwrap_or_default()))
}

/// All checks. One that cannot be made is a warning with the reason.
pub(super) async fn findings(client: &Client, version: (String, u32), namespace: &str) -> Vec<PreFinding> {
    let mut found = vec![version_finding(version)];
    let checks: [(&'static str, Result<Vec<PreFinding>, kube::Error>); 4] = [
        ("permissions", permissions(client, namespace).await),
        ("definitions", definitions(client).await),
        ("control planes", control_planes(client).await),
        ("webhooks", webhooks(client).await),
    ];
    for (check, result) in checks {
        match result {
            Ok(findings) => found.extend(findings),
            Err(error) => found.push(PreFinding::new(PreLevel::Warning, check, format!("could not check: {error}"))),
        }
    }
    found
}

fn version_finding((version, minor): (String, u32)) -> PreFinding {
    match minor {
        minor if minor < OLDEST_MINOR => PreFinding::new(
            PreLevel::Error,
            "version",
            format!("the API server is {version}; the oldest version that works is 1.{OLDEST_MINOR}"),
        ),
        _ => PreFinding::new(PreLevel::Ok, "version", format!("the API server is {version}")),
    }
}

async fn permissions(client: &Client, namespace: &str) -> Result<Vec<PreFinding>, kube::Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut denied = Vec::new();
    for (group, resource, is_namespaced) in CREATED {
        let attributes = ResourceAttributes {
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            verb: Some("create".to_owned()),
            namespace: is_namespaced.then(|| namespace.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer = reviews.create(&PostParams::default(), &review).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            denied.push(if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") });
        }
    }
    let text = format!("you may not create {}: ask for the role cluster-admin, or for these rights", denied.join(", "));
    Ok(vec![match denied.is_empty() {
        true => PreFinding::new(PreLevel::Ok, "permissions", "you may create everything that an installation needs"),
        false => PreFinding::new(PreLevel::Error, "permissions", text),
    }])
}

/// Whether definitions of our kinds are there, and serve a version that is read.
async fn definitions(client: &Client) -> Result<Vec<PreFinding>, kube::Error> {
    let list = Api::<CustomResourceDefinition>::all(client.clone()).list(&ListParams::default()).await?;
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for definition in &list.items {
        let spec = &definition.spec;
        let kind = Kind::ALL.iter().find(|kind| kind.group() == spec.group && kind.plural() == spec.names.plural);
        let Some(kind) = kind else { continue };
        known.insert(kind.as_str());
        let served: Vec<&str> = spec.versions.iter().filter(|v| v.served).map(|v| v.name.as_str()).collect();
        if !served.iter().any(|version| kind.versions().contains(version)) {
            found.push(PreFinding::new(
                PreLevel::Error,
                "definitions",
                format!(
                    "{}.{} serves {}, and none of {}: apply the definitions of `pilot-discovery crds`",
                    spec.names.plural,
                    spec.group,
                    served.join(", "),
                    kind.versions().join(", ")
                ),
            ));
        }
    }
    if !known.contains(Kind::VirtualService.as_str()) {
        let text =
            "there are no definitions of Istio's kinds: `pilot-discovery crds | kubectl apply --server-side -f -`";
        found.push(PreFinding::new(PreLevel::Warning, "definitions", text));
    }
    if found.is_empty() {
        found.push(PreFinding::new(PreLevel::Ok, "definitions", format!("{} kinds are defined", known.len())));
    }
    Ok(found)
}

async fn control_planes(client: &Client) -> Result<Vec<PreFinding>, kube::Error> {
    let selector = ListParams::default().labels("app=istiod");
    let list = Api::<Deployment>::all(client.clone()).list(&selector).await?;
    if list.items.is_empty() {
        return Ok(vec![PreFinding::new(PreLevel::Ok, "control planes", "no other one is installed")]);
    }
    let text = |deployment: &Deployment| {
        let meta = &deployment.metadata;
        let revision =
            meta.labels.iter().flatten().find(|(key, _)| *key == REVISION).map_or("default", |(_, of)| of.as_str());
        format!(
            "{}/{} has revision {revision}: install with another revision to run both",
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default()
        )
    };
    let found = list.items.iter().map(|one| PreFinding::new(PreLevel::Warning, "control planes", text(one)));
    Ok(found.collect())
}

/// Injection webhooks whose service is gone make every new pod fail.
async fn webhooks(client: &Client) -> Result<Vec<PreFinding>, kube::Error> {
    let list = Api::<MutatingWebhookConfiguration>::all(client.clone()).list(&ListParams::default()).await?;
    let mut found = Vec::new();
    for configuration in &list.items {
        let name = configuration.metadata.name.as_deref().unwrap_or_default();
        let is_injector =
            |name: &str| name.ends_with("sidecar-injector.istio.io") || name.ends_with("injection.istio.io");
        for webhook in configuration.webhooks.iter().flatten().filter(|webhook| is_injector(&webhook.name)) {
            let Some(service) = &webhook.client_config.service else { continue };
            let services: Api<Service> = Api::namespaced(client.clone(), &service.namespace);
            let place = format!("{}/{}", service.namespace, service.name);
            found.push(match services.get_opt(&service.name).await? {
                Some(_) => PreFinding::new(
                    PreLevel::Warning,
                    "webhooks",
                    format!(
                        "{name} injects pods already, with {place}: a second default injector would compete with it"
                    ),
                ),
                None => PreFinding::new(
                    PreLevel::Error,
                    "webhooks",
                    format!("{name} calls service {place}, which does not exist: delete the configuration"),
                ),
            });
            break;
        }
    }
    if found.is_empty() {
        found.push(PreFinding::new(PreLevel::Ok, "webhooks", "no other injector is registered"));
    }
    Ok(found)
}
