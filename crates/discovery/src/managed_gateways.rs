//! Managed gateways: renders the objects of each Gateway from the newest snapshot and passes them to `sources::gateways`,
//! which writes them. Gateways that cannot be rendered or written are reported as problems.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use inject::{GatewayInputs, MeshInputs, NamespacedProxyConfig, gateway_objects};
use model::change::{Batch, Change, SourceId};
use model::config::{Key, Kind};
use model::problem::Problem;
use model::snapshot::Snapshot;
use model::snapshot::gateway_api::ConvertedConfig;
use model::snapshot::gateway_api::managed::{GatewayParameters, ManagedGateway};
use sources::gateways::config_maps::{self, ConfigMapName, GatewayConfigMaps};
use sources::gateways::{DeploymentProblems, GatewayDeployer, GatewayDeployment, GatewayName, WantedDeployments};
use sources::kubernetes::access::Access;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;
use xxhash_rust::xxh3::xxh3_64;

use crate::environment::{Environment, Instance};
use crate::injector_settings::{self, InjectorSettings, InjectorSettingsWatch, MISSING};
use crate::serve::snapshot_writer::PublishedSnapshot;

/// Lease of the replica that deploys gateways.
const LEASE: &str = "istio-gateway-deployment";

/// What the deployment of gateways is started with.
pub(crate) struct ManagedGatewaysStart<'a> {
    pub(crate) access: Access,
    pub(crate) instance: &'a Instance,
    pub(crate) environment: Environment<'a>,
    /// The settings of injection, if they are followed already.
    pub(crate) injector: Option<InjectorSettingsWatch>,
    pub(crate) snapshots: watch::Receiver<Arc<PublishedSnapshot>>,
    /// Gateways of the newest snapshot, once all sources are synced.
    pub(crate) converted: watch::Receiver<Arc<ConvertedConfig>>,
    pub(crate) changes: mpsc::Sender<Batch>,
}

/// Deploys gateways until cancelled, from the first one on. The task ends when the Lease is released.
pub(crate) fn start(options: ManagedGatewaysStart<'_>, stop: &CancellationToken) -> JoinHandle<()> {
    let revision = (options.environment)("REVISION").filter(|revision| !revision.is_empty());
    let revision = revision.unwrap_or_else(|| "default".to_owned());
    let namespace = options.instance.namespace().to_owned();
    let election = options.instance.election(LEASE, options.environment);
    let is_elected = options.snapshots.borrow().snapshot.settings.knobs.leader_election;
    let deployer = GatewayDeployer { access: options.access.clone(), election: is_elected.then_some(election) };
    let renderer = GatewayRenderer {
        revision: revision.clone(),
        compliance_policy: (options.environment)("COMPLIANCE_POLICY").unwrap_or_default(),
        environment: std::env::vars().collect(),
        rendered: BTreeMap::new(),
        shared: None,
        has_logged: false,
    };
    let ManagedGatewaysStart { access, injector, snapshots, mut converted, changes, .. } = options;
    let stop = stop.clone();
    tokio::spawn(async move {
        // Most clusters have no Gateway: nothing is watched for them.
        if stop.run_until_cancelled(first_gateway(&mut converted)).await != Some(true) {
            return;
        }
        let injector =
            injector.unwrap_or_else(|| injector_settings::follow(access.clone(), &namespace, &revision, &stop));
        let (wanted_sender, wanted) = watch::channel(WantedDeployments::new());
        let (problem_sender, deployment_problems) = watch::channel(DeploymentProblems::new());
        let (names_sender, names) = watch::channel(BTreeSet::new());
        let (maps_sender, config_maps) = watch::channel(GatewayConfigMaps::default());
        let inputs = RendererInputs { converted, injector, config_maps, deployment_problems, snapshots };
        let outputs = RendererOutputs { wanted: wanted_sender, names: names_sender, changes };
        tokio::join!(
            config_maps::follow(access, namespace, names, maps_sender, stop.clone()),
            stop.run_until_cancelled(renderer.run(inputs, outputs)),
            deployer.run(wanted, problem_sender, stop.clone()),
        );
    })
}

/// Waits for the first Gateway to deploy. False if there will be none.
async fn first_gateway(converted: &mut watch::Receiver<Arc<ConvertedConfig>>) -> bool {
    converted.wait_for(|converted| !converted.managed.is_empty()).await.is_ok()
}

/// What objects are rendered from.
struct RendererInputs {
    converted: watch::Receiver<Arc<ConvertedConfig>>,
    injector: InjectorSettingsWatch,
    config_maps: watch::Receiver<GatewayConfigMaps>,
    deployment_problems: watch::Receiver<DeploymentProblems>,
    snapshots: watch::Receiver<Arc<PublishedSnapshot>>,
}

impl RendererInputs {
    fn snapshot(&mut self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow_and_update().snapshot)
    }

    /// Waits for a change since this snapshot was rendered. False if there will be none.
    async fn changed(&mut self, rendered: Option<Arc<Snapshot>>) -> bool {
        // Most snapshots differ in what is not read here.
        let is_new = |current: &Snapshot| {
            rendered.as_ref().is_some_and(|rendered| !Arc::ptr_eq(&rendered.extensions, &current.extensions))
        };
        while !is_new(&self.snapshot()) {
            let changed = tokio::select! {
                changed = self.converted.changed() => return changed.is_ok(),
                changed = self.injector.changed() => return changed.is_ok(),
                changed = self.config_maps.changed() => return changed.is_ok(),
                changed = self.deployment_problems.changed() => return changed.is_ok(),
                changed = self.snapshots.changed() => changed,
            };
            if changed.is_err() {
                return false;
            }
        }
        true
    }
}

struct RendererOutputs {
    wanted: watch::Sender<WantedDeployments>,
    names: watch::Sender<BTreeSet<ConfigMapName>>,
    changes: mpsc::Sender<Batch>,
}

/// Inputs that all gateways share, compared by identity.
#[derive(Clone)]
struct SharedInputs {
    injector: Arc<InjectorSettings>,
    snapshot: Arc<Snapshot>,
}

impl SharedInputs {
    fn is_same(&self, other: &SharedInputs) -> bool {
        Arc::ptr_eq(&self.injector, &other.injector)
            && Arc::ptr_eq(&self.snapshot.settings, &other.snapshot.settings)
            && Arc::ptr_eq(&self.snapshot.extensions, &other.snapshot.extensions)
    }
}

/// The rendering of one gateway, with what it was made from.
struct RenderedGateway {
    gateway: Arc<ManagedGateway>,
    class_defaults: Option<BTreeMap<String, String>>,
    parameters: Option<BTreeMap<String, String>>,
    result: Result<Arc<GatewayDeployment>, String>,
}

struct GatewayRenderer {
    revision: String,
    compliance_policy: String,
    /// Environment variables that custom templates may read.
    environment: BTreeMap<String, String>,
    rendered: BTreeMap<GatewayName, RenderedGateway>,
    shared: Option<SharedInputs>,
    has_logged: bool,
}

impl GatewayRenderer {
    async fn run(mut self, mut inputs: RendererInputs, outputs: RendererOutputs) {
        let mut published = Vec::new();
        loop {
            let converted = inputs.converted.borrow_and_update().clone();
            let injector = inputs.injector.borrow_and_update().clone();
            let config_maps = inputs.config_maps.borrow_and_update().clone();
            let failed = inputs.deployment_problems.borrow_and_update().clone();
            let names: BTreeSet<ConfigMapName> =
                converted.managed.iter().filter_map(|gateway| parameters(gateway)).collect();
            outputs.names.send_if_modified(|before| {
                let is_changed = *before != names;
                before.clone_from(&names);
                is_changed
            });
            match injector {
                Some(injector) if config_maps.is_listed => {
                    self.use_shared(SharedInputs { injector, snapshot: inputs.snapshot() });
                    self.render_all(&converted.managed, &config_maps).await;
                    self.publish(&outputs.wanted);
                }
                Some(_) => {}
                None => self.log_missing(&converted.managed),
            }
            let problems = self.problems(&failed);
            if problems != published {
                published.clone_from(&problems);
                let batch = Batch { source: SourceId("gateways".into()), changes: vec![Change::Problems(problems)] };
                if outputs.changes.send(batch).await.is_err() {
                    return;
                }
            }
            let rendered = self.shared.as_ref().map(|shared| Arc::clone(&shared.snapshot));
            if !inputs.changed(rendered).await {
                return;
            }
        }
    }

    /// Without settings there is no image to deploy.
    fn log_missing(&mut self, managed: &[Arc<ManagedGateway>]) {
        if !managed.is_empty() && !std::mem::replace(&mut self.has_logged, true) {
            info!(
                gateways = managed.len(),
                reason = MISSING,
                "no gateway is deployed: the injector has no configuration"
            );
        }
    }

    fn use_shared(&mut self, shared: SharedInputs) {
        if !self.shared.as_ref().is_some_and(|before| before.is_same(&shared)) {
            self.rendered.clear();
        }
        self.shared = Some(shared);
    }

    /// Renders the gateways whose inputs changed.
    async fn render_all(&mut self, managed: &[Arc<ManagedGateway>], config_maps: &GatewayConfigMaps) {
        let names: BTreeSet<GatewayName> = managed.iter().map(|gateway| name(gateway)).collect();
        self.rendered.retain(|name, _| names.contains(name));
        let Some(shared) = self.shared.clone() else { return };
        for gateway in managed {
            let class_defaults = config_maps.class_defaults.get(&*gateway.class).cloned();
            let parameters = match parameters(gateway).map(|name| config_maps.parameters.get(&name).cloned()) {
                // It is being read.
                Some(None) => continue,
                Some(Some(found)) => found,
                None => None,
            };
            let before = self.rendered.get(&name(gateway));
            let is_same = before.is_some_and(|before| {
                before.gateway == *gateway && before.class_defaults == class_defaults && before.parameters == parameters
            });
            if is_same {
                continue;
            }
            let result = self.render(gateway, &shared, class_defaults.as_ref(), parameters.as_ref());
            let rendered = RenderedGateway { gateway: Arc::clone(gateway), class_defaults, parameters, result };
            self.rendered.insert(name(gateway), rendered);
            // A thousand gateways take a second.
            tokio::task::yield_now().await;
        }
    }

    fn render(
        &self,
        gateway: &ManagedGateway,
        shared: &SharedInputs,
        class_defaults: Option<&BTreeMap<String, String>>,
        parameters: Option<&BTreeMap<String, String>>,
    ) -> Result<Arc<GatewayDeployment>, String> {
        let settings = &shared.snapshot.settings;
        let proxy_configs = shared.snapshot.extensions.proxy_configs.iter();
        let proxy_configs: Vec<NamespacedProxyConfig<'_>> = proxy_configs
            .map(|config| NamespacedProxyConfig { namespace: config.meta.namespace.as_str(), spec: &config.spec })
            .collect();
        let inputs = GatewayInputs {
            shared: MeshInputs {
                config: &shared.injector.config,
                values: &shared.injector.values,
                mesh: &settings.mesh,
                revision: &self.revision,
                compliance_policy: &self.compliance_policy,
                environment: &self.environment,
            },
            proxy_configs: &proxy_configs,
            cluster: settings.cluster.as_str(),
            controller: &settings.knobs.gateway_controller,
            class_defaults,
            parameters,
        };
        let objects = gateway_objects(gateway, &inputs).map_err(|error| error.to_string())?;
        let content = serde_json::to_vec(&objects).map_err(|error| error.to_string())?;
        Ok(Arc::new(GatewayDeployment {
            objects: Arc::new(objects),
            content: xxh3_64(&content),
            takes_over: gateway.takes_over,
            account_is_given: gateway.account_is_given,
        }))
    }

    fn publish(&self, wanted: &watch::Sender<WantedDeployments>) {
        let usable = self.rendered.iter().filter_map(|(name, gateway)| {
            gateway.result.as_ref().ok().map(|deployment| (name.clone(), Arc::clone(deployment)))
        });
        let current: WantedDeployments = usable.collect();
        wanted.send_if_modified(|before| {
            let is_changed = *before != current;
            *before = current;
            is_changed
        });
    }

    /// Problems of all gateways, in their order.
    fn problems(&self, failed: &DeploymentProblems) -> Vec<Problem> {
        let key = |name: &GatewayName| Key {
            kind: Kind::KubernetesGateway,
            namespace: name.namespace.as_str().into(),
            name: name.name.as_str().into(),
        };
        let mut problems = Vec::new();
        for (name, gateway) in &self.rendered {
            match &gateway.result {
                Err(reason) => {
                    let message = format!("could not deploy the gateway: {reason}; what is deployed stays unchanged");
                    problems.push(Problem::error(key(name), message));
                }
                Ok(_) => {
                    let messages = failed.get(name).into_iter().flatten();
                    problems.extend(messages.map(|message| Problem::warning(key(name), message.as_str())));
                }
            }
        }
        problems
    }
}

fn name(gateway: &ManagedGateway) -> GatewayName {
    GatewayName { namespace: gateway.namespace.to_string(), name: gateway.name.to_string() }
}

/// The ConfigMap that a Gateway refers to.
fn parameters(gateway: &ManagedGateway) -> Option<ConfigMapName> {
    match &gateway.parameters {
        GatewayParameters::ConfigMap(name) => Some((gateway.namespace.to_string(), name.to_string())),
        GatewayParameters::None | GatewayParameters::Unsupported(_) => None,
    }
}
