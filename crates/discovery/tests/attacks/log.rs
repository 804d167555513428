//! A log that is not read: lines are dropped, serving continues, and the process still exits.

use std::process::Command;
use std::time::Instant;

use testkit::client;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::wait;

use crate::honest::{CART, Honest, ask, channel};

const BINARY: &str = env!("CARGO_BIN_EXE_pilot-discovery");
/// Each logs two lines; a pipe holds those of about 250.
const CONNECTS: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_09_an_unread_log_does_not_stop_the_server() {
    let files = vec![("cart.yaml".to_owned(), CART.to_owned())];
    let args = vec!["--log_output_level=debug".to_owned()];
    let mut server =
        DiscoveryProcess::start(BINARY, DiscoveryOptions { files, args, unread: true, ..DiscoveryOptions::default() })
            .await;
    let (begun, honest) = (Instant::now(), Honest::start(&server).await);
    for number in 0..CONNECTS {
        let answered = tokio::time::timeout(wait::PATIENCE, ask(channel(&server).await)).await;
        answered.unwrap_or_else(|_| panic!("client {number} waits for ever")).expect("the cart");
    }
    let metrics = client::get(server.monitoring(), "pilot", "/metrics").await.expect("metrics").body;
    assert!(metrics.contains("\npilotage_log_lines_dropped_total "), "{metrics}");
    eprintln!("{CONNECTS} connects in {:?}", begun.elapsed());
    honest.assert_served("a log that is not read").await;
    assert!(server.process().terminate().await.success(), "it ends although its last lines are not read");
}

#[test]
fn hole_09_the_error_of_a_failed_start_is_in_the_log_and_on_standard_error() {
    for _ in 0..5 {
        let run = Command::new(BINARY).args(["discovery", "--registries=Nonsense"]).output().unwrap();
        assert_eq!(run.status.code(), Some(1));
        let (log, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(
            log.lines().last().is_some_and(|line| line.contains("\terror\t") && line.contains("Nonsense")),
            "{log}"
        );
        assert!(error.starts_with("pilot-discovery: ") && error.contains("Nonsense"), "{error}");
    }
}
