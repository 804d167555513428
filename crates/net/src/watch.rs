//! Follows files by reading them at intervals and comparing what was read. Content is compared, not metadata: mounted
//! Secrets are symbolic links that are swapped, and `cp -p` changes a file without changing its times.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// How often files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePolling {
    /// Time between two reads.
    pub period: Duration,
    /// How long a new content must stay the same before it is used, because several files are not written at once. Zero if
    /// the first new content is used.
    pub settle: Duration,
}

impl FilePolling {
    /// A new content is used as soon as it is read.
    pub fn every(period: Duration) -> FilePolling {
        FilePolling { period, settle: Duration::ZERO }
    }
}

/// Files and what was last read from them. `T` is their content, its hash, or the reason why it cannot be read.
pub struct PolledFiles<T> {
    read: Arc<dyn Fn() -> T + Send + Sync>,
    polling: FilePolling,
    /// `None` before the first read.
    last: Option<T>,
}

impl<T: PartialEq + Send + 'static> PolledFiles<T> {
    /// The first read counts as a change.
    pub fn new(polling: FilePolling, read: impl Fn() -> T + Send + Sync + 'static) -> PolledFiles<T> {
        PolledFiles { read: Arc::new(read), polling, last: None }
    }

    /// The content that is in use already: only a different one is a change.
    #[must_use]
    pub fn after(self, content: T) -> PolledFiles<T> {
        PolledFiles { last: Some(content), ..self }
    }

    /// Waits until something else is read, and returns it. `None` if the runtime shuts down.
    pub async fn changed(&mut self) -> Option<&T> {
        let now = match &self.last {
            None => self.read().await?,
            Some(last) => self.settled(last).await?,
        };
        Some(self.last.insert(now))
    }

    /// The next content other than `last`, once it no longer changes.
    async fn settled(&self, last: &T) -> Option<T> {
        let mut now = loop {
            sleep(self.polling.period).await;
            let now = self.read().await?;
            if now != *last {
                break now;
            }
        };
        while !self.polling.settle.is_zero() {
            sleep(self.polling.settle).await;
            let later = self.read().await?;
            if later == now {
                break;
            }
            now = later;
        }
        Some(now)
    }

    /// Reads on a blocking thread: a dead mount must not block other tasks.
    async fn read(&self) -> Option<T> {
        let read = Arc::clone(&self.read);
        spawn_blocking(move || read()).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use super::{FilePolling, PolledFiles};

    const PERIOD: Duration = Duration::from_millis(5);

    fn polled(path: &Path, settle: Duration) -> PolledFiles<Option<String>> {
        let path = path.to_owned();
        let read = move || fs::read_to_string(&path).ok();
        PolledFiles::new(FilePolling { period: PERIOD, settle }, read)
    }

    #[tokio::test]
    async fn a_swapped_link_and_a_removed_file_are_changes() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two, link, next] = ["one", "two", "link", "next"].map(|name| folder.path().join(name));
        fs::write(&one, "1").unwrap();
        fs::write(&two, "2").unwrap();
        std::os::unix::fs::symlink(&one, &link).unwrap();
        let mut files = polled(&link, Duration::ZERO);
        assert_eq!(files.changed().await.unwrap().as_deref(), Some("1"));
        std::os::unix::fs::symlink(&two, &next).unwrap();
        fs::rename(&next, &link).unwrap();
        assert_eq!(files.changed().await.unwrap().as_deref(), Some("2"));
        fs::remove_file(&two).unwrap();
        assert_eq!(files.changed().await, Some(&None));
    }

    #[tokio::test]
    async fn the_same_content_in_a_new_file_is_no_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "1").unwrap();
        let mut files = polled(&file, Duration::ZERO).after(Some("1".to_owned()));
        fs::remove_file(&file).unwrap();
        fs::write(&file, "1").unwrap();
        assert!(tokio::time::timeout(20 * PERIOD, files.changed()).await.is_err());
    }

    #[tokio::test]
    async fn a_content_is_used_when_it_has_settled() {
        let reads = std::sync::atomic::AtomicU32::new(0);
        // 1 and 2 while it is written, then always 3.
        let read = move || reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(2) + 1;
        let mut files = PolledFiles::new(FilePolling { period: PERIOD, settle: PERIOD }, read).after(0);
        assert_eq!(files.changed().await, Some(&3));
    }
}
