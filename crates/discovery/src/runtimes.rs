//! Tokio runtimes for clients, separate from the one that sources run on: one for connections and pages, which never
//! compute for long, so that accepting, handshakes and readiness probes never wait; and one for streams, which do.

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads for connections. They only move bytes.
const FOR_CONNECTIONS: usize = 2;

/// The two runtimes for clients.
#[derive(Debug)]
pub(crate) struct Runtimes {
    connections: Option<Runtime>,
    streams: Option<Runtime>,
}

impl Runtimes {
    pub(crate) fn start() -> Result<Runtimes> {
        // Expensive work takes turns, at most one per core. One more thread does the rest.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Runtimes {
            connections: Some(runtime("connections", FOR_CONNECTIONS)?),
            streams: Some(runtime("streams", cores + 1)?),
        })
    }

    pub(crate) fn connections(&self) -> Handle {
        self.connections.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }

    pub(crate) fn streams(&self) -> Handle {
        self.streams.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }
}

fn runtime(name: &str, threads: usize) -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name(name).enable_all();
    builder.build().with_context(|| format!("could not start the runtime for {name}"))
}

impl Drop for Runtimes {
    /// Dropping a runtime blocks, which is not allowed inside another runtime.
    fn drop(&mut self) {
        for runtime in [self.connections.take(), self.streams.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}
