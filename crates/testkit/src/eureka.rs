//! A real Eureka server with short cache and eviction times. It loses all state when killed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use http::{Method, Request};
use serde_json::{Value, json};

use crate::process::Process;
use crate::{client, ports, servers, wait};

/// Start-up timeout of a Java server on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

pub struct Eureka {
    process: Process,
    args: Vec<String>,
    http: SocketAddr,
}

/// One instance to register.
#[derive(Clone, Debug)]
pub struct Instance {
    pub app: String,
    pub id: String,
    pub address: String,
    pub port: u16,
    pub status: String,
    pub metadata: Value,
}

impl Eureka {
    /// Starts a server that has no peers.
    pub async fn start() -> Eureka {
        let http = free_address();
        // By default it would replicate to port 8761 of this machine.
        Self::start_at(http, &http.ip().to_string(), &format!("http://{http}")).await
    }

    /// Starts a server of this name that replicates to a peer.
    pub async fn start_beside(name: &str, peer: &str) -> Eureka {
        Self::start_at(free_address(), name, peer).await
    }

    /// A peer URL with the server's own name is ignored by Eureka.
    async fn start_at(http: SocketAddr, name: &str, peer: &str) -> Eureka {
        let settings = [
            format!("--server.port={}", http.port()),
            "--server.address=127.0.0.1".to_owned(),
            "--eureka.client.register-with-eureka=false".to_owned(),
            "--eureka.client.fetch-registry=false".to_owned(),
            "--eureka.server.response-cache-update-interval-ms=200".to_owned(),
            "--eureka.server.eviction-interval-timer-in-ms=1000".to_owned(),
            "--eureka.server.enable-self-preservation=false".to_owned(),
            format!("--eureka.instance.hostname={name}"),
            format!("--eureka.client.service-url.defaultZone={peer}/eureka/"),
        ];
        let jar = servers::binary("eureka.jar").to_string_lossy().into_owned();
        let java = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar", &jar].map(str::to_owned);
        let args: Vec<String> = java.into_iter().chain(settings).collect();
        let process = Process::start("eureka", Path::new("java"), &args, &[]);
        let mut eureka = Eureka { process, args, http };
        eureka.ready().await;
        eureka
    }

    pub fn url(&self) -> String {
        format!("http://{}/eureka", self.http)
    }

    pub fn address(&self) -> SocketAddr {
        self.http
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts it without state.
    pub async fn restart(&mut self) {
        self.process = Process::start("eureka", Path::new("java"), &self.args, &[]);
        self.ready().await;
    }

    async fn ready(&mut self) {
        wait::until_within(PATIENCE, "a Eureka server", async || {
            self.process.check_alive();
            let reply = client::get(self.http, "eureka", "/eureka/apps").await?;
            if reply.status.is_success() { Ok(()) } else { Err(reply.status.to_string()) }
        })
        .await;
    }

    pub async fn register(&self, instance: &Instance) {
        let Instance { app, id, address, port, status, metadata } = instance;
        let body = json!({"instance": {
            "instanceId": id, "hostName": address, "app": app.to_uppercase(), "ipAddr": address, "status": status,
            "vipAddress": app, "port": {"$": port, "@enabled": "true"}, "securePort": {"$": 443, "@enabled": "false"},
            "dataCenterInfo": {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"},
            // Tests neither renew leases nor wait for their expiry.
            "leaseInfo": {"renewalIntervalInSecs": 3600, "durationInSecs": 7200},
            "metadata": metadata,
        }});
        self.call(Method::POST, &format!("/eureka/apps/{app}"), &body.to_string()).await;
    }

    /// Waits until the server's cached list has this instance.
    pub async fn lists(&self, id: &str) {
        let id = format!("\"{id}\"");
        wait::until(&format!("{id} in the list"), async || {
            let request = Request::get("/eureka/apps").header("host", "eureka").header("accept", "application/json");
            let request = request.body(String::new()).map_err(|e| e.to_string())?;
            let reply = client::send(self.http, request).await?;
            if reply.body.contains(&id) { Ok(()) } else { Err(reply.status.to_string()) }
        })
        .await;
    }

    pub async fn deregister(&self, app: &str, id: &str) {
        self.call(Method::DELETE, &format!("/eureka/apps/{app}/{id}"), "").await;
    }

    /// Overrides the status of an instance, as an operator does.
    pub async fn set_status(&self, app: &str, id: &str, status: &str) {
        self.call(Method::PUT, &format!("/eureka/apps/{app}/{id}/status?value={status}"), "").await;
    }

    async fn call(&self, method: Method, path: &str, body: &str) {
        let request = Request::builder().method(method).uri(path).header("host", "eureka");
        let request = request.header("content-type", "application/json").body(body.to_owned());
        let request = request.unwrap_or_else(|e| panic!("{path}: {e}"));
        let reply = client::send(self.http, request).await.unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(reply.status.is_success(), "{path}: {} {}", reply.status, reply.body);
    }
}

fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, ports::free()).into()
}
