//! `cargo xtask cluster`: a Kubernetes cluster on this machine with Pilotage installed from the chart. `machine.rs` starts and
//! stops it, `install.rs` and `istiod.rs` install a control plane into it, `load.rs` sends requests in it, `usage.rs` reads what
//! a program has used, `traces.rs` checks that nothing is left.
//! The program that runs the cluster is `tools/servers/cluster`.

mod install;
mod istiod;
mod load;
mod machine;
mod traces;
mod usage;

use std::path::Path;

use anyhow::{Result, bail};

pub(crate) use self::install::{ChartRelease, ControlPlaneKind, gateway_api};
pub(crate) use self::istiod::install_istiod;
pub(crate) use self::load::{Load, LoadCounts, ask};
pub(crate) use self::machine::{Cluster, Lifetime, MachineOptions};

/// Runs `up`, `down` or `status` with its flags.
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<()> {
    let (command, flags) = match args {
        [command, flags @ ..] => (*command, flags),
        [] => bail!("cluster up, down or status?"),
    };
    let options = MachineOptions::parse(flags)?;
    match command {
        "up" => up(root, &options),
        "down" => down(&options),
        "status" => status(&options),
        _ => bail!("unknown command {command:?}: up, down or status"),
    }
}

fn up(root: &Path, options: &MachineOptions) -> Result<()> {
    let cluster = Cluster::start(root, options, Lifetime::UntilDown)?;
    if options.install {
        install::gateway_api(&cluster)?;
        ChartRelease::default().install(&cluster)?;
    }
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("commands in its network: nsenter --target {} --net COMMAND", cluster.inside_pid()?);
    Ok(())
}

fn down(options: &MachineOptions) -> Result<()> {
    match machine::down(&options.folder())? {
        true => println!("cluster {} is gone", options.name),
        false => println!("there was no cluster {}", options.name),
    }
    Ok(())
}

fn status(options: &MachineOptions) -> Result<()> {
    match Cluster::running(&options.folder())? {
        None => println!("cluster {} is not running", options.name),
        Some(cluster) => {
            println!("cluster {} runs: export KUBECONFIG={}", options.name, cluster.kubeconfig().display());
            print!("{}", cluster.kubectl(&["get", "nodes,pods", "--all-namespaces"])?);
        }
    }
    Ok(())
}
