//! The Tokio runtime for clients, separate from the one that sources run on: connections, streams and pages. Its
//! threads never compute for long, so that accepting, handshakes and readiness probes never wait; what takes longer than
//! microseconds runs in turns on other threads (`serve/turns.rs`).

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// Fewest threads: one goes on where another is held up by the system.
const AT_LEAST: usize = 2;

/// The runtime for clients.
#[derive(Debug)]
pub(crate) struct ClientRuntime(Option<Runtime>);

impl ClientRuntime {
    pub(crate) fn start() -> Result<ClientRuntime> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(cores.max(AT_LEAST)).thread_name("clients").enable_all();
        let runtime = builder.build().context("could not start the runtime for clients")?;
        Ok(ClientRuntime(Some(runtime)))
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }
}

impl Drop for ClientRuntime {
    /// Dropping a runtime blocks, which is not allowed inside another runtime.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
