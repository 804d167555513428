//! Ingresses, of our class and of others.

use serde_json::{Value, json};

use super::dice::{Dice, sprinkle};
use super::services::Service;

pub(super) fn generate(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    objects.push(json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "mesh"},
        "spec": {"controller": "istio.io/ingress-controller"}}));
    objects.push(json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "foreign"},
        "spec": {"controller": "example.com/other"}}));
    for number in 0..(town.len() / 20).max(6) {
        objects.push(ingress(number, dice.pick(town), town, dice));
    }
}

fn ingress(number: usize, target: &Service, town: &[Service], dice: &mut Dice) -> Value {
    let neighbours: Vec<&Service> = town.iter().filter(|s| s.namespace == target.namespace).collect();
    let backend = |dice: &mut Dice| {
        let to = dice.pick(&neighbours);
        let (name, port) = dice.pick(&to.ports);
        let port = if name.is_empty() || dice.chance(60) { json!({"number": port}) } else { json!({"name": name}) };
        json!({"service": {"name": to.name, "port": port}})
    };
    let paths = |dice: &mut Dice| -> Vec<Value> {
        let path = |dice: &mut Dice| {
            let (kind, path) = dice.pick(&[
                ("Prefix", "/a"),
                ("Prefix", "/"),
                ("Exact", "/exact"),
                ("Prefix", "/a/b/"),
                ("ImplementationSpecific", "/im/.*"),
                ("ImplementationSpecific", "/plain"),
                ("Exact", "/a"),
            ]);
            json!({"path": path, "pathType": kind, "backend": backend(dice)})
        };
        (0..=dice.roll(3)).map(|_| path(dice)).collect()
    };
    let hosts = [format!("in{}.example.org", number % 4), "*.wild.example.org".to_owned(), String::new()];
    let rules: Vec<Value> = (0..=dice.roll(2))
        .map(|_| {
            let host = dice.pick(&hosts).clone();
            let http = json!({"paths": paths(dice)});
            if host.is_empty() { json!({"http": http}) } else { json!({"host": host, "http": http}) }
        })
        .collect();
    let mut spec = json!({"rules": rules});
    let default = backend(dice);
    sprinkle(
        &mut spec,
        &[
            (30, "defaultBackend", default),
            (
                40,
                "tls",
                json!([{"hosts": [hosts[0], "more.example.org"], "secretName": format!("secret{}", number % 3)}]),
            ),
            (10, "tls", json!([{"secretName": "all"}])),
        ],
        dice,
    );
    let mut meta = json!({"name": format!("in{number}"), "namespace": target.namespace});
    match dice.roll(6) {
        0 => spec["ingressClassName"] = json!("foreign"),
        1 => {}
        2 | 3 => spec["ingressClassName"] = json!("mesh"),
        _ => meta["annotations"] = json!({"kubernetes.io/ingress.class": dice.pick(&["istio", "istio", "nginx"])}),
    }
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": meta, "spec": spec})
}
