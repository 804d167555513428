//! Queries of pages in a bundle: filters them as the server does. `bundle_file` finds the page.

use serde_json::Value;

/// Entries of the journal that the server returns unless it is asked for another number.
const HISTORY_LIMIT: usize = 100;

/// Parameters of a query.
struct PageQuery(Vec<(String, String)>);

impl PageQuery {
    /// A parameter that is not empty.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }

    /// Whether a field is the parameter of this name, or there is none.
    fn is(&self, name: &str, value: &Value) -> bool {
        self.get(name).is_none_or(|wanted| value[name] == wanted)
    }
}

/// What the server would have answered to a query, from the whole page.
pub(crate) fn answer(page: &str, query: &str, mut whole: Value) -> Value {
    let query = PageQuery(form_urlencoded::parse(query.as_bytes()).into_owned().collect());
    match page {
        "/api/v1/history" => history(&query, &mut whole),
        "/api/v1/objects" => objects(&query, &mut whole),
        "/api/v1/services" => services(&query, &mut whole),
        _ => {}
    }
    whole
}

fn history(query: &PageQuery, page: &mut Value) {
    let Some(entries) = page["entries"].as_array_mut() else { return };
    let any = |entry: &Value, list: &str, is_it: &dyn Fn(&Value) -> bool| {
        entry[list].as_array().is_some_and(|items| items.iter().any(is_it))
    };
    if let Some(wanted) = query.get("object") {
        let mut parts = wanted.splitn(3, '/');
        let [kind, namespace, name] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let is_it = |object: &Value| {
            object["kind"].as_str().is_some_and(|known| known.eq_ignore_ascii_case(kind))
                && object["namespace"] == namespace
                && object["name"] == name
        };
        entries.retain(|entry| any(entry, "objects", &is_it));
    }
    if let Some(wanted) = query.get("proxy") {
        entries.retain(|entry| any(entry, "proxies", &|by| by["proxy"] == wanted));
    }
    entries.truncate(query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(HISTORY_LIMIT));
    if !query.has("proxies") {
        entries.iter_mut().filter_map(Value::as_object_mut).for_each(|entry| drop(entry.shift_remove("proxies")));
    }
}

fn objects(query: &PageQuery, page: &mut Value) {
    let Some(objects) = page.as_array_mut() else { return };
    objects.retain(|object| ["config", "kind", "namespace", "name"].iter().all(|field| query.is(field, object)));
    if !query.has("spec") {
        objects.iter_mut().filter_map(Value::as_object_mut).for_each(|object| drop(object.shift_remove("object")));
    }
}

fn services(query: &PageQuery, page: &mut Value) {
    let Some(services) = page["services"].as_array_mut() else { return };
    services.retain(|service| {
        let is_named = |part: &str| service["host"].as_str().is_some_and(|host| host.contains(part));
        query.get("name").is_none_or(is_named) && query.is("namespace", service) && query.is("registry", service)
    });
    page["total"] = page["services"].as_array().map_or(0, Vec::len).into();
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::answer;

    fn history() -> Value {
        let object = |name: &str| json!({"kind": "VirtualService", "namespace": "shop", "name": name});
        let by = |proxy: &str| json!([{"proxy": proxy, "millis": 1}]);
        json!({"entries": [
            {"last": 3, "objects": [object("cart"), object("till")], "proxies": by("a.shop")},
            {"last": 2, "objects": [object("cart")], "proxies": by("b.shop")},
            {"last": 1, "objects": [], "proxies": by("a.shop")},
        ]})
    }

    #[test]
    fn changes_are_chosen_by_object_proxy_and_number() {
        for (query, expected) in [
            ("", vec![3, 2, 1]),
            ("limit=2", vec![3, 2]),
            ("object=virtualservice%2Fshop%2Fcart", vec![3, 2]),
            ("object=VirtualService/shop/till", vec![3]),
            ("object=VirtualService/bank/till", vec![]),
            ("proxy=a.shop", vec![3, 1]),
            ("proxy=a.shop&object=VirtualService/shop/cart&limit=9", vec![3]),
            ("proxy=none.shop", vec![]),
        ] {
            let page = answer("/api/v1/history", query, history());
            let found: Vec<&Value> = page["entries"].as_array().unwrap().iter().map(|entry| &entry["last"]).collect();
            assert_eq!(found, expected, "{query}");
            assert!(!page.to_string().contains("millis"), "{query}: proxies are listed only when asked for");
        }
        assert!(answer("/api/v1/history", "proxies", history()).to_string().contains("millis"));
    }

    #[test]
    fn objects_and_services_are_chosen_by_fields() {
        let objects = json!([
            {"kind": "Gateway", "namespace": "a", "name": "x", "config": "/1", "object": {"spec": {}}},
            {"kind": "Gateway", "namespace": "b", "name": "x", "config": "/2", "object": {"spec": {}}},
        ]);
        let chosen = answer("/api/v1/objects", "namespace=b&name=x&kind=", objects.clone());
        assert_eq!(chosen, json!([{"kind": "Gateway", "namespace": "b", "name": "x", "config": "/2"}]));
        assert_eq!(answer("/api/v1/objects", "spec&config=/1", objects.clone()), json!([objects[0]]));
        let services = json!({"total": 2, "services": [{"host": "a.x", "registry": "Consul"}, {"host": "b.x", "registry": "Eureka"}]});
        let chosen = answer("/api/v1/services", "name=b.&registry=Eureka", services.clone());
        assert_eq!(chosen, json!({"total": 1, "services": [services["services"][1]]}));
        assert_eq!(answer("/api/v1/services", "registry=File", services)["total"], 0);
    }
}
