//! Log output: a queue bounded in bytes and a thread that writes it to standard output. Serving never waits for the
//! reader of the log: when the queue is full, lines are dropped and counted, and the count is logged later.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::{Condvar, Mutex};
use tracing::warn;

/// Size limit of the queue: about 5,000 lines, more than a burst of connections logs. The batch that the thread is
/// writing comes on top.
const MOST_BYTES: usize = 1024 * 1024;
/// Buffer capacity that an idle queue keeps.
const KEPT_BYTES: usize = 16 * 1024;
/// Enough to format the one event that the thread itself logs.
const STACK_BYTES: usize = 256 * 1024;

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Number of log lines dropped since the start because the reader was too slow.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Lines waiting for the writer thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue(Arc<QueueInner>);

#[derive(Debug, Default)]
struct QueueInner {
    state: Mutex<QueueState>,
    /// Signalled when a line is queued.
    filled: Condvar,
    /// Signalled when everything has been written.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: Vec<u8>,
    /// Lines dropped since the last report.
    dropped: u64,
    is_writing: bool,
}

impl Queue {
    /// Starts the thread.
    pub(crate) fn start(out: impl Write + Send + 'static) -> Result<Queue> {
        let queue = Queue::default();
        let own = queue.clone();
        let thread = thread::Builder::new().name("log".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || own.drain(out)).context("could not start the log thread")?;
        Ok(queue)
    }

    /// Queues a line, or drops it if the queue is full.
    fn push(&self, line: &[u8]) {
        let mut state = self.0.state.lock();
        if state.waiting.len() + line.len() > MOST_BYTES {
            state.dropped += 1;
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.waiting.extend_from_slice(line);
        drop(state);
        self.0.filled.notify_one();
    }

    /// Waits until every line is written, at most this long.
    pub(crate) fn flush(&self, at_most: Duration) {
        let is_busy = |state: &mut QueueState| state.is_writing || !state.waiting.is_empty();
        let _ = self.0.emptied.wait_while_for(&mut self.0.state.lock(), is_busy, at_most);
    }

    fn drain(&self, mut out: impl Write) {
        loop {
            let (batch, dropped) = self.take();
            let written = out.write_all(&batch).and_then(|()| out.flush());
            if written.is_err() {
                let lost = batch.iter().filter(|byte| **byte == b'\n').count();
                DROPPED.fetch_add(lost as u64, Ordering::Relaxed);
            } else if dropped > 0 {
                warn!(lines = dropped, "log lines dropped: the log was not read fast enough");
            }
            self.recycle(batch);
        }
    }

    /// Waits for lines; returns them with the number of lines dropped since the last call.
    fn take(&self) -> (Vec<u8>, u64) {
        let idle = |state: &mut QueueState| state.waiting.is_empty();
        let mut state = self.0.state.lock();
        self.0.filled.wait_while(&mut state, idle);
        state.is_writing = true;
        (std::mem::take(&mut state.waiting), std::mem::take(&mut state.dropped))
    }

    /// Reuses the memory of a written batch.
    fn recycle(&self, mut batch: Vec<u8>) {
        batch.clear();
        batch.shrink_to(KEPT_BYTES);
        let mut state = self.0.state.lock();
        state.is_writing = false;
        if state.waiting.is_empty() {
            state.waiting = batch;
            drop(state);
            self.0.emptied.notify_all();
        }
    }
}

/// One call of `write` is one line: the tracing layers write whole lines.
impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::{MOST_BYTES, Queue, dropped};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// An output that accepts a batch when the test allows it.
    struct Gate {
        open: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.open.recv();
            let _ = self.written.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn hole_09_a_stuck_output_drops_lines_without_delay() {
        let (allow, open) = channel();
        let (written, batches) = channel();
        let mut queue = Queue::start(Gate { open, written }).unwrap();
        let line = vec![b'x'; 1024];
        let before = dropped();
        for _ in 0..3 * MOST_BYTES / line.len() {
            queue.write_all(&line).unwrap(); // would hang here if it waited
        }
        assert!(dropped() - before >= (MOST_BYTES / line.len()) as u64);
        drop(allow); // the reader is back
        queue.flush(PATIENCE);
        let written: usize = batches.try_iter().map(|batch| batch.len()).sum();
        assert!((MOST_BYTES - line.len()..=2 * MOST_BYTES).contains(&written), "{written} bytes");
        assert!(queue.0.state.lock().waiting.capacity() < MOST_BYTES);
    }

    #[test]
    fn flush_waits_for_the_last_line_until_its_timeout() {
        let (allow, open) = channel();
        let (written, batches) = channel();
        let mut queue = Queue::start(Gate { open, written }).unwrap();
        queue.write_all(b"last line\n").unwrap();
        queue.flush(Duration::from_millis(1));
        assert!(batches.try_recv().is_err());
        allow.send(()).unwrap();
        queue.flush(PATIENCE);
        assert_eq!(batches.try_recv().unwrap(), b"last line\n");
    }
}
