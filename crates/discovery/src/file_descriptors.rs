//! File descriptors: the soft limit is raised to the hard one at start, and what there is is divided so that
//! connections to one port never use up those of another, or those that files and registries need.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::{info, warn};

/// What is assumed where the kernel does not say.
const USUAL: usize = 1024;

/// Raises the soft limit as far as the hard one allows.
pub fn raise_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => info!(limit = hard, before = soft, "limit of open files"),
        Err(error) => warn!(limit = soft, wanted = hard, %error, "could not raise the limit of open files"),
    }
}

/// How many connections each kind of port may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// Both xDS ports together.
    pub(crate) xds: usize,
    /// Each port of pages.
    pub(crate) pages: usize,
}

impl ConnectionLimits {
    pub(crate) fn now() -> ConnectionLimits {
        let limit =
            getrlimit(Resource::RLIMIT_NOFILE).map_or(USUAL, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX));
        ConnectionLimits::of(limit)
    }

    /// An eighth for everything that is no connection of a client, a sixteenth for each port of pages, up to what
    /// these can use; the rest is for xDS.
    fn of(limit: usize) -> ConnectionLimits {
        let others = (limit / 8).clamp(64, 2048);
        let pages = (limit / 16).clamp(16, 1024);
        ConnectionLimits { xds: limit.saturating_sub(others + 2 * pages).max(16), pages }
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectionLimits;

    #[test]
    fn most_descriptors_are_for_xds() {
        assert_eq!(ConnectionLimits::of(1024), ConnectionLimits { xds: 768, pages: 64 });
        assert_eq!(ConnectionLimits::of(20_000), ConnectionLimits { xds: 15_904, pages: 1024 });
        assert_eq!(ConnectionLimits::of(1 << 20), ConnectionLimits { xds: (1 << 20) - 4096, pages: 1024 });
        assert_eq!(ConnectionLimits::of(64), ConnectionLimits { xds: 16, pages: 16 });
    }
}
