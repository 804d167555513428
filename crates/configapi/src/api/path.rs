//! Paths of requests.

use crate::resource::{ResourceInfo, ResourceTable};

/// What a path means.
#[derive(Clone, Debug)]
pub(super) enum RequestPath {
    Health,
    /// `/api`.
    Core,
    /// `/apis`.
    Groups,
    Group(String),
    /// Group and version.
    Version(String, String),
    OpenApi,
    OpenApiVersion(String, String),
    ServerVersion,
    AccessReview,
    Object(ObjectPath),
}

/// The path of an object, or of a collection if the name is empty.
#[derive(Clone, Debug)]
pub(super) struct ObjectPath {
    pub(super) resource: &'static ResourceInfo,
    pub(super) version: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) is_status: bool,
}

impl RequestPath {
    pub(super) fn parse(path: &str) -> Option<RequestPath> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let own = |text: &&str| (*text).to_owned();
        match parts.as_slice() {
            ["healthz" | "livez" | "readyz", ..] => Some(RequestPath::Health),
            ["api"] => Some(RequestPath::Core),
            ["apis"] => Some(RequestPath::Groups),
            ["version"] => Some(RequestPath::ServerVersion),
            ["openapi", "v3"] => Some(RequestPath::OpenApi),
            ["openapi", "v3", "api", version] => Some(RequestPath::OpenApiVersion(String::new(), own(version))),
            ["openapi", "v3", "apis", group, version] => Some(RequestPath::OpenApiVersion(own(group), own(version))),
            ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"] => Some(RequestPath::AccessReview),
            ["api", version] => Some(RequestPath::Version(String::new(), own(version))),
            ["apis", group] => Some(RequestPath::Group(own(group))),
            ["apis", group, version] => Some(RequestPath::Version(own(group), own(version))),
            ["api", version, rest @ ..] => object_path("", version, rest).map(RequestPath::Object),
            ["apis", group, version, rest @ ..] => object_path(group, version, rest).map(RequestPath::Object),
            _ => None,
        }
    }
}

fn object_path(group: &str, version: &str, rest: &[&str]) -> Option<ObjectPath> {
    let find = |plural: &str| ResourceTable::get().by_path(group, version, plural);
    let (namespace, plural, name, subresource) = match rest {
        // The namespace object itself, and its status.
        ["namespaces", name] if group.is_empty() => ("", "namespaces", *name, ""),
        ["namespaces", name, "status"] if group.is_empty() => ("", "namespaces", *name, "status"),
        ["namespaces", namespace, plural] => (*namespace, *plural, "", ""),
        ["namespaces", namespace, plural, name] => (*namespace, *plural, *name, ""),
        ["namespaces", namespace, plural, name, subresource] => (*namespace, *plural, *name, *subresource),
        [plural] => ("", *plural, "", ""),
        [plural, name] => ("", *plural, *name, ""),
        [plural, name, subresource] => ("", *plural, *name, *subresource),
        _ => return None,
    };
    let resource = find(plural)?;
    // Objects of a namespace need one; lists of all namespaces do not.
    if resource.is_namespaced && namespace.is_empty() && !name.is_empty() {
        return None;
    }
    if !resource.is_namespaced && !namespace.is_empty() {
        return None;
    }
    let is_status = match subresource {
        "" => false,
        "status" if resource.has_status => true,
        _ => return None,
    };
    Some(ObjectPath {
        resource,
        version: version.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        is_status,
    })
}

#[cfg(test)]
mod tests {
    use super::RequestPath;

    fn object(path: &str) -> Option<(String, String, String, bool)> {
        match RequestPath::parse(path)? {
            RequestPath::Object(path) => {
                Some((path.resource.id.clone(), path.namespace.clone(), path.name.clone(), path.is_status))
            }
            _ => None,
        }
    }

    #[test]
    fn paths_name_resources_namespaces_and_objects() {
        let found = |id: &str, namespace: &str, name: &str, is_status: bool| {
            Some((id.to_owned(), namespace.to_owned(), name.to_owned(), is_status))
        };
        for (path, expected) in [
            ("/api/v1/namespaces", found("namespaces", "", "", false)),
            ("/api/v1/namespaces/shop", found("namespaces", "", "shop", false)),
            ("/api/v1/namespaces/shop/status", found("namespaces", "", "shop", true)),
            ("/api/v1/namespaces/shop/services/cart", found("services", "shop", "cart", false)),
            ("/api/v1/services", found("services", "", "", false)),
            ("/api/v1/services/cart", None),
            ("/api/v1/namespaces/shop/nodes", None),
            (
                "/apis/networking.istio.io/v1/namespaces/shop/virtualservices/a/status",
                found("virtualservices.networking.istio.io", "shop", "a", true),
            ),
            ("/apis/networking.istio.io/v9/virtualservices", None),
            ("/api/v1/namespaces/shop/configmaps/a/status", None),
        ] {
            assert_eq!(object(path), expected, "{path}");
        }
    }
}
