//! File descriptors: raises the soft limit to the hard limit, and divides the descriptors so that connections to one
//! port never use up those of another port or those that files and registries need.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::{info, warn};

/// Assumed if the kernel does not report a limit.
const DEFAULT_LIMIT: usize = 1024;

/// Raises the soft limit to the hard limit.
pub fn raise_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => info!(limit = hard, before = soft, "raised the limit of open files"),
        Err(error) => warn!(limit = soft, wanted = hard, %error, "could not raise the limit of open files"),
    }
}

/// Maximum number of connections by kind of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// Connections to both xDS ports together.
    pub(crate) xds: usize,
    /// Each HTTP port.
    pub(crate) pages: usize,
}

impl ConnectionLimits {
    pub(crate) fn now() -> ConnectionLimits {
        let limit = getrlimit(Resource::RLIMIT_NOFILE)
            .map_or(DEFAULT_LIMIT, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX));
        ConnectionLimits::of(limit)
    }

    /// One eighth for files and registries, one sixteenth for each HTTP port, both with an upper bound; the rest for xDS.
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
