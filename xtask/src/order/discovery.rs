//! What pilot-discovery runs: with nothing to serve, then with the samples, then with so many services that what is
//! only for large sets runs too. A function that is forgotten costs the pages around it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::profile::{Profiler, Running, answers};

const SERVICES: usize = 1000;

pub(super) fn stages(profiler: &Profiler) -> Result<Vec<BTreeSet<String>>> {
    let [nothing, many] = ["nothing", "many"].map(|name| profiler.scratch.join(name));
    fs::create_dir_all(&nothing)?;
    fs::create_dir_all(&many)?;
    fs::write(many.join("services.yaml"), (0..SERVICES).map(service).collect::<String>())?;
    [&nothing, &profiler.samples, &many].into_iter().map(|folder| functions(profiler, folder)).collect()
}

/// A ServiceEntry of ten endpoints.
fn service(number: usize) -> String {
    let endpoints = (0..10).map(|e| format!("  - {{address: 10.{e}.{}.{}}}\n", number / 250, number % 250 + 1));
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{number}, namespace: n}}\n\
         spec:\n  hosts: [s{number}.n.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: 80, protocol: HTTP}}]\n  endpoints:\n{}",
        endpoints.collect::<String>()
    )
}

/// Starts the server, asks whether it is ready, stops it, and gives what ran.
fn functions(profiler: &Profiler, folder: &Path) -> Result<BTreeSet<String>> {
    let mut command = profiler.watched();
    with_ports(&mut command, folder);
    // Charts mount settings that say nothing.
    for (flag, text) in [("meshConfig", "{}\n"), ("networksConfig", "networks: {}\n")] {
        let file = profiler.scratch.join(flag);
        fs::write(&file, text)?;
        command.arg(format!("--{flag}={}", file.display()));
    }
    let mut server = profiler.start(&mut command, "log")?;
    let ready = |log: &str| address(log, "http").is_some_and(|address| answers(address, "/ready")).then_some(());
    server.wait_for("ready server", ready)?;
    server.stop()?;
    profiler.functions()
}

/// A server for others, and where it answers.
pub(super) fn serving(profiler: &Profiler) -> Result<(Running, String)> {
    let mut command = Command::new(profiler.beside.join("pilot-discovery"));
    let mut server = profiler.start(with_ports(&mut command, &profiler.samples), "discovery")?;
    let address = server.wait_for("port", |log| address(log, "grpc").map(str::to_owned))?;
    Ok((server, address))
}

fn with_ports<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    command
        .args(["discovery", "--registries=", "--grpcAddr=127.0.0.1:0", "--httpAddr=127.0.0.1:0"])
        .args(["--monitoringAddr=127.0.0.1:0", "--secureGRPCAddr=", "--httpsAddr="])
        .arg(format!("--configDir={}", folder.display()))
}

/// The address of a port, from the line that tells it.
fn address<'a>(log: &'a str, port: &str) -> Option<&'a str> {
    let port = format!("port=\"{port}\"");
    log.lines().find(|line| line.contains(&port))?.split_once("address=").map(|(_, address)| address.trim())
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn address_is_that_of_the_named_port() {
        let log = "x\tlistening port=\"grpc\" address=127.0.0.1:1\nx\tlistening port=\"http\" address=127.0.0.1:2\n";
        assert_eq!((address(log, "http"), address(log, "grpc")), (Some("127.0.0.1:2"), Some("127.0.0.1:1")));
        assert_eq!(address(log, "monitoring"), None);
    }
}
