//! Gateways of Istio's own kind and of the Gateway API, with the routes that hang on them, and Ingresses.

use serde_json::{Value, json};

use super::dice::Dice;
use super::services::Service;
use super::{NAMESPACES, ROOT, istio};

/// Addresses of the gateways' pods.
pub(super) const EDGE: &str = "10.41.0.1";
pub(super) const FRONT: &str = "10.41.0.2";

pub(super) fn generate(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    let edge = json!({"istio": "ingressgateway", "app": "istio-ingressgateway"});
    let ports = [("http2", 80, 8080), ("https", 443, 8443), ("tcp", 31400, 31400), ("tls", 15443, 15443)];
    workload(ROOT, "istio-ingressgateway", &edge, EDGE, "10.96.250.1", &ports, objects);
    let front = json!({"gateway.networking.k8s.io/gateway-name": "front"});
    let ports = [("http", 80, 80), ("https", 443, 443), ("tls", 8443, 8443)];
    workload("alpha", "front-istio", &front, FRONT, "10.96.250.2", &ports, objects);
    for number in 0..3 {
        let spec = json!({"selector": {"istio": "ingressgateway"}, "servers": servers(number)});
        objects.push(istio("Gateway", "networking.istio.io", ROOT, &format!("edge{number}"), spec));
    }
    gateway_api(town, dice, objects);
    for number in 0..town.len() / 40 {
        objects.push(ingress(number, dice.pick(town), dice));
    }
}

fn workload(
    namespace: &str,
    name: &str,
    labels: &Value,
    address: &str,
    cluster_ip: &str,
    ports: &[(&str, u16, u16)],
    objects: &mut Vec<Value>,
) {
    let of = |(name, number, target): &(&str, u16, u16)| json!({"name": name, "port": number, "targetPort": target});
    objects.push(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": cluster_ip, "selector": labels, "ports": ports.iter().map(of).collect::<Vec<_>>()}}));
    objects.push(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{name}-0"), "namespace": namespace, "labels": labels},
        "spec": {"nodeName": "node-0", "serviceAccountName": name, "containers": [{"name": "proxy", "image": "proxy"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}]}}));
    let of = |(name, _, target): &(&str, u16, u16)| json!({"name": name, "port": target, "protocol": "TCP"});
    objects.push(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{name}-1"), "namespace": namespace, "labels": {"kubernetes.io/service-name": name}},
        "ports": ports.iter().map(of).collect::<Vec<_>>(),
        "endpoints": [{"addresses": [address], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": format!("{name}-0"), "namespace": namespace}}]}));
}

fn servers(number: usize) -> Value {
    match number {
        0 => json!([{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]},
            {"port": {"number": 443, "name": "https", "protocol": "HTTPS"}, "hosts": ["shop0.example.com", "shop1.example.com"],
                "tls": {"mode": "SIMPLE", "credentialName": "shop"}}]),
        1 => json!([{"port": {"number": 80, "name": "http-more", "protocol": "HTTP"}, "hosts": ["*.example.com"],
                "tls": {"httpsRedirect": true}},
            {"port": {"number": 443, "name": "https-more", "protocol": "HTTPS"}, "hosts": ["./shop2.example.com", "alpha/shop3.example.com"],
                "tls": {"mode": "MUTUAL", "credentialName": "mutual", "minProtocolVersion": "TLSV1_3"}}]),
        _ => {
            json!([{"port": {"number": 15443, "name": "tls", "protocol": "TLS"}, "hosts": ["*.alpha.svc.cluster.local"],
                "tls": {"mode": "AUTO_PASSTHROUGH"}},
            {"port": {"number": 31400, "name": "tcp", "protocol": "TCP"}, "hosts": ["*"]},
            {"port": {"number": 8080, "name": "http-other", "protocol": "HTTP"}, "hosts": ["*/shop4.example.com"]}])
        }
    }
}

fn gateway_api(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    let of = |kind: &str, namespace: &str, name: &str, spec: Value| {
        let version = if kind == "ReferenceGrant" { "v1beta1" } else { "v1" };
        json!({"apiVersion": format!("gateway.networking.k8s.io/{version}"), "kind": kind, "spec": spec,
            "metadata": {"name": name, "namespace": namespace}})
    };
    objects.push(
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "istio"},
        "spec": {"controllerName": "istio.io/gateway-controller"}}),
    );
    let everywhere = json!({"namespaces": {"from": "All"}});
    let same = json!({"namespaces": {"from": "Same"}});
    let selected = json!({"namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": "beta"}}}});
    objects.push(of("Gateway", "alpha", "front", json!({"gatewayClassName": "istio", "listeners": [
        {"name": "web", "port": 80, "protocol": "HTTP", "allowedRoutes": everywhere},
        {"name": "own", "port": 80, "protocol": "HTTP", "hostname": "*.own.example", "allowedRoutes": same},
        {"name": "some", "port": 80, "protocol": "HTTP", "hostname": "*.beta.example", "allowedRoutes": selected},
        {"name": "through", "port": 8443, "protocol": "TLS", "hostname": "*.through.example", "allowedRoutes": everywhere,
            "tls": {"mode": "Passthrough"}}]})));
    let froms: Vec<Value> = ["HTTPRoute", "GRPCRoute", "TLSRoute"]
        .iter()
        .flat_map(|kind| {
            ["alpha", "beta"].map(|ns| json!({"group": "gateway.networking.k8s.io", "kind": kind, "namespace": ns}))
        })
        .collect();
    objects.push(of(
        "ReferenceGrant",
        "gamma",
        "from-others",
        json!({"from": froms, "to": [{"group": "", "kind": "Service"}]}),
    ));
    for number in 0..town.len() / 5 {
        let target = dice.pick(town);
        let namespace = if dice.chance(60) { target.namespace } else { *dice.pick(NAMESPACES) };
        let mut spec = json!({"rules": (0..=dice.roll(2)).map(|_| http_rule(target, town, dice)).collect::<Vec<_>>()});
        if dice.chance(60) {
            spec["parentRefs"] = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "front", "namespace": "alpha"}]);
            spec["hostnames"] =
                json!([format!("h{}.{}", dice.roll(9), dice.pick(&["own.example", "beta.example", "plain.example"]))]);
        } else {
            let mut parent =
                json!({"group": "", "kind": "Service", "name": target.name, "namespace": target.namespace});
            if dice.chance(40) {
                parent["port"] = json!(target.port(dice));
            }
            spec["parentRefs"] = json!([parent]);
        }
        objects.push(of("HTTPRoute", namespace, &format!("http{number}"), spec));
    }
    for number in 0..town.len() / 50 {
        let target = dice.pick(town);
        let parents =
            json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "front", "namespace": "alpha"}]);
        objects.push(of(
            "GRPCRoute",
            target.namespace,
            &format!("grpc{number}"),
            json!({"parentRefs": parents,
            "hostnames": [format!("g{number}.plain.example")],
            "rules": [{"matches": [{"method": {"type": "Exact", "service": "shop.Cart", "method": "Add"}}],
                "backendRefs": [backend(target, target, dice)]}]}),
        ));
        objects.push(of("TLSRoute", target.namespace, &format!("tls{number}"), json!({"parentRefs": parents,
            "hostnames": [format!("t{number}.through.example")], "rules": [{"backendRefs": [backend(target, target, dice)]}]})));
    }
}

fn backend(to: &Service, at: &Service, dice: &mut Dice) -> Value {
    let mut backend =
        json!({"group": "", "kind": "Service", "name": to.name, "port": to.port(dice), "weight": 1 + dice.roll(5)});
    if to.namespace != at.namespace {
        backend["namespace"] = json!(to.namespace);
    }
    backend
}

fn http_rule(target: &Service, town: &[Service], dice: &mut Dice) -> Value {
    let path = format!("/g{}", dice.roll(20));
    let matches = match dice.roll(4) {
        0 => json!([{"path": {"type": "Exact", "value": path}}]),
        1 => json!([{"path": {"type": "PathPrefix", "value": path}, "method": "GET"},
            {"path": {"type": "PathPrefix", "value": "/"}, "headers": [{"type": "Exact", "name": "x-kind", "value": "b"}]}]),
        2 => json!([{"path": {"type": "RegularExpression", "value": format!("{path}.*")},
            "queryParams": [{"type": "Exact", "name": "q", "value": "1"}]}]),
        _ => json!([{"path": {"type": "PathPrefix", "value": path}}]),
    };
    let mut backends = vec![backend(target, target, dice)];
    if dice.chance(30) {
        backends.push(backend(dice.pick(town), target, dice));
    }
    let mut rule = json!({"matches": matches, "backendRefs": backends});
    if dice.chance(30) {
        rule["filters"] = json!([match dice.roll(3) {
            0 => json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {
                "set": [{"name": "x-set", "value": "1"}], "remove": ["x-gone"]}}),
            1 =>
                json!({"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}}}),
            _ =>
                json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": {"add": [{"name": "x-more", "value": "2"}]}}),
        }]);
    }
    if dice.chance(20) {
        rule["timeouts"] = json!({"request": "10s"});
    }
    rule
}

fn ingress(number: usize, target: &Service, dice: &mut Dice) -> Value {
    let backend = json!({"service": {"name": target.name, "port": {"number": target.port(dice)}}});
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": format!("in{number}"), "namespace": target.namespace, "annotations": {"kubernetes.io/ingress.class": "istio"}},
        "spec": {"rules": [{"host": format!("in{number}.example.org"), "http": {"paths": [
            {"path": format!("/i{number}"), "pathType": dice.pick(&["Prefix", "Exact"]), "backend": backend}]}}]}})
}
