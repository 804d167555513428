//! An OCI image layout with one layer. Order, owner and times are fixed, so that equal files give equal digests.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::output;

/// How containers of an image start.
pub(super) struct ImageConfig {
    /// `uid:gid`.
    pub(super) user: &'static str,
    pub(super) entry_point: &'static [&'static str],
    pub(super) command: &'static [&'static str],
}

/// The time of all files and of the image.
const TIME: &str = "1970-01-01T00:00:00Z";

/// A file of the layout, named by its hash.
struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn descriptor(&self, media_type: &str) -> String {
        format!(
            r#""mediaType":"application/vnd.oci.image.{media_type}","digest":"{}","size":{}"#,
            self.digest, self.size
        )
    }
}

/// Packs a root folder. Returns the digest of the manifest.
pub(super) fn write(files: &Path, target: &Path, reference: &str, config: &ImageConfig) -> Result<String> {
    let blobs = target.join("blobs/sha256");
    fs::create_dir_all(&blobs).with_context(|| format!("could not create {}", blobs.display()))?;
    let packed = target.join("layer.tar");
    let mut tar = Command::new("tar");
    tar.arg("--directory").arg(files).args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--format=gnu",
    ]);
    output(tar.arg(format!("--mtime={TIME}")).arg("--create").arg("--file").arg(&packed).arg("."))?;
    let layer = stored(&blobs, &packed)?;
    let described = text_blob(&blobs, target, &config_json(config, &layer.digest))?;
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{{}}},"layers":[{{{}}}]}}"#,
        described.descriptor("config.v1+json"),
        layer.descriptor("layer.v1.tar"),
    );
    let manifest = text_blob(&blobs, target, &manifest)?;
    let index = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{{{},"annotations":{{"org.opencontainers.image.ref.name":{}}}}}]}}"#,
        manifest.descriptor("manifest.v1+json"),
        quoted(reference),
    );
    fs::write(target.join("index.json"), index)?;
    fs::write(target.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(manifest.digest)
}

fn config_json(config: &ImageConfig, layer: &str) -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let list = |items: &[&str]| items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(",");
    format!(
        r#"{{"created":"{TIME}","architecture":"{architecture}","os":"linux","config":{{"User":{},"Env":["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"Entrypoint":[{}],"Cmd":[{}],"WorkingDir":"/"}},"rootfs":{{"type":"layers","diff_ids":["{layer}"]}}}}"#,
        quoted(config.user),
        list(config.entry_point),
        list(config.command),
    )
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|letter| match letter {
        '"' | '\\' => format!("\\{letter}"),
        control if control.is_control() => format!("\\u{:04x}", u32::from(control)),
        other => other.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

fn text_blob(blobs: &Path, target: &Path, text: &str) -> Result<Blob> {
    let path = target.join("blob.json");
    fs::write(&path, text)?;
    stored(blobs, &path)
}

/// Moves a file to the name of its hash.
fn stored(blobs: &Path, file: &Path) -> Result<Blob> {
    let printed = output(Command::new("sha256sum").arg(file))?;
    let hash = printed.split_whitespace().next().context("sha256sum printed nothing")?;
    let size = fs::metadata(file)?.len();
    fs::rename(file, blobs.join(hash))?;
    Ok(Blob { digest: format!("sha256:{hash}"), size })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{ImageConfig, quoted, write};

    #[test]
    fn equal_files_give_equal_digests() {
        let folder = std::env::temp_dir().join(format!("pilotage-layout-{}", std::process::id()));
        let config = ImageConfig { user: "1:1", entry_point: &["/a"], command: &["b"] };
        let mut digests = Vec::new();
        for run in ["one", "two"] {
            let files = folder.join(run).join("rootfs");
            fs::create_dir_all(files.join("etc")).expect("a folder");
            // Another order of creation.
            let mut names = ["a", "b", "etc/c"];
            if run == "two" {
                names.reverse();
            }
            for name in names {
                fs::write(files.join(name), name).expect("a file");
            }
            digests.push(write(&files, &folder.join(run).join("oci"), "hub/a:1", &config).expect("a layout"));
        }
        let index = fs::read_to_string(folder.join("one/oci/index.json")).expect("an index");
        fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(digests[0], digests[1]);
        assert!(index.contains(&digests[0]) && index.contains(r#""org.opencontainers.image.ref.name":"hub/a:1""#));
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
