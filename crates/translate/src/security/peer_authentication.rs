//! PeerAuthentication: which connections a workload accepts, by port.

use std::collections::BTreeMap;

use api::istio::security::v1beta1::PeerAuthentication;
use api::istio::security::v1beta1::peer_authentication::{MutualTls, mutual_tls};
use model::config::Config;
use model::labels::selects;
use scope::View;

/// What a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MtlsMode {
    /// Plain text only.
    Disable,
    /// mTLS and plain text.
    Permissive,
    /// mTLS only.
    Strict,
}

/// The modes of one workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MtlsModes {
    pub default: MtlsMode,
    /// By the port that the workload listens on.
    pub ports: BTreeMap<u32, MtlsMode>,
}

impl MtlsModes {
    pub fn of_port(&self, port: u32) -> MtlsMode {
        self.ports.get(&port).copied().unwrap_or(self.default)
    }
}

/// The modes of the view's own workload: the policy that selects it over its namespace's over the mesh's,
/// the oldest of each; what one leaves unset it has from the wider one.
pub fn modes(view: &View) -> MtlsModes {
    let root = view.settings.root_namespace();
    let all = &view.policy.peer_authentications;
    let wide = |c: &&Config<PeerAuthentication>| selector(c).is_none_or(BTreeMap::is_empty);
    let own = |c: &&Config<PeerAuthentication>| c.meta.namespace == view.proxy.namespace && c.meta.namespace != root;
    let of_mesh = all.iter().filter(wide).find(|c| c.meta.namespace == root);
    let of_namespace = all.iter().filter(own).find(wide);
    let of_workload = all
        .iter()
        .filter(own)
        .find(|c| selector(c).is_some_and(|labels| !labels.is_empty() && selects(labels, &view.proxy.labels)));
    let widest_first = [of_mesh, of_namespace, of_workload];
    let chosen = widest_first.into_iter().flatten().filter_map(|c| mode(c.spec.mtls.as_ref())).next_back();
    let default = chosen.unwrap_or(MtlsMode::Permissive);
    let ports = of_workload.into_iter().flat_map(|c| &c.spec.port_level_mtls);
    MtlsModes { default, ports: ports.map(|(port, mtls)| (*port, mode(Some(mtls)).unwrap_or(default))).collect() }
}

fn selector(config: &Config<PeerAuthentication>) -> Option<&BTreeMap<String, String>> {
    config.spec.selector.as_ref().map(|s| &s.match_labels)
}

fn mode(mtls: Option<&MutualTls>) -> Option<MtlsMode> {
    match mtls?.mode() {
        mutual_tls::Mode::Unset => None,
        mutual_tls::Mode::Disable => Some(MtlsMode::Disable),
        mutual_tls::Mode::Permissive => Some(MtlsMode::Permissive),
        mutual_tls::Mode::Strict => Some(MtlsMode::Strict),
    }
}
