//! Identities of the shop's workloads: tokens of the demo's issuer, with which agents obtain certificates from the
//! control plane.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::json;
use trust::key::{KeyKind, PrivateKey};
use trust::token;

use super::shop::DemoWorkload;

const ISSUER: &str = "https://shop.example";
const AUDIENCE: &str = "istio-ca";
const KEY_ID: &str = "demo";
/// Lifetime of tokens; the demo ends before.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// Issues tokens for workloads. Its key lives as long as the demo.
pub(super) struct TokenIssuer {
    key: PrivateKey,
    keys: PathBuf,
}

impl TokenIssuer {
    /// Writes the key set that verifies the tokens.
    pub(super) fn new(folder: &Path) -> Result<TokenIssuer> {
        let key = PrivateKey::generate(KeyKind::P256).context("could not make a key for tokens")?;
        let keys = folder.join("token-keys.json");
        fs::write(&keys, token::key_set(&key, KEY_ID)?)
            .with_context(|| format!("could not write {}", keys.display()))?;
        Ok(TokenIssuer { key, keys })
    }

    /// `JWT_RULE` of the control plane.
    pub(super) fn rule(&self) -> String {
        let keys = format!("file://{}", self.keys.display());
        json!({"issuer": ISSUER, "audiences": [AUDIENCE], "jwks_uri": keys}).to_string()
    }

    /// Writes a workload's token and the root of the mesh where its agent looks for them, below `folder`.
    pub(super) fn prepare(&self, workload: &DemoWorkload, folder: &Path, root: &str) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let claims = json!({"iss": ISSUER, "aud": [AUDIENCE], "exp": (now + LIFETIME).as_secs(),
            "sub": format!("system:serviceaccount:shop:{}", workload.app)});
        let token = token::sign(&self.key, KEY_ID, &claims).context("could not sign a token")?;
        put(&folder.join("var/run/secrets/tokens/istio-token"), &token, 0o600)?;
        put(&folder.join("var/run/secrets/istio/root-cert.pem"), root, 0o644)
    }
}

fn put(path: &Path, text: &str, mode: u32) -> Result<()> {
    let write = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    write().with_context(|| format!("could not write {}", path.display()))
}
