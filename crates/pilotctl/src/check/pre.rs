//! `pilotctl check --pre`: what an installation needs, checked before it. Nothing is changed.

use anyhow::{Context, Result};

use super::pre_finding::PreLevel;
use super::{CheckOptions, FOUND, pre_cluster, pre_machine};
use crate::control_plane::UNREACHABLE;
use crate::output::{green, red, yellow};

/// Prints all findings; the exit status is 1 if the installation would fail, 3 if the cluster cannot be reached.
pub(super) async fn run(options: &CheckOptions) -> Result<u8> {
    let found = if options.machine {
        pre_machine::findings()
    } else {
        let client = options.cluster.client().await;
        let client = client.context("could not use the cluster; `--machine` checks this machine instead")?;
        match pre_cluster::version(&client).await {
            Err(error) => {
                eprintln!("pilotctl: could not reach the API server: {error:#}");
                return Ok(UNREACHABLE);
            }
            Ok(version) => pre_cluster::findings(&client, version, &options.control_plane_namespace).await,
        }
    };
    let is_good = found.iter().all(|finding| finding.level != PreLevel::Error);
    if !options.output().printed(&found)? {
        for finding in &found {
            let level = match finding.level {
                PreLevel::Ok => green("ok     "),
                PreLevel::Warning => yellow("warning"),
                PreLevel::Error => red("error  "),
            };
            anstream::println!("{level} {}: {}", finding.check, finding.text);
        }
        anstream::println!("{}", if is_good { "ready for an installation" } else { "not ready for an installation" });
    }
    Ok(if is_good { 0 } else { FOUND })
}
