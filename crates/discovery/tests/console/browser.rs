//! A real Chromium, driven by its WebDriver over HTTP. It can resolve no host but this machine.
//!
//! Not fantoccini: a few commands of the protocol are needed, each one HTTP request, and testkit's client sends those. The
//! crate would add a second HTTP and TLS stack (hyper-tls or hyper-rustls, webdriver, cookie) to the tests.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request};
use serde_json::{Value, json};
use testkit::process::Process;
use testkit::{client, ports, servers, wait};

/// Name of an element's id in WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub(crate) struct Browser {
    driver: SocketAddr,
    /// Path of the session.
    session: String,
    root: String,
    _driver: Process,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens a window of 1280 by 900 pixels on the console of this server.
    pub(crate) async fn open(console: SocketAddr) -> Browser {
        let driver_address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let args = [format!("--port={}", driver_address.port())];
        let driver = Process::start("chromedriver", &servers::binary("chromedriver"), &args, &[]);
        let profile = tempfile::tempdir().unwrap();
        let options = json!({
            "binary": servers::binary("chromium"),
            "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900",
                "--disable-background-networking", "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=1",
                format!("--user-data-dir={}", profile.path().display()),
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ],
        });
        let capabilities = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}});
        let session = wait::until_within(Duration::from_secs(60), "a browser", async || {
            let answer = command(driver_address, Method::POST, "/session", &capabilities).await?;
            answer["sessionId"].as_str().map(str::to_owned).ok_or_else(|| answer.to_string())
        })
        .await;
        let session = format!("/session/{session}");
        let browser = Browser {
            driver: driver_address,
            session,
            root: format!("http://{console}"),
            _driver: driver,
            _profile: profile,
        };
        browser.post("/timeouts", &json!({"script": 60_000})).await;
        browser
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let path = format!("{}{path}", self.session);
        command(self.driver, Method::POST, &path, body).await.unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    async fn get(&self, path: &str) -> Value {
        let path = format!("{}{path}", self.session);
        command(self.driver, Method::GET, &path, &Value::Null).await.unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Loads a view and waits until it is shown. Returns the milliseconds that took.
    pub(crate) async fn load(&self, path: &str) -> f64 {
        self.post("/url", &json!({"url": format!("{}{path}", self.root)})).await;
        self.until(path, "return performance.getEntriesByName('shown')[0]?.startTime ?? null").await.as_f64().unwrap()
    }

    pub(crate) async fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []})).await
    }

    /// Runs a script that calls its last argument when it is done.
    pub(crate) async fn run_until_done(&self, script: &str) -> Value {
        self.post("/execute/async", &json!({"script": script, "args": []})).await
    }

    /// Repeats a script until it returns something.
    pub(crate) async fn until(&self, what: &str, script: &str) -> Value {
        wait::until_within(Duration::from_secs(60), what, async || {
            let found = self.run(script).await;
            let is_missing = found.is_null() || found == json!(false) || found == json!("");
            if is_missing { Err(self.text().await) } else { Ok(found) }
        })
        .await
    }

    /// What the page shows.
    pub(crate) async fn text(&self) -> String {
        self.run("return document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    pub(crate) async fn address(&self) -> String {
        self.run("return location.pathname + location.search").await.as_str().unwrap_or_default().to_owned()
    }

    /// Presses keys where the focus is.
    pub(crate) async fn press(&self, keys: &str) {
        let focused = self.get("/element/active").await;
        let id = focused[ELEMENT].as_str().unwrap_or_else(|| panic!("no element: {focused}"));
        self.post(&format!("/element/{id}/value"), &json!({"text": keys})).await;
    }

    /// Stores a picture if `PILOTAGE_SCREENSHOTS` names a folder.
    pub(crate) async fn picture(&self, name: &str) {
        if let Some(folder) = std::env::var_os("PILOTAGE_SCREENSHOTS").map(PathBuf::from) {
            let picture = STANDARD.decode(self.get("/screenshot").await.as_str().unwrap()).unwrap();
            std::fs::write(folder.join(format!("{name}.png")), picture).unwrap();
        }
    }

    /// Requests of the page that went elsewhere.
    pub(crate) async fn foreign_requests(&self) -> Value {
        self.run("return performance.getEntriesByType('resource').map(of => of.name).filter(name => !name.startsWith(location.origin))")
            .await
    }

    pub(crate) async fn close(self) {
        let _ = command(self.driver, Method::DELETE, &self.session, &Value::Null).await;
    }
}

/// Sends a command; the error is WebDriver's message.
async fn command(driver: SocketAddr, method: Method, path: &str, body: &Value) -> Result<Value, String> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header("host", "localhost").body(body);
    let reply = client::send(driver, request.map_err(|e| e.to_string())?).await?;
    let value = reply.json()["value"].clone();
    if reply.status.is_success() { Ok(value) } else { Err(value["message"].as_str().unwrap_or_default().to_owned()) }
}
