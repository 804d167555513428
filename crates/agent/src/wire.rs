//! Start-up, read top to bottom: who we are, what is asked of Envoy, what is served to it, and Envoy itself.

use anyhow::{Result, bail};
use tracing::{info, warn};

use crate::args::Proxy;
use crate::environment::Environment;
use crate::process::exit::Cause;
use crate::version;

/// Runs an Envoy until there is a reason to end.
pub async fn run(args: &Proxy, _environment: &Environment) -> Result<Cause> {
    info!("pilot-agent {}", version::line());
    for name in &args.set_aside.unknown {
        warn!("flag --{name} is not known and was ignored");
    }
    for name in &args.set_aside.without_effect {
        warn!("flag --{name} has no effect");
    }
    bail!("could not make a bootstrap: not written yet")
}
