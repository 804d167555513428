//! A network namespace that lives as long as its thread.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getpid, gettid};

pub(crate) struct Namespace {
    path: PathBuf,
    thread: i32,
    work: Option<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    owner: Option<thread::JoinHandle<()>>,
}

impl Namespace {
    /// A fresh namespace with loopback up.
    pub(crate) fn new(name: &str) -> Namespace {
        let (born, birth) = mpsc::channel();
        let (work, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let owner = thread::Builder::new().name(name.to_owned()).spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace (needs root)");
            born.send(gettid().as_raw()).expect("the constructor waits");
            jobs.into_iter().for_each(|job| job());
        });
        let owner = owner.expect("a thread");
        let thread = birth.recv().expect("a namespace");
        let path = format!("/proc/{}/task/{thread}/ns/net", getpid()).into();
        let namespace = Namespace { path, thread, work: Some(work), owner: Some(owner) };
        namespace.run("ip link set lo up");
        namespace
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The thread that owns the namespace; `ip` accepts its id as the namespace.
    pub(crate) fn thread(&self) -> i32 {
        self.thread
    }

    /// Runs a function inside, on the thread that owns the namespace.
    pub(crate) fn enter<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job: Box<dyn FnOnce() + Send> = Box::new(move || {
            let _ = done.send(act());
        });
        self.work.as_ref().expect("it lives").send(job).expect("its thread lives");
        result.recv().expect("it went well inside")
    }

    /// Runs a command inside and returns its output.
    pub(crate) fn run(&self, command: &str) -> String {
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        let output = self.enter(move || Command::new(&words[0]).args(&words[1..]).output());
        let output = output.unwrap_or_else(|e| panic!("{command}: {e}"));
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a future inside on a new thread and returns its result.
    pub(crate) async fn inside<T, F>(&self, make: impl FnOnce() -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        let (done, result) = tokio::sync::oneshot::channel();
        let path = self.path.clone();
        thread::spawn(move || done.send(block_on(&path, make())));
        result.await.expect("it went well inside")
    }

    /// Runs a future inside in the background until the test ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let path = self.path.clone();
        thread::spawn(move || block_on(&path, task));
    }
}

/// Moves this thread into the namespace and runs a future on it.
fn block_on<T>(namespace: &Path, future: impl Future<Output = T>) -> T {
    let file = std::fs::File::open(namespace).expect("the namespace");
    setns(file, CloneFlags::CLONE_NEWNET).expect("inside");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(owner) = self.owner.take() {
            let _ = owner.join();
        }
    }
}
