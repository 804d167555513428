//! The console in a real Chromium: each page loads quickly, works by keyboard, is legible in both themes, shows edits as
//! they happen, and contacts nothing but its server.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

mod browser;
mod contrast;

use std::time::{Duration, Instant};

use browser::Browser;
use serde_json::json;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::tracked::{TrackedOptions, TrackedProxy};
use testkit::{client, servers, wait};

const SHOP: &str = r#"apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.example.com]
  addresses: [10.96.0.7]
  ports: [{number: 8000, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints:
  - {address: 127.0.0.1, labels: {version: v1}}
  - {address: 127.0.0.2, labels: {version: v2}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: pay, namespace: shop}
spec:
  hosts: [pay.example.com]
  addresses: [10.96.0.8]
  ports: [{number: 8000, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.3}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: cart, namespace: shop}
spec:
  host: cart.example.com
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.example.com]
  http:
  - name: all
    fault: {delay: {percentage: {value: 5}, fixedDelay: 1s}}
    route:
    - {destination: {host: cart.example.com, subset: v1}, weight: 90}
    - {destination: {host: cart.example.com, subset: v2}, weight: 10}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: pay, namespace: shop}
spec: {hosts: [pay.example.com], http: [{route: [{destination: {host: missing.example.com}}]}]}
"#;

/// A proxy whose name is markup.
const MARKUP: &str = "<img src=x onerror=document.title='broken'>.shop";

async fn start() -> (DiscoveryProcess, Vec<TrackedProxy>) {
    let files = vec![("shop.yaml".to_owned(), SHOP.to_owned())];
    let options = DiscoveryOptions { files, ..DiscoveryOptions::default() };
    let server = DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), options).await;
    let names = ["cart-1.shop", "cart-2.shop", "pay-1.shop", MARKUP];
    let proxies: Vec<TrackedProxy> = names
        .iter()
        .enumerate()
        .map(|(number, name)| TrackedOptions {
            node: format!("sidecar~127.0.0.{}~{name}~shop.svc.cluster.local", number + 1),
            ..TrackedOptions::default()
        })
        .map(|options| TrackedProxy::connect(server.grpc(), options))
        .collect();
    wait::until("synced proxies", async || {
        let listed = client::get(server.monitoring(), "localhost", "/api/v1/proxies?state=synced").await?.json();
        if listed["total"] == names.len() { Ok(()) } else { Err(listed.to_string()) }
    })
    .await;
    (server, proxies)
}

const PAGES: [(&str, &str, &str); 13] = [
    ("/ui", "overview", "Push latency"),
    ("/ui/proxies", "proxies", "cart-1.shop"),
    ("/ui/proxies/cart-1.shop", "proxy", "Has snapshot"),
    ("/ui/proxies/cart-1.shop?tab=intended", "intended", "Clusters"),
    ("/ui/proxies/cart-1.shop?tab=actual", "actual", "acknowledged everything"),
    ("/ui/proxies/cart-1.shop?tab=diff", "difference", "no difference"),
    ("/ui/proxies/cart-1.shop?tab=history", "past", "Acknowledged after"),
    ("/ui/services", "services", "cart.example.com"),
    ("/ui/problems", "problems", "missing.example.com"),
    ("/ui/history", "history", "synced"),
    ("/ui/explain?proxy=cart-1.shop&url=http%3A%2F%2Fcart.example.com%3A8000%2F", "explain", "90 % to cluster"),
    ("/ui/explain?proxy=cart-1.shop&url=http%3A%2F%2Fcart.example.com%3A8000%2F", "arrival", "At cart-2.shop"),
    (
        "/ui/explain?proxy=cart-1.shop&url=http%3A%2F%2Fcrat.example.com%3A8000%2F",
        "hint",
        "did you mean \"cart.example.com\"?",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_quick_legible_and_stays_at_home() {
    if servers::without("chromium") || servers::without("chromedriver") {
        return;
    }
    let (server, _proxies) = start().await;
    // Problems of the analysis are published a moment later.
    wait::until("problems", async || {
        let found = client::get(server.monitoring(), "localhost", "/api/v1/problems").await?.body;
        if found.contains("missing.example.com") { Ok(()) } else { Err(found) }
    })
    .await;
    let browser = Browser::open(server.monitoring()).await;
    for (path, name, expected) in PAGES {
        let mut best = f64::MAX;
        for _ in 0..3 {
            best = best.min(browser.load(path).await);
        }
        let text =
            browser.until(expected, &format!("return document.body.innerText.includes({})", json!(expected))).await;
        assert_eq!(text, json!(true), "{path}");
        println!("{name}: shown after {best:.0} ms");
        assert!(best < 1000.0, "{path} took {best} ms");
        assert_eq!(browser.foreign_requests().await, json!([]), "{path}");
        let command = browser.run("return document.getElementById('command').textContent").await;
        let command = command.as_str().unwrap();
        assert!(command.starts_with("pilotctl ") && !command.contains("KIND"), "{path}: {command}");
        for theme in ["light", "dark"] {
            browser.run(&format!("document.documentElement.dataset.theme = '{theme}'")).await;
            let weak = browser.run(contrast::SCRIPT).await;
            assert_eq!(weak, json!([]), "{path} in {theme}: texts with too little contrast");
            browser.picture(&format!("{name}-{theme}")).await;
        }
        let wide = browser.run("return document.documentElement.scrollWidth > innerWidth").await;
        assert_eq!(wide, json!(false), "{path} is wider than 1280 pixels");
    }
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_works_by_keyboard_and_shows_names_as_text() {
    if servers::without("chromium") || servers::without("chromedriver") {
        return;
    }
    let (server, _proxies) = start().await;
    let browser = Browser::open(server.monitoring()).await;
    browser.load("/ui").await;
    browser.press("2").await;
    browser
        .until(
            "the list of proxies",
            "return location.pathname === '/ui/proxies' && document.body.innerText.includes('<img src=x')",
        )
        .await;
    let text = browser.text().await;
    assert!(text.contains("<img src=x"), "{text}");
    assert_eq!(browser.run("return document.querySelectorAll('img[src=x]').length").await, json!(0));
    browser.press("/").await;
    browser.press("cart").await;
    browser.until("a filtered list", "return document.querySelectorAll('.line').length === 2").await;
    assert_eq!(browser.address().await, "/ui/proxies?name=cart");
    // From the filter over the choice of states to the list, one line down, and in.
    browser.press("\u{e004}\u{e004}").await;
    browser.run("document.querySelector('.scroll').focus()").await;
    browser.press("\u{e015}").await;
    browser.press("\u{e007}").await;
    browser.until("the second proxy", "return location.pathname === '/ui/proxies/cart-2.shop' && document.body.innerText.includes('Has snapshot')").await;
    let order = browser
        .run("return [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')].every(of => of.tabIndex >= 0)")
        .await;
    assert_eq!(order, json!(true), "everything that can be used has a place in the order of the Tab key");
    browser.press("6").await;
    browser
        .until("the form", "return location.pathname === '/ui/explain' && document.querySelector('form') && true")
        .await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_proxies_scroll_and_an_edit_shows_at_once() {
    if servers::without("chromium") || servers::without("chromedriver") {
        return;
    }
    let (server, _proxies) = start().await;
    let browser = Browser::open(server.monitoring()).await;
    browser.load("/ui").await;
    let many = "const own = window.fetch; window.fetch = async (path, ...more) => { \
        if (!String(path).startsWith('/api/v1/proxies')) return own(path, ...more); \
        const one = (await (await own('/api/v1/proxies?limit=1')).json()).proxies[0]; \
        const proxies = Array.from({length: 10000}, (_, at) => ({...one, proxy: `p${at}.ns${at % 20}`})); \
        return new Response(JSON.stringify({snapshot: 1, total: 10000, proxies}), {headers: {'content-type': 'application/json'}}); };";
    browser.run(many).await;
    browser.press("2").await;
    browser
        .until("ten thousand proxies", "return document.getElementById('total')?.textContent === '10,000 in all'")
        .await;
    let scrolled = browser
        .run_until_done(
            "const done = arguments[0], box = document.querySelector('.scroll'), begun = performance.now(); let steps = 0; \
             const step = () => { box.scrollTop += box.scrollHeight / 100; steps += 1; \
             if (steps < 100) requestAnimationFrame(step); else requestAnimationFrame(() => done({ \
             millis: (performance.now() - begun) / steps, lines: document.querySelectorAll('.line').length, \
             last: [...document.querySelectorAll('.line')].pop().textContent })); }; step();",
        )
        .await;
    println!("scrolling 10,000 proxies: {scrolled}");
    assert!(scrolled["lines"].as_u64().unwrap() < 100, "{scrolled}");
    assert!(scrolled["last"].as_str().unwrap().starts_with("p9999.ns"), "{scrolled}");
    assert!(scrolled["millis"].as_f64().unwrap() < 200.0, "{scrolled}");
    browser.picture("ten-thousand").await;

    browser.load("/ui/history").await;
    let mut best = Duration::MAX;
    for trial in 0..3 {
        let name = format!("edit-{trial}");
        let object = format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{hosts: \
             [pay.example.com], http: [{{route: [{{destination: {{host: pay.example.com}}}}]}}]}}\n"
        );
        let begun = Instant::now();
        server.write(&format!("{name}.yaml"), &object);
        browser.until("the edit", &format!("return document.body.innerText.includes('shop/{name} added')")).await;
        best = best.min(begun.elapsed());
    }
    println!("an edit shows after {best:?}");
    assert!(best < Duration::from_secs(1), "{best:?}");
    browser.close().await;
}
