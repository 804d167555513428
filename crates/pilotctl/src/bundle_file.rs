//! The file that `pilotctl bundle` writes and `--bundle` reads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::bundle_query;

/// The format of bundles that this version reads and writes.
pub(crate) const FORMAT: u32 = 1;

/// A bundle as it is stored.
#[derive(Serialize, Deserialize)]
pub(crate) struct BundleFile {
    /// Number of the format.
    pub(crate) pilotage_bundle: u32,
    pub(crate) version: String,
    pub(crate) server: String,
    /// Texts of pages by path.
    pub(crate) pages: BTreeMap<String, String>,
}

impl BundleFile {
    pub(crate) fn read(file: &Path) -> Result<BundleFile> {
        let name = file.display();
        let text = fs::read_to_string(file).with_context(|| format!("could not read bundle {name}"))?;
        let bundle: BundleFile = serde_json::from_str(&text)
            .with_context(|| format!("could not read bundle {name}: it is cut off, or not a bundle"))?;
        if bundle.pilotage_bundle != FORMAT {
            bail!(
                "could not read bundle {name}: it has format {}, of pilotctl {}; this one reads format {FORMAT}",
                bundle.pilotage_bundle,
                bundle.version
            );
        }
        Ok(bundle)
    }

    /// What the server answered to a request when the bundle was taken.
    pub(crate) fn page(mut self, path: &str) -> Result<String> {
        if let Some(text) = self.pages.remove(path) {
            return Ok(text);
        }
        let (page, query) = path.split_once('?').unwrap_or((path, ""));
        if page.ends_with("config_dump") {
            bail!("the bundle has no configuration of this proxy; take one with --proxy NAME");
        }
        if let Some(proxy) = page.strip_prefix("/api/v1/proxies/") {
            let proxy = proxy.split('/').next().unwrap_or_default();
            bail!("the bundle has no page {page}; take one with --proxy {proxy}");
        }
        let known = self.pages.keys().find(|known| known.split('?').next() == Some(page)).cloned();
        let Some(text) = known.and_then(|known| self.pages.remove(&known)) else {
            bail!("the bundle has no page {page}; only a running server answers this command");
        };
        match serde_json::from_str(&text) {
            Ok(whole) => Ok(bundle_query::answer(page, query, whole).to_string()),
            Err(_) => Ok(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::BundleFile;

    #[test]
    fn bundles_that_are_cut_off_or_foreign_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("b.json");
        let whole = r#"{"pilotage_bundle": 1, "version": "0.1.0", "server": "s", "pages": {"/api/v1/proxies": "[]"}}"#;
        for (text, expected) in
            [(&whole[..60], "cut off"), ("", "cut off"), (&whole.replace("le\": 1", "le\": 7"), "it has format 7")]
        {
            fs::write(&file, text).unwrap();
            let error = BundleFile::read(&file).err().map(|error| format!("{error:#}")).unwrap();
            assert!(error.contains(expected) && error.contains("b.json"), "{error}");
        }
        fs::write(&file, whole).unwrap();
        let read = || BundleFile::read(&file).unwrap();
        assert_eq!(read().page("/api/v1/proxies?name=a").unwrap(), "[]");
        for (page, expected) in [
            ("/debug/config_dump?proxyID=a", "take one with --proxy NAME"),
            ("/api/v1/proxies/a.shop", "no page /api/v1/proxies/a.shop; take one with --proxy a.shop"),
            ("/api/v1/history/objects?at=3", "no page /api/v1/history/objects; only a running server"),
        ] {
            let error = read().page(page).unwrap_err().to_string();
            assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
        }
    }
}
