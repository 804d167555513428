//! VirtualServices: of services in the mesh, and of hosts at the gateways.

use serde_json::{Value, json};

use super::dice::{Dice, sprinkle};
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
        if dice.chance(10) {
            spec["hosts"] = dice
                .pick(&[
                    json!(["*.example.com"]),
                    json!(["*"]),
                    json!([target.host(), "more.example.com"]),
                    json!(["out1.example.com"]),
                    json!(["*.alpha.svc.cluster.local"]),
                ])
                .clone();
        }
        if dice.chance(8) {
            spec["exportTo"] = json!([dice.pick(&[".", "*", "beta"])]);
        }
        objects.push(istio("VirtualService", "networking.istio.io", namespace, &format!("route{number}"), spec));
        if dice.chance(6) {
            delegating(number, dice.pick(town), town, dice, objects);
        }
    }
}

/// A root VirtualService with delegates, and the delegates.
fn delegating(number: usize, target: &Service, town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    let name = format!("part{number}");
    let routes: Vec<Value> = (0..=dice.roll(2)).map(|_| http_route(target, "beta", town, dice)).collect();
    objects.push(istio("VirtualService", "networking.istio.io", "beta", &name, json!({"http": routes})));
    let mut first = json!({"match": [{"uri": {"prefix": "/p"}}], "delegate": {"name": name, "namespace": "beta"}});
    sprinkle(
        &mut first,
        &[(
            20,
            "match",
            json!([{"uri": {"prefix": "/p1"}, "headers": {"x-d": {"exact": "1"}}}, {"uri": {"exact": "/p2"}}]),
        )],
        dice,
    );
    let spec = json!({"hosts": [target.host()], "gateways": dice.pick(&[json!(["mesh"]), json!(["mesh", format!("{ROOT}/edge0")])]),
        "http": [first, {"route": [destination(target, "alpha", dice)]}]});
    objects.push(istio("VirtualService", "networking.istio.io", "alpha", &format!("root{number}"), spec));
}

fn at_gateway(number: usize, town: &[Service], dice: &mut Dice) -> Value {
    let target = dice.pick(town);
    let routes: Vec<Value> = (0..=dice.roll(3)).map(|_| http_route(target, ROOT, town, dice)).collect();
    let gateway = format!("{ROOT}/edge{}", dice.roll(6));
    let mut gateways = vec![gateway];
    if dice.chance(20) {
        gateways.push("mesh".to_owned());
    }
    let host = format!("shop{}.example.com", number % 9);
    let hosts = dice
        .pick(&[
            json!([host]),
            json!([host]),
            json!(["*"]),
            json!(["*.example.com"]),
            json!([host, "mine.example.com"]),
        ])
        .clone();
    let mut spec = json!({"hosts": hosts, "gateways": gateways, "http": routes});
    let to = destination(target, ROOT, dice);
    sprinkle(
        &mut spec,
        &[
            (20, "tcp", json!([{"match": [{"port": 31400}], "route": [to]}])),
            (25, "tls", json!([{"match": [{"port": dice.pick(&[443, 8443]), "sniHosts": hosts}], "route": [to]}])),
        ],
        dice,
    );
    spec
}

fn of_bytes(target: &Service, namespace: &str, town: &[Service], dice: &mut Dice) -> Value {
    let hosts = json!([target.host()]);
    let mut to = destination(dice.pick(town), namespace, dice);
    to.as_object_mut().expect("an object by the lines above").remove("headers");
    let mut condition = json!({"port": target.port(dice)});
    sprinkle(
        &mut condition,
        &[
            (20, "sourceLabels", json!({"version": "v1"})),
            (20, "destinationSubnets", json!(["10.96.0.0/16", "10.1.2.3"])),
            (10, "sourceNamespace", json!("alpha")),
            (10, "gateways", json!(["mesh"])),
        ],
        dice,
    );
    let mut other = destination(dice.pick(town), namespace, dice);
    let routes = if dice.chance(40) {
        to["weight"] = json!(30);
        other["weight"] = json!(70);
        json!([to, other])
    } else {
        json!([to])
    };
    if dice.chance(50) {
        let plain =
            if dice.chance(30) { json!([{"route": routes}]) } else { json!([{"match": [condition], "route": routes}]) };
        return json!({"hosts": hosts, "tcp": plain});
    }
    condition["sniHosts"] =
        dice.pick(&[json!([target.host()]), json!([target.host(), format!("sub.{}", target.host())])]).clone();
    json!({"hosts": hosts, "tls": [{"match": [condition], "route": routes}]})
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
        2 => {
            let mut redirect = json!({"scheme": "https"});
            sprinkle(
                &mut redirect,
                &[(40, "port", json!(8443)), (30, "uri", json!("/%5E")), (30, "redirectCode", json!(307))],
                dice,
            );
            if redirect.get("port").is_none() && dice.chance(40) {
                redirect["derivePort"] = json!(dice.pick(&["FROM_REQUEST_PORT", "FROM_PROTOCOL_DEFAULT"]));
            }
            json!({"redirect": redirect})
        }
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
    let mut condition = plain_match(target, dice);
    sprinkle(
        &mut condition,
        &[
            (5, "authority", json!({"prefix": "a."})),
            (5, "scheme", json!({"exact": "https"})),
            (5, "sourceNamespace", json!("alpha")),
            (5, "statPrefix", json!("counted")),
            (5, "name", json!("this")),
            (4, "gateways", json!(["mesh"])),
            (5, "withoutHeaders", json!({"x-not": {"prefix": "a"}, "x-nor": {"regex": "b+"}})),
        ],
        dice,
    );
    condition
}

fn plain_match(target: &Service, dice: &mut Dice) -> Value {
    let path = format!("/p{}", dice.roll(20));
    match dice.roll(14) {
        9 => json!({"headers": {":authority": {"exact": "x.example"}, "x-b": {"prefix": "pre"}, "x-present": {}}}),
        10 => json!({"queryParams": {"r": {"regex": "a+"}, "p": {"prefix": "z"}, "any": {}}}),
        11 => json!({"uri": {"prefix": "/"}, "method": {"regex": "GET|HEAD"}}),
        12 => json!({"uri": {"exact": path}, "ignoreUriCase": true, "port": target.port(dice)}),
        13 => json!({"headers": {"x-a": {"exact": ""}}}),
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
    usual_treatment(route, town, namespace, dice);
    let copies: Vec<Value> = (0..2).map(|_| json!({"destination": destination(dice.pick(town), namespace, dice)["destination"], "percentage": {"value": 3.5}})).collect();
    if route.get("mirror").is_none() && dice.chance(8) {
        route["mirrors"] = json!(copies);
    }
    sprinkle(
        route,
        &[
            (6, "rewrite", json!({"uriRegexRewrite": {"match": "^/a/(.*)", "rewrite": "/b/\\1"}})),
            (6, "rewrite", json!({"uri": "/"})),
            (
                6,
                "retries",
                json!({"attempts": 2, "retryOn": "retriable-4xx,418,connect-failure", "retryRemoteLocalities": true, "backoff": "0.05s"}),
            ),
            (5, "retries", json!({"attempts": 3, "retryIgnorePreviousHosts": false})),
            (6, "fault", json!({"abort": {"grpcStatus": "UNAVAILABLE", "percentage": {"value": 100}}})),
            (6, "fault", json!({"delay": {"fixedDelay": "1s", "percent": 7}})),
            (
                6,
                "corsPolicy",
                json!({"allowOrigin": ["*"], "allowOrigins": [{"prefix": "https://p"}], "exposeHeaders": ["x-e"], "unmatchedPreflights": "IGNORE"}),
            ),
            (5, "timeout", json!("0s")),
        ],
        dice,
    );
    if let Some(first) = route["route"].get_mut(0).filter(|_| dice.chance(8)) {
        first["headers"] = json!({"request": {"set": {":authority": "set.example"}}, "response": {"remove": ["x-r"], "set": {"x-s": "%UPSTREAM_HOST%"}}});
    }
}

fn usual_treatment(route: &mut Value, town: &[Service], namespace: &str, dice: &mut Dice) {
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
