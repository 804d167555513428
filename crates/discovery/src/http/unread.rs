//! Memory limit for pages that are not read yet: a slow reader keeps its page in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long a page waits for room.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Room is counted in KiB.
const KIB: usize = 1024;

/// Memory for pages that are being read.
#[derive(Clone, Debug)]
pub(super) struct UnreadPages {
    room: Arc<Semaphore>,
    kib: usize,
}

/// Other pages use all the memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

/// A page that occupies memory until its last reader is done.
struct UnreadPage {
    text: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for UnreadPage {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl UnreadPages {
    pub(super) fn new(bytes: usize) -> UnreadPages {
        let kib = bytes.div_ceil(KIB).min(Semaphore::MAX_PERMITS);
        UnreadPages { room: Arc::new(Semaphore::new(kib)), kib }
    }

    /// Waits until there is room for the page. A page larger than the limit is sent when no other page is.
    pub(super) async fn hold(&self, text: Bytes) -> Result<Bytes, NoRoom> {
        let room = self.room.clone().acquire_many_owned(self.needed(&text));
        let room = timeout(TIMEOUT, room).await.ok().and_then(Result::ok).ok_or(NoRoom)?;
        Ok(Bytes::from_owner(UnreadPage { text, _room: room }))
    }

    /// Like `hold`, but fails if there is no room now.
    pub(super) fn try_hold(&self, text: Bytes) -> Result<Bytes, NoRoom> {
        let room = self.room.clone().try_acquire_many_owned(self.needed(&text)).map_err(|_| NoRoom)?;
        Ok(Bytes::from_owner(UnreadPage { text, _room: room }))
    }

    fn needed(&self, text: &Bytes) -> u32 {
        u32::try_from(text.len().div_ceil(KIB).min(self.kib)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, NoRoom, UnreadPages};

    #[tokio::test]
    async fn hole_12_unread_pages_are_bounded_and_free_memory_when_read() {
        let outgoing = UnreadPages::new(100 * 1024);
        let page = || Bytes::from(vec![b'x'; 60 * 1024]);
        let first = outgoing.hold(page()).await.unwrap();
        assert_eq!(outgoing.try_hold(page()), Err(NoRoom));
        let part = first.slice(10..20);
        drop(first);
        assert_eq!(outgoing.try_hold(page()), Err(NoRoom), "a part of it is still being read");
        drop(part);
        let second = outgoing.try_hold(page()).unwrap();
        assert_eq!(second.len(), 60 * 1024);
        drop(second);
        let large = outgoing.try_hold(Bytes::from(vec![b'x'; 200 * 1024])).expect("a large page is sent alone");
        assert_eq!(outgoing.try_hold(Bytes::from_static(b"x")), Err(NoRoom));
        drop(large);
    }
}
