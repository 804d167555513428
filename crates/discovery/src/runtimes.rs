//! Threads apart from those of sources: some for connections and pages, which never compute for long, so that accepting,
//! handshakes and readiness never wait; and some for streams, which do.

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads of connections. They only move bytes.
const FOR_CONNECTIONS: usize = 2;

/// Two runtimes beside the one that everything else is on.
#[derive(Debug)]
pub(crate) struct Runtimes {
    connections: Option<Runtime>,
    streams: Option<Runtime>,
}

impl Runtimes {
    pub(crate) fn start() -> Result<Runtimes> {
        // Costly work takes turns, at most one for each core; one thread more is for all that is not costly.
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
    builder.build().with_context(|| format!("could not start threads for {name}"))
}

impl Drop for Runtimes {
    /// A runtime must not be waited for where others run.
    fn drop(&mut self) {
        for runtime in [self.connections.take(), self.streams.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}
