//! File descriptors: the soft limit is raised to the hard one at start, and what there is is divided so that
//! connections to one port never use up those of another, or those that files and registries need.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::{info, warn};

/// What is assumed where the kernel does not say.
const USUAL: usize = 1024;

/// Raises the soft limit as far as the hard one allows.
pub fn raise() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => info!(limit = hard, before = soft, "limit of open files"),
        Err(error) => warn!(limit = soft, wanted = hard, %error, "could not raise the limit of open files"),
    }
}

/// How many connections each kind of port may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Both xDS ports together.
    pub(crate) xds: usize,
    /// Each port of pages.
    pub(crate) pages: usize,
}

impl Shares {
    pub(crate) fn now() -> Shares {
        let limit =
            getrlimit(Resource::RLIMIT_NOFILE).map_or(USUAL, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX));
        Shares::of(limit)
    }

    /// An eighth for everything that is no connection of a client, a sixteenth for each port of pages, up to what
    /// these can use; the rest is for xDS.
    fn of(limit: usize) -> Shares {
        let others = (limit / 8).clamp(64, 2048);
        let pages = (limit / 16).clamp(16, 1024);
        Shares { xds: limit.saturating_sub(others + 2 * pages).max(16), pages }
    }
}

#[cfg(test)]
mod tests {
    use super::Shares;

    #[test]
    fn most_descriptors_are_for_xds() {
        assert_eq!(Shares::of(1024), Shares { xds: 768, pages: 64 });
        assert_eq!(Shares::of(20_000), Shares { xds: 15_904, pages: 1024 });
        assert_eq!(Shares::of(1 << 20), Shares { xds: (1 << 20) - 4096, pages: 1024 });
        assert_eq!(Shares::of(64), Shares { xds: 16, pages: 16 });
    }
}
