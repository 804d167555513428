//! VirtualServices: of services in the mesh, and of hosts at the gateways.

use serde_json::{Value, json};

use super::dice::Dice;
use super::services::Service;
use super::{NAMESPACES, ROOT, istio};

pub(super) fn generate(town: &[Service], count: usize, dice: &mut Dice, objects: &mut Vec<Value>) {
    for number in 0..count {
        let target = dice.pick(town);
        let namespace = if dice.chance(75) { target.namespace } else { *dice.pick(NAMESPACES) };
        let mut spec = match dice.roll(10) {
            0 => at_gateway(number, town, dice),
            1 => of_bytes(target, namespace, town, dice),
            _ => {
                let routes: Vec<Value> =
                    (0..=dice.roll(3)).map(|_| http_route(target, namespace, town, dice)).collect();
                json!({"hosts": [target.host_from(namespace, dice)], "http": routes})
            }
        };
        if dice.chance(8) {
            spec["exportTo"] = json!([dice.pick(&[".", "*", "beta"])]);
        }
        objects.push(istio("VirtualService", "networking.istio.io", namespace, &format!("route{number}"), spec));
    }
}

fn at_gateway(number: usize, town: &[Service], dice: &mut Dice) -> Value {
    let target = dice.pick(town);
    let routes: Vec<Value> = (0..=dice.roll(3)).map(|_| http_route(target, ROOT, town, dice)).collect();
    let gateway = format!("{ROOT}/edge{}", dice.roll(3));
    let mut gateways = vec![gateway];
    if dice.chance(20) {
        gateways.push("mesh".to_owned());
    }
    json!({"hosts": [format!("shop{}.example.com", number % 7)], "gateways": gateways, "http": routes})
}

fn of_bytes(target: &Service, namespace: &str, town: &[Service], dice: &mut Dice) -> Value {
    let hosts = json!([target.host()]);
    let mut to = destination(dice.pick(town), namespace, dice);
    to.as_object_mut().expect("an object by the lines above").remove("headers");
    if dice.chance(50) {
        return json!({"hosts": hosts, "tcp": [{"match": [{"port": target.port(dice)}], "route": [to]}]});
    }
    json!({"hosts": hosts, "tls": [{"match": [{"port": target.port(dice), "sniHosts": [target.host()]}], "route": [to]}]})
}

fn destination(to: &Service, namespace: &str, dice: &mut Dice) -> Value {
    let mut destination = json!({"host": to.host_from(namespace, dice), "port": {"number": to.port(dice)}});
    if dice.chance(30) {
        destination["subset"] = json!(dice.pick(&["v1", "v2", "v3"]));
    }
    if to.ports.len() == 1 && dice.chance(40) {
        destination.as_object_mut().expect("an object by the lines above").remove("port");
    }
    json!({"destination": destination})
}

fn http_route(target: &Service, namespace: &str, town: &[Service], dice: &mut Dice) -> Value {
    let mut route = match dice.roll(12) {
        0 => json!({"redirect": {"uri": "/moved", "authority": "elsewhere.example.com", "redirectCode": 302}}),
        1 => json!({"directResponse": {"status": 503, "body": {"string": "closed"}}}),
        2 => json!({"redirect": {"scheme": "https"}}),
        3..=5 => {
            let other = dice.pick(town);
            let (mut one, mut two) = (destination(target, namespace, dice), destination(other, namespace, dice));
            let share = dice.roll(101);
            one["weight"] = json!(share);
            two["weight"] = json!(100 - share);
            json!({"route": [one, two]})
        }
        _ => json!({"route": [destination(target, namespace, dice)]}),
    };
    if dice.chance(70) {
        route["match"] = json!((0..=dice.roll(2)).map(|_| http_match(target, dice)).collect::<Vec<_>>());
    }
    if dice.chance(25) {
        route["name"] = json!(format!("step{}", dice.roll(50)));
    }
    if route.get("route").is_some() {
        treatment(&mut route, town, namespace, dice);
    }
    route
}

fn http_match(target: &Service, dice: &mut Dice) -> Value {
    let path = format!("/p{}", dice.roll(20));
    match dice.roll(9) {
        0 => json!({"uri": {"exact": path}}),
        1 => json!({"uri": {"regex": format!("{path}/[a-z]+")}}),
        2 => json!({"uri": {"prefix": path}, "headers": {"x-kind": {"exact": "canary"}}}),
        3 => json!({"headers": {"x-kind": {"regex": "a.*"}}, "withoutHeaders": {"x-old": {}}}),
        4 => json!({"method": {"exact": "POST"}, "uri": {"prefix": path}, "ignoreUriCase": true}),
        5 => json!({"queryParams": {"q": {"exact": "1"}}}),
        6 => json!({"port": target.port(dice)}),
        7 => json!({"sourceLabels": {"version": "v1"}, "uri": {"prefix": path}}),
        _ => json!({"uri": {"prefix": path}}),
    }
}

fn treatment(route: &mut Value, town: &[Service], namespace: &str, dice: &mut Dice) {
    if dice.chance(20) {
        route["timeout"] = json!(format!("{}s", 1 + dice.roll(30)));
    }
    if dice.chance(20) {
        route["retries"] = json!({"attempts": dice.roll(4), "perTryTimeout": "2s", "retryOn": "5xx,gateway-error"});
    }
    if dice.chance(15) {
        route["rewrite"] = json!({"uri": "/new", "authority": "other.example.com"});
    }
    if dice.chance(12) {
        route["fault"] = json!({"delay": {"fixedDelay": "3s", "percentage": {"value": 12.5}},
            "abort": {"httpStatus": 418, "percentage": {"value": 1}}});
    }
    if dice.chance(12) {
        let copy = destination(dice.pick(town), namespace, dice);
        route["mirror"] = copy["destination"].clone();
        route["mirrorPercentage"] = json!({"value": 10});
    }
    if dice.chance(12) {
        route["corsPolicy"] = json!({"allowOrigins": [{"exact": "https://example.com"}, {"regex": ".*\\.example\\.com"}],
            "allowMethods": ["GET", "POST"], "allowHeaders": ["x-a"], "maxAge": "24h", "allowCredentials": true});
    }
    if dice.chance(20) {
        route["headers"] = json!({"request": {"set": {"x-set": "1"}, "add": {"x-more": "%START_TIME%"}, "remove": ["x-gone"]},
            "response": {"add": {"x-answered": "yes"}}});
    }
}
