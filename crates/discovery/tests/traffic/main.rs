//! Requests through a real Envoy that pilot-discovery configures, over both variants of the protocol.
//! Each test starts its own server, Envoy and backends on loopback. `mesh.rs` is the stage.

/// The same test over state-of-the-world and over delta xDS.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        mod sotw {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(testkit::envoy::Transport::Sotw).await;
            })*
        }

        mod delta {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(testkit::envoy::Transport::Delta).await;
            })*
        }
    };
}

pub(crate) use over_both;

mod chained;
mod changes;
mod gateway;
mod gateway_api;
mod mesh;
mod patches;
mod policies;
mod refused;
mod resilience;
mod restart;
mod routes;
mod tcp;
mod tls;
