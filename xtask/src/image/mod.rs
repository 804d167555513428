//! `cargo xtask image`: the images `pilot`, `proxyv2` and `proxy_init` in `target/images/NAME`: the root folder, and an OCI
//! layout of it. It needs no container builder; `deploy/Containerfile` copies the same root folders. The same input gives
//! the same digest.

mod layout;
mod rootfs;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup;
use layout::ImageConfig;

/// An image: its name, what is in it and how it starts.
struct Image {
    name: &'static str,
    /// Our programs, in `/usr/local/bin`.
    binaries: &'static [&'static str],
    has_envoy: bool,
    has_iptables: bool,
    config: ImageConfig,
}

/// As in upstream's images: proxies run as user 1337, whose traffic is not redirected.
const IMAGES: &[Image] = &[
    Image {
        name: "pilot",
        binaries: &["pilot-discovery", "pilotctl"],
        has_envoy: false,
        has_iptables: false,
        config: ImageConfig {
            user: "1337:1337",
            entry_point: &["/usr/local/bin/pilot-discovery"],
            command: &["discovery"],
        },
    },
    Image {
        name: "proxyv2",
        binaries: &["pilot-agent"],
        has_envoy: true,
        has_iptables: true,
        config: ImageConfig { user: "1337:1337", entry_point: &["/usr/local/bin/pilot-agent"], command: &[] },
    },
    // Setting iptables rules needs root; the init container drops everything but NET_ADMIN and NET_RAW.
    Image {
        name: "proxy_init",
        binaries: &["pilot-agent"],
        has_envoy: false,
        has_iptables: true,
        config: ImageConfig {
            user: "0:0",
            entry_point: &["/usr/local/bin/pilot-agent", "istio-iptables"],
            command: &[],
        },
    },
];

/// Options of the command.
#[derive(Debug, PartialEq)]
struct ImageOptions<'a> {
    names: Vec<&'a str>,
    hub: &'a str,
    tag: &'a str,
    /// The folder of `target` with the binaries: release, or debug for tests.
    profile: &'a str,
    /// Only the root folders.
    is_rootfs_only: bool,
}

fn options<'a>(args: &[&'a str]) -> Result<ImageOptions<'a>> {
    let mut options =
        ImageOptions { names: Vec::new(), hub: "pilotage", tag: "latest", profile: "release", is_rootfs_only: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = |rest: &mut std::slice::Iter<'_, &'a str>| {
            rest.next().copied().with_context(|| format!("{arg} needs a value"))
        };
        match *arg {
            "--hub" => options.hub = value(&mut args)?,
            "--tag" => options.tag = value(&mut args)?,
            "--debug" => options.profile = "debug",
            "--rootfs" => options.is_rootfs_only = true,
            name if IMAGES.iter().any(|image| image.name == name) => options.names.push(name),
            other => bail!("{other:?} is neither an option nor an image (pilot, proxyv2, proxy_init)"),
        }
    }
    Ok(options)
}

pub(crate) fn run(root: &Path, args: &[&str]) -> Result<()> {
    let options = options(args)?;
    build(root, options.profile)?;
    let chosen = IMAGES.iter().filter(|image| options.names.is_empty() || options.names.contains(&image.name));
    for image in chosen {
        let folder = root.join("target/images").join(image.name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("could not remove {}", folder.display()))?;
        }
        let files = folder.join("rootfs");
        rootfs::assemble(image, &root.join("target").join(options.profile), &files)?;
        if options.is_rootfs_only {
            println!("image: {}", files.display());
            continue;
        }
        let reference = format!("{}/{}:{}", options.hub, image.name, options.tag);
        let digest = layout::write(&files, &folder.join("oci"), &reference, &image.config)?;
        println!("image: {reference} {digest} in {}", folder.join("oci").display());
    }
    Ok(())
}

fn build(root: &Path, profile: &str) -> Result<()> {
    let arguments: &[&str] = match profile {
        "debug" => &["--workspace", "--bins"],
        _ => &["--release", "-p", "discovery", "-p", "agent", "-p", "pilotctl"],
    };
    output(Command::new(env!("CARGO")).current_dir(root).args(["build", "--locked"]).args(arguments))?;
    Ok(())
}

/// The Envoy that `cargo xtask setup envoy` has obtained.
fn envoy() -> Result<std::path::PathBuf> {
    let path = setup::cache()?.join("bin/envoy");
    fs::canonicalize(&path).with_context(|| format!("{} is missing: run cargo xtask setup envoy", path.display()))
}

/// Runs a tool and returns what it prints.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("could not run {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::{IMAGES, options};

    #[test]
    fn options_are_read() {
        let read = options(&["--hub", "example.com/mesh", "--tag", "1", "pilot", "--debug"]).expect("valid");
        assert_eq!((read.hub, read.tag, read.names, read.profile), ("example.com/mesh", "1", vec!["pilot"], "debug"));
        assert!(options(&["--hub"]).is_err_and(|error| error.to_string() == "--hub needs a value"));
        assert!(options(&["proxy"]).is_err());
    }

    #[test]
    fn only_the_image_of_the_init_container_runs_as_root() {
        let of_root: Vec<&str> =
            IMAGES.iter().filter(|image| image.config.user.starts_with("0:")).map(|image| image.name).collect();
        assert_eq!(of_root, ["proxy_init"]);
    }
}
