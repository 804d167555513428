//! Runs file operations on separate threads with a deadline. A dead mount blocks every thread that touches it in the
//! kernel; the caller gets a timeout error instead, and other files use other threads.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// How long one operation may take. A disk that spins up takes seconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// How many threads may hang at a time. At this limit, operations fail until one of them returns.
const MOST_LOST: usize = 64;
/// How many idle threads are kept.
const MOST_IDLE: usize = 8;

/// Shared by the whole process, so a path that hangs is known to all callers.
static THREADS: LazyLock<DiskThreads> = LazyLock::new(|| DiskThreads::new(DEADLINE));

/// Runs work on a path, with a deadline. Fails at once while earlier work on the same path hangs.
pub(super) fn run<T: Send + 'static>(path: &Path, work: impl FnOnce(&Path) -> T + Send + 'static) -> io::Result<T> {
    THREADS.run(path, work)
}

type DiskJob = Box<dyn FnOnce() + Send>;

struct DiskThreads {
    deadline: Duration,
    shared: Arc<Mutex<ThreadsState>>,
}

#[derive(Default)]
struct ThreadsState {
    /// Paths on which work hangs now.
    hanging: BTreeSet<PathBuf>,
    idle: Vec<Sender<DiskJob>>,
}

impl DiskThreads {
    fn new(deadline: Duration) -> DiskThreads {
        DiskThreads { deadline, shared: Arc::default() }
    }

    fn run<T: Send + 'static>(&self, path: &Path, work: impl FnOnce(&Path) -> T + Send + 'static) -> io::Result<T> {
        let thread = self.thread(path)?;
        let (result, outcome) = mpsc::channel();
        let end = JobGuard { path: path.to_path_buf(), shared: self.shared.clone() };
        let job: DiskJob = Box::new(move || {
            // The receiver is gone if the work exceeded the deadline.
            let _ = result.send(work(&end.path));
        });
        thread.send(job).map_err(|_| io::Error::other("the disk thread has ended"))?;
        match outcome.recv_timeout(self.deadline) {
            Ok(value) => {
                let mut shared = self.shared.lock();
                if shared.idle.len() < MOST_IDLE {
                    shared.idle.push(thread);
                }
                Ok(value)
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("could not read the file: reading panicked")),
            Err(RecvTimeoutError::Timeout) => {
                let mut shared = self.shared.lock();
                // The work may have ended since the timeout; then nothing would remove the path from `hanging`.
                if let Ok(value) = outcome.try_recv() {
                    return Ok(value);
                }
                shared.hanging.insert(path.to_path_buf());
                Err(self.late())
            }
        }
    }

    /// An idle thread, or a new one.
    fn thread(&self, path: &Path) -> io::Result<Sender<DiskJob>> {
        let mut shared = self.shared.lock();
        if shared.hanging.contains(path) {
            return Err(self.late());
        }
        if shared.hanging.len() >= MOST_LOST {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "too many other file operations hang"));
        }
        if let Some(thread) = shared.idle.pop() {
            return Ok(thread);
        }
        let (jobs, inbox) = mpsc::channel::<DiskJob>();
        let work = move || inbox.into_iter().for_each(|job| job());
        thread::Builder::new().name("disk".to_owned()).spawn(work)?;
        Ok(jobs)
    }

    fn late(&self) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, format!("the disk did not answer within {:?}", self.deadline))
    }
}

/// Removes the path from `hanging` when its work ends, also by a panic.
struct JobGuard {
    path: PathBuf,
    shared: Arc<Mutex<ThreadsState>>,
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        self.shared.lock().hanging.remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::DiskThreads;

    /// Work that hangs until the sender is dropped.
    fn hang() -> (mpsc::Sender<()>, impl FnOnce(&Path) -> bool + Send + 'static) {
        let (release, held) = mpsc::channel::<()>();
        (release, move |_| held.recv().is_err())
    }

    #[test]
    fn hole_08_work_that_hangs_costs_its_path_alone() {
        // Long enough for the path that does not hang, on a busy machine.
        let (threads, dead) = (DiskThreads::new(Duration::from_secs(2)), Path::new("/dead"));
        let (release, work) = hang();
        let error = threads.run(dead, work).unwrap_err();
        assert_eq!((error.kind(), error.to_string().contains("did not answer")), (io::ErrorKind::TimedOut, true));
        assert_eq!(threads.run(Path::new("/other"), |_| 1).unwrap(), 1, "another path");
        // Not tried, or this would be a second thread that hangs.
        assert_eq!(threads.run(dead, |_| 1).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(release);
        let back = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            threads.run(dead, |_| 2).ok()
        });
        assert_eq!(back, Some(2), "a path that answers again");
    }

    #[test]
    fn hole_08_lost_threads_are_bounded() {
        let threads = DiskThreads::new(Duration::from_millis(1));
        let mut held = Vec::new();
        for n in 0..super::MOST_LOST {
            let (release, work) = hang();
            held.push(release);
            assert!(threads.run(Path::new(&n.to_string()), work).is_err());
        }
        let error = threads.run(Path::new("one more"), |_| ()).unwrap_err();
        assert!(error.to_string().contains("too many other file operations"), "{error}");
    }

    #[test]
    fn work_that_panics_is_an_error() {
        let threads = DiskThreads::new(Duration::from_secs(60));
        assert!(threads.run(Path::new("/a"), |_| -> () { panic!("as a test") }).is_err());
        assert!(threads.run(Path::new("/a"), |_| ()).is_ok());
    }
}
