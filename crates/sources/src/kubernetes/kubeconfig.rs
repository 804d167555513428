//! Kubeconfigs of remote clusters, from Secrets, ConfigMaps and files. Their authors are not the operator of this
//! process: an entry that runs a command, reads a local file or skips the check of the server certificate is rejected
//! unless the operator allows it. The kubeconfig of `--kubeconfig` belongs to the operator and is not checked.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError};
use model::config::read_yaml;
use model::problem::{Problem, Subject};
use model::settings::NameList;

/// Upstream's setting that allows insecure options, a comma-separated list. Upstream accepts the names of auth providers,
/// `exec`, `tokenFile`, `clientCertificate` and `clientKey`. `certificateAuthority` and `insecureSkipTLSVerify`, which
/// upstream never rejects, are ours.
const SETTING: &str = "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS";
/// The size limit of a Secret in Kubernetes. Parsing YAML may take much more memory than its size.
const MAX_BYTES: usize = 1 << 20;
/// The auth provider that runs no command and reads no file: its token is in the kubeconfig.
const HARMLESS_PROVIDER: &str = "oidc";

/// Why a kubeconfig is not used. The messages contain nothing of its text, which holds credentials.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigRejection {
    #[error("it is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("it is not text")]
    NotText,
    #[error("it is no kubeconfig{}", .0.map(|(line, column)| format!(" (line {line}, column {column})")).unwrap_or_default())]
    Malformed(Option<(u64, u64)>),
    #[error("{0}")]
    Invalid(String),
    /// Fields, and the options that allow them.
    #[error(
        "{} refused: it could run commands, read local files or reach an unverified server; {SETTING}={} allows it",
        .fields.join(", "),
        .options.join(","),
    )]
    Insecure { fields: Vec<String>, options: Vec<String> },
}

/// A kubeconfig of a remote cluster, not checked yet.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct KubeconfigEntry {
    /// The Secret and its key, or the file.
    pub(super) found_at: String,
    /// In base64, as in a Secret.
    pub(super) encoded: String,
}

impl KubeconfigEntry {
    /// The decoded text.
    pub(super) fn text(&self) -> Result<String, KubeconfigRejection> {
        if self.encoded.len() / 4 * 3 > MAX_BYTES {
            return Err(KubeconfigRejection::TooLarge);
        }
        match BASE64_STANDARD.decode(&self.encoded).map(String::from_utf8) {
            Ok(Ok(text)) => Ok(text),
            _ => Err(KubeconfigRejection::NotText),
        }
    }

    pub(super) fn problem(&self, cluster: &str, reason: &str) -> Problem {
        let message = format!("could not use the kubeconfig of cluster {cluster}: {reason}");
        Problem::error(Subject::Source(self.found_at.as_str().into()), message)
    }
}

/// A kubeconfig that was checked. Clients of remote clusters are made from this type only.
#[derive(Clone)]
pub(super) struct CheckedKubeconfig {
    text: String,
    parsed: Kubeconfig,
}

impl CheckedKubeconfig {
    /// Parses and checks a kubeconfig.
    pub(super) fn read(text: String, allowed: &NameList) -> Result<CheckedKubeconfig, KubeconfigRejection> {
        check_limits(&text)?;
        let parsed = Kubeconfig::from_yaml(&text).map_err(|error| malformed(&error))?;
        let mut refused = insecure_fields(&parsed);
        refused.retain(|(_, option)| !allowed.contains(option));
        if refused.is_empty() {
            return Ok(CheckedKubeconfig { text, parsed });
        }
        let (fields, mut options): (Vec<String>, Vec<String>) = refused.into_iter().unzip();
        options.sort_unstable();
        options.dedup();
        Err(KubeconfigRejection::Insecure { fields, options })
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text
    }

    pub(super) fn kubeconfig(&self) -> Kubeconfig {
        self.parsed.clone()
    }
}

/// Parses and checks the kubeconfig of a remote cluster.
pub fn check(text: String, allowed: &NameList) -> Result<(), KubeconfigRejection> {
    CheckedKubeconfig::read(text, allowed).map(drop)
}

impl fmt::Debug for CheckedKubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckedKubeconfig(..)")
    }
}

/// Parses all documents with the limits of configuration: a short text of aliases that repeat aliases would keep the
/// parser busy for a minute.
fn check_limits(text: &str) -> Result<(), KubeconfigRejection> {
    let mut lines_before = 0;
    for document in text.split("\n---") {
        if let Err(error) = read_yaml(document) {
            let at = error.location().map(|at| (at.line() + lines_before, at.column()));
            return Err(KubeconfigRejection::Malformed(at));
        }
        lines_before += document.lines().count() as u64;
    }
    Ok(())
}

/// The position of a parse error; its message may quote credentials.
fn malformed(error: &KubeconfigError) -> KubeconfigRejection {
    match error {
        KubeconfigError::Parse(error) => {
            KubeconfigRejection::Malformed(error.location().map(|at| (at.line(), at.column())))
        }
        other => KubeconfigRejection::Invalid(other.to_string()),
    }
}

/// Insecure fields, each with the option that allows it. Like upstream, all users and clusters are checked, not only
/// those of the current context.
fn insecure_fields(kubeconfig: &Kubeconfig) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    for (at, named) in kubeconfig.auth_infos.iter().enumerate() {
        let found = named.auth_info.iter().flat_map(insecure_user_fields);
        fields.extend(found.map(|(field, option)| (format!("users[{at}].user.{field}"), option)));
    }
    for (at, named) in kubeconfig.clusters.iter().enumerate() {
        let found = named.cluster.iter().flat_map(insecure_cluster_fields);
        fields.extend(found.map(|(field, option)| (format!("clusters[{at}].cluster.{field}"), option.to_owned())));
    }
    fields
}

/// Names every field, so that a field added by the kube crate does not compile until it is classified here.
fn insecure_user_fields(user: &AuthInfo) -> Vec<(&'static str, String)> {
    let AuthInfo {
        exec,
        auth_provider,
        token_file,
        client_certificate,
        client_key,
        // The author's credentials, sent to the author's server.
        username: _,
        password: _,
        token: _,
        client_certificate_data: _,
        client_key_data: _,
        impersonate: _,
        impersonate_uid: _,
        impersonate_groups: _,
        impersonate_user_extra: _,
        // Not read.
        extensions: _,
        other: _,
    } = user;
    let mut found = Vec::new();
    if exec.is_some() {
        found.push(("exec", "exec".to_owned()));
    }
    if let Some(provider) = auth_provider.as_ref().filter(|provider| provider.name != HARMLESS_PROVIDER) {
        found.push(("auth-provider", provider.name.chars().take(64).collect()));
    }
    if is_given(token_file.as_ref()) {
        found.push(("tokenFile", "tokenFile".to_owned()));
    }
    if is_given(client_certificate.as_ref()) {
        found.push(("client-certificate", "clientCertificate".to_owned()));
    }
    if is_given(client_key.as_ref()) {
        found.push(("client-key", "clientKey".to_owned()));
    }
    found
}

/// Names every field, as for users.
fn insecure_cluster_fields(cluster: &Cluster) -> Vec<(&'static str, &'static str)> {
    let Cluster {
        insecure_skip_tls_verify,
        certificate_authority,
        // Any server is allowed. A proxy cannot be used: the kube crate is built without proxy support.
        server: _,
        proxy_url: _,
        certificate_authority_data: _,
        disable_compression: _,
        tls_server_name: _,
        // Not read.
        extensions: _,
        other: _,
    } = cluster;
    let mut found = Vec::new();
    if *insecure_skip_tls_verify == Some(true) {
        found.push(("insecure-skip-tls-verify", "insecureSkipTLSVerify"));
    }
    if is_given(certificate_authority.as_ref()) {
        found.push(("certificate-authority", "certificateAuthority"));
    }
    found
}

fn is_given(path: Option<&String>) -> bool {
    path.is_some_and(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use model::settings::NameList;
    use serde_json::{Value, json};

    use super::{CheckedKubeconfig, KubeconfigEntry, KubeconfigRejection, MAX_BYTES};

    fn text(user: &Value, cluster: &Value) -> String {
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}, {"name": "b", "cluster": cluster}],
            "users": [{"name": "a", "user": {"token": "secret"}}, {"name": "b", "user": user}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]})
        .to_string()
    }

    fn check(user: &Value, cluster: &Value, allowed: &str) -> Result<(), KubeconfigRejection> {
        CheckedKubeconfig::read(text(user, cluster), &NameList::of(allowed)).map(drop)
    }

    #[test]
    fn hole_01_insecure_fields_are_refused_and_named_with_their_option() {
        let none = json!({});
        let users = [
            (json!({"exec": {"command": "id"}}), "users[1].user.exec", "exec"),
            (json!({"auth-provider": {"name": "gcp", "config": {}}}), "users[1].user.auth-provider", "gcp"),
            (json!({"tokenFile": "/token"}), "users[1].user.tokenFile", "tokenFile"),
            (json!({"client-certificate": "/c"}), "users[1].user.client-certificate", "clientCertificate"),
            (json!({"client-key": "/k"}), "users[1].user.client-key", "clientKey"),
        ];
        let clusters = [
            (json!({"certificate-authority": "/ca"}), "certificate-authority", "certificateAuthority"),
            (json!({"insecure-skip-tls-verify": true}), "insecure-skip-tls-verify", "insecureSkipTLSVerify"),
        ];
        let users = users.iter().map(|(user, field, option)| (user, &none, field.to_string(), option));
        let clusters = clusters
            .iter()
            .map(|(cluster, field, option)| (&none, cluster, format!("clusters[1].cluster.{field}"), option));
        for (user, cluster, field, option) in users.chain(clusters) {
            let reason = check(user, cluster, "").unwrap_err().to_string();
            assert!(reason.starts_with(&field), "{reason}");
            let setting = format!("PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS={option} allows");
            assert!(reason.contains(&setting), "{reason}");
            assert_eq!(check(user, cluster, &format!("other, {option}")), Ok(()), "{field}");
            assert!(check(user, cluster, "other").is_err(), "{field}");
        }
    }

    #[test]
    fn hole_01_output_of_create_remote_secret_is_accepted() {
        let oidc = json!({"auth-provider": {"name": "oidc", "config": {"id-token": "a"}}});
        let inline = json!({"token": "a", "as": "b", "client-certificate-data": "YQ==", "client-key-data": "YQ=="});
        for user in [oidc, inline] {
            let cluster = json!({"certificate-authority-data": "YQ==", "insecure-skip-tls-verify": false});
            assert_eq!(check(&user, &cluster, ""), Ok(()), "{user}");
        }
    }

    #[test]
    fn hole_01_all_documents_of_a_file_are_checked() {
        let hidden = format!("{}\n---\n{}", text(&json!({}), &json!({})), "users: [{name: c, user: {exec: {}}}]");
        let reason = CheckedKubeconfig::read(hidden, &NameList::default()).unwrap_err().to_string();
        assert!(reason.starts_with("users[2].user.exec"), "{reason}");
    }

    #[test]
    fn hole_01_messages_contain_no_credential() {
        for broken in ["users: [{name: a, user: {token: {s3cret: s3cret}}}]", "token: s3cret\nusers: s3cret", "s3cret"]
        {
            let reason = CheckedKubeconfig::read(broken.to_owned(), &NameList::default()).unwrap_err().to_string();
            assert!(!reason.contains("s3cret"), "{reason}");
        }
    }

    #[test]
    fn hole_01_a_kubeconfig_is_no_larger_than_a_secret() {
        let of = |length: usize| KubeconfigEntry {
            found_at: String::new(),
            encoded: BASE64_STANDARD.encode("#".repeat(length)),
        };
        assert!(of(MAX_BYTES - 3).text().is_ok());
        assert!(of(MAX_BYTES + 3).text().is_err());
    }

    /// Found by fuzzing: nine levels of nine aliases each took more than a minute.
    #[test]
    fn a_kubeconfig_of_aliases_is_refused_at_once() {
        let level = |name: u8| {
            let (name, before) = (char::from(name), char::from(name - 1));
            format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 9].join(","))
        };
        let bomb = format!("a: &a [x,x,x,x,x,x,x,x,x]\n{}", (b'b'..=b'j').map(level).collect::<String>());
        for text in [bomb.clone(), format!("apiVersion: v1\n---\n{bomb}")] {
            let reason = CheckedKubeconfig::read(text, &NameList::default()).unwrap_err();
            assert!(matches!(reason, KubeconfigRejection::Malformed(_)), "{reason}");
        }
    }
}
