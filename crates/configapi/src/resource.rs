//! The table of resources that the API serves: the config kinds of the model, and the core kinds that the mesh reads.

use std::sync::LazyLock;

use model::config::Kind;
use model::config::definition::definition;
use serde_json::{Value, json};

use crate::schema;

/// One kind with its names and its schema.
#[derive(Clone, Debug)]
pub struct ResourceInfo {
    /// Plural name and group, such as `virtualservices.networking.istio.io`; the plural alone in the core group.
    pub id: String,
    pub group: String,
    /// Served versions, preferred first.
    pub versions: Vec<String>,
    pub kind: String,
    pub plural: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub is_namespaced: bool,
    pub has_status: bool,
    pub has_generation: bool,
    /// Printer columns: name, type, JSON path.
    pub columns: Vec<[String; 3]>,
    /// Fields that lists can be selected by, in addition to name and namespace.
    pub selectable: Vec<&'static str>,
    /// The structural schema of whole objects.
    pub schema: Value,
    pub is_custom: bool,
    /// The config kind of the model.
    pub config: Option<Kind>,
}

impl ResourceInfo {
    /// `group/version`, or the version alone in the core group.
    pub fn api_version(&self, version: &str) -> String {
        match self.group.as_str() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    pub fn singular(&self) -> String {
        self.kind.to_lowercase()
    }

    pub fn preferred_version(&self) -> &str {
        self.versions.first().map_or("v1", String::as_str)
    }

    /// What requests may do with it.
    pub fn verbs(&self) -> &'static [&'static str] {
        &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    }
}

/// All resources.
#[derive(Debug)]
pub struct ResourceTable(Vec<ResourceInfo>);

static TABLE: LazyLock<ResourceTable> = LazyLock::new(ResourceTable::build);

impl ResourceTable {
    pub fn get() -> &'static ResourceTable {
        &TABLE
    }

    fn build() -> ResourceTable {
        let core = CORE.iter().map(core_resource);
        ResourceTable(core.chain(Kind::ALL.iter().map(|kind| config_resource(*kind))).collect())
    }

    pub fn all(&self) -> impl Iterator<Item = &ResourceInfo> {
        self.0.iter()
    }

    /// A resource by its place in a path.
    pub fn by_path(&self, group: &str, version: &str, plural: &str) -> Option<&ResourceInfo> {
        let is_it =
            |r: &&ResourceInfo| r.group == group && r.plural == plural && r.versions.iter().any(|v| v == version);
        self.0.iter().find(is_it)
    }

    pub fn by_id(&self, id: &str) -> Option<&ResourceInfo> {
        self.0.iter().find(|resource| resource.id == id)
    }

    /// The resource of a document.
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<&ResourceInfo> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let is_it = |r: &&ResourceInfo| r.group == group && r.kind == kind && r.versions.iter().any(|v| v == version);
        self.0.iter().find(is_it)
    }

    /// Group and version of everything that is served. Groups are in the order of the table, the core group first;
    /// versions are in order of preference.
    pub fn group_versions(&self) -> Vec<(String, Vec<String>)> {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for resource in &self.0 {
            let at = groups.iter().position(|(group, _)| *group == resource.group).unwrap_or_else(|| {
                groups.push((resource.group.clone(), Vec::new()));
                groups.len() - 1
            });
            for version in &resource.versions {
                if !groups[at].1.contains(version) {
                    groups[at].1.push(version.clone());
                }
            }
        }
        groups
    }

    /// Resources of one version of a group.
    pub fn of_version<'a>(&'a self, group: &'a str, version: &'a str) -> impl Iterator<Item = &'a ResourceInfo> {
        self.0.iter().filter(move |r| r.group == group && r.versions.iter().any(|v| v == version))
    }
}

/// CustomResourceDefinitions of the served kinds, for clients that look for them.
pub fn definitions() -> impl Iterator<Item = Value> {
    ResourceTable::get().all().filter(|resource| resource.is_custom).map(|resource| {
        let known = resource.config.and_then(definition);
        known.unwrap_or_else(|| plain_definition(resource))
    })
}

/// The definition of a kind whose schema the model does not have.
fn plain_definition(resource: &ResourceInfo) -> Value {
    let version = |(index, name): (usize, &String)| {
        json!({
            "name": name, "served": true, "storage": index == 0, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": resource.schema.clone()},
        })
    };
    let versions: Vec<Value> = resource.versions.iter().enumerate().map(version).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.id},
        "spec": {
            "group": resource.group,
            "names": {
                "kind": resource.kind,
                "listKind": format!("{}List", resource.kind),
                "plural": resource.plural,
                "singular": resource.singular(),
                "shortNames": resource.short_names,
            },
            "scope": if resource.is_namespaced { "Namespaced" } else { "Cluster" },
            "versions": versions,
        },
    })
}

fn config_resource(kind: Kind) -> ResourceInfo {
    let definition = definition(kind).unwrap_or_default();
    let version = &definition["spec"]["versions"][0];
    let schema = match version["schema"]["openAPIV3Schema"].clone() {
        Value::Null => schema::gateway_api(kind.as_str()),
        known => known,
    };
    let texts = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
    };
    let column = |column: &Value| {
        let text = |key: &str| column[key].as_str().unwrap_or_default().to_owned();
        [text("name"), text("type"), text("jsonPath")]
    };
    let columns = version["additionalPrinterColumns"].as_array().into_iter().flatten().map(column).collect();
    ResourceInfo {
        id: format!("{}.{}", kind.plural(), kind.group()),
        group: kind.group().to_owned(),
        versions: kind.versions().iter().map(|version| (*version).to_owned()).collect(),
        kind: kind.as_str().to_owned(),
        plural: kind.plural().to_owned(),
        short_names: texts(&definition["spec"]["names"]["shortNames"]),
        categories: texts(&definition["spec"]["names"]["categories"]),
        is_namespaced: !kind.is_cluster_wide(),
        has_status: true,
        has_generation: true,
        columns,
        selectable: Vec::new(),
        schema: schema::whole(schema),
        // API servers serve these without a definition.
        is_custom: kind.group() != "networking.k8s.io",
        config: Some(kind),
    }
}

/// A row of the core kinds.
struct CoreKind {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    is_namespaced: bool,
    has_status: bool,
    has_generation: bool,
    selectable: &'static [&'static str],
}

const fn core(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
) -> CoreKind {
    CoreKind {
        group,
        kind,
        plural,
        short,
        is_namespaced: true,
        has_status: false,
        has_generation: false,
        selectable: &[],
    }
}

const CORE: &[CoreKind] = &[
    CoreKind {
        is_namespaced: false,
        has_status: true,
        selectable: &["status.phase"],
        ..core("", "Namespace", "namespaces", &["ns"])
    },
    CoreKind { has_status: true, ..core("", "Service", "services", &["svc"]) },
    CoreKind { selectable: &["type"], ..core("", "Secret", "secrets", &[]) },
    core("", "ConfigMap", "configmaps", &["cm"]),
    CoreKind {
        has_status: true,
        selectable: &["spec.nodeName", "status.phase", "status.podIP"],
        ..core("", "Pod", "pods", &["po"])
    },
    CoreKind { is_namespaced: false, has_status: true, ..core("", "Node", "nodes", &["no"]) },
    core("", "ServiceAccount", "serviceaccounts", &["sa"]),
    CoreKind { has_generation: true, ..core("discovery.k8s.io", "EndpointSlice", "endpointslices", &[]) },
    core("coordination.k8s.io", "Lease", "leases", &[]),
    CoreKind {
        is_namespaced: false,
        has_status: true,
        has_generation: true,
        ..core("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", &["crd", "crds"])
    },
];

fn core_resource(row: &CoreKind) -> ResourceInfo {
    ResourceInfo {
        id: if row.group.is_empty() { row.plural.to_owned() } else { format!("{}.{}", row.plural, row.group) },
        group: row.group.to_owned(),
        versions: vec!["v1".to_owned()],
        kind: row.kind.to_owned(),
        plural: row.plural.to_owned(),
        short_names: row.short.iter().map(|name| (*name).to_owned()).collect(),
        categories: if ["Service", "Pod"].contains(&row.kind) { vec!["all".to_owned()] } else { Vec::new() },
        is_namespaced: row.is_namespaced,
        has_status: row.has_status,
        has_generation: row.has_generation,
        columns: Vec::new(),
        selectable: row.selectable.to_vec(),
        schema: schema::whole(schema::core::of(row.kind)),
        is_custom: false,
        config: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{ResourceTable, definitions};

    #[test]
    fn every_resource_has_its_own_id_and_kind() {
        let table = ResourceTable::get();
        let ids: BTreeSet<&str> = table.all().map(|resource| resource.id.as_str()).collect();
        assert_eq!(ids.len(), table.all().count());
        for resource in table.all() {
            let version = resource.preferred_version();
            let found = table.by_path(&resource.group, version, &resource.plural).map(|r| &r.id);
            assert_eq!(found, Some(&resource.id));
            let found = table.by_kind(&resource.api_version(version), &resource.kind).map(|r| &r.id);
            assert_eq!(found, Some(&resource.id));
        }
    }

    #[test]
    fn config_kinds_have_definitions() {
        let names: Vec<String> =
            definitions().map(|d| d["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect();
        for name in ["virtualservices.networking.istio.io", "httproutes.gateway.networking.k8s.io"] {
            assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
        }
        assert!(!names.iter().any(|name| name.starts_with("ingresses.")));
    }
}
