//! Schemas of the core kinds that the mesh reads. Kinds that it reads in part (Pod, Node) accept any further field.

use serde_json::{Value, json};

/// The schema of a core kind, without metadata.
pub(crate) fn of(kind: &str) -> Value {
    let properties = match kind {
        "Namespace" => json!({"spec": open(), "status": open()}),
        "Service" => json!({"spec": service(), "status": open()}),
        "Secret" => json!({
            "data": texts("byte"), "stringData": texts(""), "type": {"type": "string"}, "immutable": {"type": "boolean"},
        }),
        "ConfigMap" => json!({"data": texts(""), "binaryData": texts("byte"), "immutable": {"type": "boolean"}}),
        "Pod" => json!({"spec": pod(), "status": pod_status()}),
        "Node" => json!({"spec": open(), "status": open()}),
        "ServiceAccount" => json!({
            "secrets": list(open()), "imagePullSecrets": list(open()), "automountServiceAccountToken": {"type": "boolean"},
        }),
        "EndpointSlice" => endpoint_slice(),
        _ => json!({"spec": open(), "status": open()}),
    };
    json!({"type": "object", "properties": properties})
}

fn open() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn texts(format: &str) -> Value {
    match format {
        "" => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        format => json!({"type": "object", "additionalProperties": {"type": "string", "format": format}}),
    }
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items, "x-kubernetes-list-type": "atomic"})
}

fn text_list() -> Value {
    list(json!({"type": "string"}))
}

/// A list whose items have a key, for patches and for apply.
fn keyed(items: Value, patch_key: &str, keys: &[&str]) -> Value {
    json!({
        "type": "array", "items": items,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
        "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": patch_key,
    })
}

fn service() -> Value {
    let text = json!({"type": "string"});
    let port = json!({
        "type": "object",
        "properties": {
            "name": text, "protocol": {"type": "string", "default": "TCP"}, "appProtocol": text,
            "port": {"type": "integer", "format": "int32"}, "nodePort": {"type": "integer", "format": "int32"},
            "targetPort": {"x-kubernetes-int-or-string": true},
        },
    });
    let mut spec = json!({
        "type": "object",
        "description": "How clients reach the service, and which endpoints it has.",
        "properties": {
            "ports": keyed(port, "port", &["port", "protocol"]),
            "selector": {"type": "object", "additionalProperties": text, "x-kubernetes-map-type": "atomic"},
            "clusterIPs": text_list(), "externalIPs": text_list(), "ipFamilies": text_list(),
            "loadBalancerSourceRanges": text_list(),
            "publishNotReadyAddresses": {"type": "boolean"}, "allocateLoadBalancerNodePorts": {"type": "boolean"},
            "healthCheckNodePort": {"type": "integer", "format": "int32"}, "sessionAffinityConfig": open(),
        },
    });
    for name in [
        "type",
        "clusterIP",
        "externalName",
        "sessionAffinity",
        "loadBalancerIP",
        "loadBalancerClass",
        "ipFamilyPolicy",
        "externalTrafficPolicy",
        "internalTrafficPolicy",
        "trafficDistribution",
    ] {
        spec["properties"][name] = text.clone();
    }
    spec
}

fn endpoint_slice() -> Value {
    let text = json!({"type": "string"});
    let endpoint = json!({
        "type": "object",
        "properties": {
            "addresses": text_list(), "hostname": text, "nodeName": text, "zone": text, "targetRef": open(),
            "conditions": {
                "type": "object",
                "properties": {
                    "ready": {"type": "boolean"}, "serving": {"type": "boolean"}, "terminating": {"type": "boolean"},
                },
            },
            "deprecatedTopology": texts(""), "hints": open(),
        },
    });
    let port = json!({
        "type": "object",
        "properties": {
            "name": text, "protocol": text, "appProtocol": text, "port": {"type": "integer", "format": "int32"},
        },
    });
    json!({"addressType": text, "endpoints": list(endpoint), "ports": list(port)})
}

fn pod() -> Value {
    let container = json!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "env": keyed(open(), "name", &["name"]),
            "ports": keyed(open(), "containerPort", &["containerPort", "protocol"]),
            "volumeMounts": keyed(open(), "mountPath", &["mountPath"]),
        },
    });
    json!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "containers": keyed(container.clone(), "name", &["name"]),
            "initContainers": keyed(container, "name", &["name"]),
            "volumes": keyed(open(), "name", &["name"]),
        },
    })
}

fn pod_status() -> Value {
    json!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"conditions": keyed(open(), "type", &["type"]), "podIPs": keyed(open(), "ip", &["ip"])},
    })
}
