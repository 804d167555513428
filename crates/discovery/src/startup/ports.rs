//! The last stage of start-up: binds all ports, then serves them.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use cli::levels::LogLevels;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::args::{DiscoveryFlags, KeepaliveFlags};
use crate::config_api::{self, ConfigApi, UnixSocket};
use crate::connections::Connections;
use crate::file_descriptors::ConnectionLimits;
use crate::grpc::ChargedRoutes;
use crate::http::{self, Pages};
use crate::listener::{BoundSocket, ConnectionOptions, PortProtocol};
use crate::tls::Certificates;
use crate::webhook::{self, Webhooks};

/// The addresses really bound; `None` for a port that is off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundAddresses {
    pub grpc: Option<SocketAddr>,
    pub secure_grpc: Option<SocketAddr>,
    pub http: Option<SocketAddr>,
    pub monitoring: Option<SocketAddr>,
    pub https: Option<SocketAddr>,
    pub controlz: Option<SocketAddr>,
    pub config_api: Option<SocketAddr>,
}

/// The bound ports; `None` for a port that is off.
pub(super) struct BoundPorts {
    grpc: Option<BoundSocket>,
    secure_grpc: Option<BoundSocket>,
    http: Option<BoundSocket>,
    monitoring: Option<BoundSocket>,
    https: Option<BoundSocket>,
    controlz: Option<BoundSocket>,
    config_api: Option<BoundSocket>,
    config_api_socket: Option<UnixSocket>,
}

/// The services of all ports.
pub(super) struct PortServices<'a> {
    pub(super) routes: ChargedRoutes,
    /// Those of the TLS port, with the certificate authority.
    pub(super) secure_routes: ChargedRoutes,
    pub(super) pages: &'a Pages,
    pub(super) webhooks: Option<Arc<Webhooks>>,
    pub(super) certificates: Option<Arc<Certificates>>,
    /// Log levels, which ControlZ reads and sets.
    pub(super) levels: Option<LogLevels>,
    pub(super) config_api: Option<ConfigApi>,
}

impl BoundPorts {
    /// Binds all ports. If one fails, none is served.
    pub(super) async fn bind(args: &DiscoveryFlags, has_certificates: bool, has_webhooks: bool) -> Result<BoundPorts> {
        if !has_certificates && !args.secure_grpc_addr.is_empty() {
            info!("secure gRPC port is off: there is no certificate authority, and --tlsCertFile is not set");
        }
        let secure = if has_certificates { &*args.secure_grpc_addr } else { "" };
        let webhooks = if has_certificates && has_webhooks { &*args.https_addr } else { "" };
        Ok(BoundPorts {
            grpc: bind("grpc", &args.grpc_addr).await?,
            secure_grpc: bind("secureGRPC", secure).await?,
            http: bind("http", &args.http_addr).await?,
            monitoring: bind("monitoring", &args.monitoring_addr).await?,
            https: bind("https", webhooks).await?,
            controlz: None,
            config_api: bind("configAPI", args.config_api.tcp_address().unwrap_or_default()).await?,
            config_api_socket: args.config_api.socket_path().map(UnixSocket::bind).transpose()?,
        })
    }

    /// Binds the port of ControlZ. The server does without it if the port is taken, as by another instance on this machine.
    pub(super) async fn with_controlz(mut self, args: &DiscoveryFlags) -> BoundPorts {
        if !args.ctrlz_address.is_empty() {
            let host = if args.ctrlz_address == "*" { "" } else { &*args.ctrlz_address };
            let bound = BoundSocket::bind("controlz", &format!("{host}:{}", args.ctrlz_port)).await;
            let bound = bound.inspect_err(|e| warn!("ControlZ is off: {e:#}; choose another port with --ctrlz_port"));
            self.controlz = bound.ok();
        }
        self
    }

    pub(super) fn addresses(&self) -> BoundAddresses {
        let address = |socket: &Option<BoundSocket>| socket.as_ref().map(BoundSocket::address);
        BoundAddresses {
            grpc: address(&self.grpc),
            secure_grpc: address(&self.secure_grpc),
            http: address(&self.http),
            monitoring: address(&self.monitoring),
            https: address(&self.https),
            controlz: address(&self.controlz),
            config_api: address(&self.config_api),
        }
    }

    /// Serves every bound port on `runtime` until cancelled.
    pub(super) fn serve(
        self,
        keepalive: &KeepaliveFlags,
        services: PortServices<'_>,
        runtime: &Handle,
        stop: &CancellationToken,
    ) -> TaskTracker {
        let PortServices { routes, secure_routes, pages, webhooks, certificates, levels, config_api } = services;
        let limits = ConnectionLimits::now();
        let ping = Some((keepalive.interval, keepalive.timeout));
        let connections = Connections::of_streams("xds", limits.xds);
        let grpc_options =
            ConnectionOptions { protocol: PortProtocol::Grpc, ping, age: keepalive.max_connection_age, connections };
        let page_options = |name: &'static str| ConnectionOptions::pages(Connections::of_pages(name, limits.pages));
        let tasks = TaskTracker::new();
        if let Some(socket) = self.grpc {
            tasks.spawn_on(socket.serve(routes, grpc_options.clone(), None, stop.clone()), runtime);
        }
        if let Some(certificates) = &certificates {
            tokio::spawn(certificates.clone().watch(stop.clone()));
        }
        if let (Some(socket), Some(webhooks), Some(certificates)) = (self.https, webhooks, &certificates) {
            let router = http::webhook_router(pages, webhook::router(webhooks));
            let serving = socket.serve(router, page_options("https"), Some(certificates.clone()), stop.clone());
            tasks.spawn_on(serving, runtime);
        }
        if let (Some(socket), Some(certificates)) = (self.secure_grpc, certificates) {
            let serving = socket.serve(secure_routes, grpc_options, Some(certificates), stop.clone());
            tasks.spawn_on(serving, runtime);
        }
        if let Some(socket) = self.http {
            let router = http::discovery_router(pages);
            tasks.spawn_on(socket.serve(router, page_options("http"), None, stop.clone()), runtime);
        }
        if let Some(socket) = self.monitoring {
            let router = http::monitoring_router(pages);
            tasks.spawn_on(socket.serve(router, page_options("monitoring"), None, stop.clone()), runtime);
        }
        if let (Some(socket), Some(levels)) = (self.controlz, levels) {
            let router = http::controlz_router(pages, levels);
            tasks.spawn_on(socket.serve(router, page_options("controlz"), None, stop.clone()), runtime);
        }
        if let Some(api) = config_api {
            serve_config_api(api, self.config_api, self.config_api_socket, limits.pages, &tasks, runtime, stop);
        }
        tasks.close();
        tasks
    }
}

/// Serves the configuration API on its port and on its socket.
fn serve_config_api(
    api: ConfigApi,
    port: Option<BoundSocket>,
    socket: Option<UnixSocket>,
    limit: usize,
    tasks: &TaskTracker,
    runtime: &Handle,
    stop: &CancellationToken,
) {
    if let (Some(port), Some(certificates)) = (port, api.certificates) {
        tokio::spawn(certificates.clone().watch(stop.clone()));
        let options = ConnectionOptions::config_api(Connections::of_pages("configAPI", limit));
        let router = config_api::router(api.service.clone());
        tasks.spawn_on(port.serve(router, options, Some(certificates), stop.clone()), runtime);
    }
    if let Some(socket) = socket {
        tasks.spawn(socket.serve(api.service, stop.clone()));
    }
}

/// Binds one port; an empty address turns it off.
async fn bind(name: &'static str, address: &str) -> Result<Option<BoundSocket>> {
    if address.is_empty() {
        return Ok(None);
    }
    BoundSocket::bind(name, address).await.map(Some)
}
