//! Runs the work of a stream. Reading a request or computing a response may take long, and the threads that serve
//! connections must not wait for it.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;
use tonic::Status;

/// One closure to run.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs closures for one client: by default at once, on the stream's own task.
#[derive(Clone, Default)]
pub struct Executor(Option<Arc<dyn Fn(Job) + Send + Sync>>);

impl Executor {
    /// Passes all work to `submit`, which decides when and on which thread it runs.
    pub fn new(submit: impl Fn(Job) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(submit)))
    }

    /// Runs a closure and returns its result; an error if it panicked. Work of a client that disconnected is dropped.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        let Some(submit) = &self.0 else { return Ok(work()) };
        let (done, result) = oneshot::channel();
        submit(Box::new(move || {
            if !done.is_closed() {
                let _ = done.send(work());
            }
        }));
        result.await.map_err(|_| Status::internal("a computation for this stream failed"))
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Executor(elsewhere)" } else { "Executor(here)" })
    }
}

#[cfg(test)]
mod tests {
    use super::Executor;

    #[tokio::test]
    async fn work_runs_where_it_is_submitted_and_a_panic_is_an_error() {
        let executor = Executor::new(|job| _ = std::thread::spawn(job));
        let here = std::thread::current().id();
        assert_ne!(executor.run(|| std::thread::current().id()).await.unwrap(), here);
        assert_eq!(Executor::default().run(|| std::thread::current().id()).await.unwrap(), here);
        let failed: Result<(), _> = executor.run(|| panic!("on purpose")).await;
        assert_eq!(failed.unwrap_err().code(), tonic::Code::Internal);
    }
}
