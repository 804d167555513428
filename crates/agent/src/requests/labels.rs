//! Upstream's labels of a request: this workload from its own node, the other side from certificates and from the
//! metadata of clusters and endpoints that the control plane sends. What Envoy does not log is `unknown`.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const UNKNOWN: &str = "unknown";
/// Upstream's revision of workloads without one.
const LATEST: &str = "latest";
/// Labels with the canonical name and revision of a workload, in order of precedence.
const CANONICAL_NAME: [&str; 3] = ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];
const CANONICAL_REVISION: [&str; 3] = ["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"];
/// Clusters without a service. Upstream's dashboards know their names.
const FIXED_CLUSTERS: [&str; 3] = ["PassthroughCluster", "BlackHoleCluster", "InboundPassthroughCluster"];

/// Names of the tags that the control plane configures; the same are in `translate::telemetry::access_log::requests`.
pub(super) mod tags {
    pub(super) const CLUSTER_SERVICES: &str = "services";
    pub(super) const ENDPOINT_WORKLOAD: &str = "workload";
    pub(super) const RESPONSE_FLAGS: &str = "flags";
    pub(super) const CONTENT_TYPE: &str = "content_type";
    pub(super) const GRPC_STATUS: &str = "grpc_status";
    pub(super) const PEER_IDENTITY: &str = "peer";
    pub(super) const OWN_IDENTITY: &str = "own";
}

/// Which proxy of a request reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reporter {
    Source,
    Destination,
}

/// A workload, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadLabels {
    workload: String,
    namespace: String,
    app: String,
    version: String,
    canonical_service: String,
    canonical_revision: String,
    cluster: String,
}

impl Default for WorkloadLabels {
    fn default() -> WorkloadLabels {
        let unknown = || UNKNOWN.to_owned();
        WorkloadLabels {
            workload: unknown(),
            namespace: unknown(),
            app: unknown(),
            version: unknown(),
            canonical_service: unknown(),
            canonical_revision: LATEST.to_owned(),
            cluster: unknown(),
        }
    }
}

impl WorkloadLabels {
    /// The workload of this proxy.
    pub fn of_node(metadata: &Map<String, Value>) -> WorkloadLabels {
        let none = Map::new();
        let labels = metadata.get("LABELS").and_then(Value::as_object).unwrap_or(&none);
        let text = |from: &Map<String, Value>, names: &[&str], default: &str| {
            let found = names.iter().find_map(|name| from.get(*name)?.as_str().filter(|text| !text.is_empty()));
            found.unwrap_or(default).to_owned()
        };
        WorkloadLabels {
            workload: text(metadata, &["WORKLOAD_NAME"], UNKNOWN),
            namespace: text(metadata, &["NAMESPACE"], UNKNOWN),
            app: text(labels, &["app"], UNKNOWN),
            version: text(labels, &["version"], UNKNOWN),
            canonical_service: text(labels, &CANONICAL_NAME, UNKNOWN),
            canonical_revision: text(labels, &CANONICAL_REVISION, LATEST),
            cluster: text(metadata, &["CLUSTER_ID"], UNKNOWN),
        }
    }

    /// A workload from the metadata of its endpoint: name, namespace, canonical name, revision, cluster.
    fn of_endpoint(text: &str) -> WorkloadLabels {
        let mut parts = text.split(';').map(|part| Some(part).filter(|part| !part.is_empty()));
        let mut next = |default: &str| parts.next().flatten().unwrap_or(default).to_owned();
        let (workload, namespace) = (next(UNKNOWN), next(UNKNOWN));
        let (canonical_service, canonical_revision) = (next(UNKNOWN), next(LATEST));
        let cluster = next(UNKNOWN);
        WorkloadLabels {
            workload,
            namespace,
            canonical_service,
            canonical_revision,
            cluster,
            ..WorkloadLabels::default()
        }
    }

    /// A workload of which only the identity is known.
    fn of_principal(principal: &str) -> WorkloadLabels {
        let namespace = principal.split_once("/ns/").and_then(|(_, rest)| rest.split('/').next());
        let namespace = namespace.filter(|namespace| !namespace.is_empty()).unwrap_or(UNKNOWN).to_owned();
        WorkloadLabels { namespace, ..WorkloadLabels::default() }
    }
}

/// The service of a request, from the metadata of the cluster it was sent to.
struct ServiceLabels {
    host: String,
    name: String,
    namespace: String,
}

impl ServiceLabels {
    fn new(services: Option<&str>, cluster: &str) -> ServiceLabels {
        #[derive(Deserialize)]
        struct Listed {
            host: String,
            name: String,
            namespace: String,
        }
        let listed = services.and_then(|text| serde_json::from_str::<Vec<Listed>>(text).ok());
        match listed.and_then(|listed| listed.into_iter().next()) {
            Some(Listed { host, name, namespace }) => ServiceLabels { host, name, namespace },
            None => {
                let name = FIXED_CLUSTERS.into_iter().find(|fixed| *fixed == cluster).unwrap_or(UNKNOWN);
                ServiceLabels { host: UNKNOWN.to_owned(), name: name.to_owned(), namespace: UNKNOWN.to_owned() }
            }
        }
    }
}

/// What the labels of an entry depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct LabelInput<'a> {
    pub(super) reporter: Reporter,
    pub(super) cluster: &'a str,
    pub(super) tags: &'a BTreeMap<String, String>,
    /// The response code; `None` for connections.
    pub(super) code: Option<u32>,
}

impl LabelInput<'_> {
    /// A tag's value; `None` if Envoy had none.
    fn tag(&self, name: &str) -> Option<&str> {
        self.tags.get(name).map(String::as_str).filter(|value| !matches!(*value, "" | "-"))
    }

    /// Equal for entries with the same labels.
    pub(super) fn key(&self) -> String {
        let mut key = format!("{:?}\n{}\n{:?}\n{}", self.reporter, self.cluster, self.code, self.is_grpc());
        for name in [
            tags::CLUSTER_SERVICES,
            tags::ENDPOINT_WORKLOAD,
            tags::RESPONSE_FLAGS,
            tags::GRPC_STATUS,
            tags::PEER_IDENTITY,
            tags::OWN_IDENTITY,
        ] {
            key.push('\n');
            key.push_str(self.tag(name).unwrap_or_default());
        }
        key
    }

    fn is_grpc(&self) -> bool {
        self.tag(tags::CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/grpc"))
    }

    /// All labels in Prometheus' notation, without braces.
    pub(super) fn text(&self, own: &WorkloadLabels) -> String {
        let peer_identity = self.tag(tags::PEER_IDENTITY).map(first);
        let own_identity = self.tag(tags::OWN_IDENTITY).map_or(UNKNOWN, first);
        let peer = match self.reporter {
            Reporter::Source => self.tag(tags::ENDPOINT_WORKLOAD).map(WorkloadLabels::of_endpoint),
            Reporter::Destination => peer_identity.map(WorkloadLabels::of_principal),
        };
        let peer = peer.unwrap_or_default();
        let peer_identity = peer_identity.unwrap_or(UNKNOWN);
        let ends = match self.reporter {
            Reporter::Source => [("source", own, own_identity), ("destination", &peer, peer_identity)],
            Reporter::Destination => [("source", &peer, peer_identity), ("destination", own, own_identity)],
        };
        let mut text = LabelText::default();
        text.add("reporter", if self.reporter == Reporter::Source { "source" } else { "destination" });
        for (side, workload, principal) in ends {
            text.workload(side, workload, principal);
        }
        let service = ServiceLabels::new(self.tag(tags::CLUSTER_SERVICES), self.cluster);
        text.add("destination_service", &service.host);
        text.add("destination_service_name", &service.name);
        text.add("destination_service_namespace", &service.namespace);
        self.add_request(&mut text, peer_identity != UNKNOWN);
        text.0
    }

    fn add_request(&self, text: &mut LabelText, has_peer: bool) {
        text.add(
            "request_protocol",
            match self.code {
                None => "tcp",
                Some(_) if self.is_grpc() => "grpc",
                Some(_) => "http",
            },
        );
        if let Some(code) = self.code {
            text.add("response_code", &code.to_string());
            text.add(
                "grpc_response_status",
                self.tag(tags::GRPC_STATUS).filter(|_| self.is_grpc()).unwrap_or_default(),
            );
        }
        text.add("response_flags", self.tag(tags::RESPONSE_FLAGS).unwrap_or("-"));
        // Only the destination knows whether it demanded the certificate; upstream's source reports `unknown` too.
        text.add(
            "connection_security_policy",
            match self.reporter {
                Reporter::Source => UNKNOWN,
                Reporter::Destination if has_peer => "mutual_tls",
                Reporter::Destination => "none",
            },
        );
    }
}

/// The first of several names, which Envoy joins by commas.
fn first(names: &str) -> &str {
    names.split(',').next().unwrap_or_default()
}

#[derive(Default)]
struct LabelText(String);

impl LabelText {
    fn add(&mut self, name: &str, value: &str) {
        let comma = if self.0.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{comma}{name}=\"");
        for letter in value.chars() {
            match letter {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                letter => self.0.push(letter),
            }
        }
        self.0.push('"');
    }

    fn workload(&mut self, side: &str, workload: &WorkloadLabels, principal: &str) {
        for (name, value) in [
            ("workload", workload.workload.as_str()),
            ("workload_namespace", &workload.namespace),
            ("principal", principal),
            ("app", &workload.app),
            ("version", &workload.version),
            ("canonical_service", &workload.canonical_service),
            ("canonical_revision", &workload.canonical_revision),
            ("cluster", &workload.cluster),
        ] {
            self.add(&format!("{side}_{name}"), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::{LabelInput, Reporter, WorkloadLabels};

    fn own() -> WorkloadLabels {
        let metadata = json!({"WORKLOAD_NAME": "web-v1", "NAMESPACE": "shop", "CLUSTER_ID": "east",
            "LABELS": {"app": "web", "version": "v1"}});
        WorkloadLabels::of_node(metadata.as_object().unwrap())
    }

    fn tags(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn check(input: LabelInput<'_>, expected: &[&str]) {
        let text = input.text(&own());
        for label in expected {
            assert!(format!(",{text},").contains(&format!(",{label},")), "no {label} in {text}");
        }
    }

    #[test]
    fn source_knows_the_destination_from_cluster_and_endpoint() {
        let tags = tags(&[
            ("services", r#"[{"host":"cart.shop.svc","name":"cart","namespace":"shop"}]"#),
            ("workload", "cart-v2;shop;cart;v2;west"),
            ("peer", "spiffe://cluster.local/ns/shop/sa/cart,other"),
            ("flags", "-"),
        ]);
        let input = LabelInput {
            reporter: Reporter::Source,
            cluster: "outbound|80||cart.shop.svc",
            tags: &tags,
            code: Some(200),
        };
        check(
            input,
            &[
                r#"reporter="source""#,
                r#"source_workload="web-v1""#,
                r#"source_canonical_service="web""#,
                r#"source_app="web""#,
                r#"source_cluster="east""#,
                r#"destination_workload="cart-v2""#,
                r#"destination_workload_namespace="shop""#,
                r#"destination_canonical_revision="v2""#,
                r#"destination_principal="spiffe://cluster.local/ns/shop/sa/cart""#,
                r#"destination_service="cart.shop.svc""#,
                r#"destination_service_name="cart""#,
                r#"request_protocol="http""#,
                r#"response_code="200""#,
                r#"response_flags="-""#,
                r#"grpc_response_status="""#,
                r#"connection_security_policy="unknown""#,
            ],
        );
    }

    #[test]
    fn destination_knows_the_source_from_its_certificate() {
        let peer = [
            ("peer", "spiffe://cluster.local/ns/front/sa/web"),
            ("content_type", "application/grpc"),
            ("grpc_status", "14"),
        ];
        let (with, without) = (tags(&peer), tags(&[]));
        let input =
            LabelInput { reporter: Reporter::Destination, cluster: "inbound|80||", tags: &with, code: Some(200) };
        check(
            input,
            &[
                r#"reporter="destination""#,
                r#"source_workload="unknown""#,
                r#"source_workload_namespace="front""#,
                r#"source_principal="spiffe://cluster.local/ns/front/sa/web""#,
                r#"destination_workload="web-v1""#,
                r#"request_protocol="grpc""#,
                r#"grpc_response_status="14""#,
                r#"connection_security_policy="mutual_tls""#,
            ],
        );
        let input = LabelInput { reporter: Reporter::Destination, cluster: "inbound|80||", tags: &without, code: None };
        check(
            input,
            &[r#"connection_security_policy="none""#, r#"request_protocol="tcp""#, r#"source_principal="unknown""#],
        );
    }

    #[test]
    fn unknown_destinations_have_the_name_of_their_cluster() {
        let tags = tags(&[]);
        let input =
            LabelInput { reporter: Reporter::Source, cluster: "PassthroughCluster", tags: &tags, code: Some(503) };
        check(input, &[r#"destination_service_name="PassthroughCluster""#, r#"destination_service="unknown""#]);
    }
}
