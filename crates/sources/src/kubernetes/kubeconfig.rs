//! Kubeconfigs of further clusters, as Secrets, ConfigMaps and files give them. Their authors are not the operator of
//! this process: an entry that runs a command, reads a local file or skips the check of the server certificate is
//! refused unless the operator allows it. The kubeconfig of `--kubeconfig` is the operator's own and is not checked.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError};
use model::problem::{Problem, Subject};
use model::settings::NameList;

/// Upstream's setting that allows what is refused here, a list parted by commas. Upstream knows the names of
/// auth-providers, `exec`, `tokenFile`, `clientCertificate` and `clientKey`; `certificateAuthority` and
/// `insecureSkipTLSVerify`, which upstream does not refuse, are ours.
const SETTING: &str = "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS";
/// Kubernetes allows no larger Secret, and a YAML document may cost much more than its size.
const MAX_BYTES: usize = 1 << 20;
/// The provider that needs no command and no file: its token is written in the kubeconfig.
const HARMLESS_PROVIDER: &str = "oidc";

/// A kubeconfig of a further cluster as it was found, unchecked.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct KubeconfigEntry {
    /// Where it was found: a Secret with its key, or a file.
    pub(super) found_at: String,
    /// In base64, as Secrets hold it.
    pub(super) encoded: String,
}

impl KubeconfigEntry {
    /// The text.
    pub(super) fn text(&self) -> Result<String, String> {
        if self.encoded.len() / 4 * 3 > MAX_BYTES {
            return Err(format!("it is larger than {MAX_BYTES} bytes"));
        }
        match BASE64_STANDARD.decode(&self.encoded).map(String::from_utf8) {
            Ok(Ok(text)) => Ok(text),
            _ => Err("it is not text".to_owned()),
        }
    }

    pub(super) fn problem(&self, cluster: &str, reason: &str) -> Problem {
        let message = format!("could not use the kubeconfig of cluster {cluster}: {reason}");
        Problem::error(Subject::Source(self.found_at.as_str().into()), message)
    }
}

/// A kubeconfig that was checked. Clients of further clusters are made of nothing else.
#[derive(Clone)]
pub(super) struct CheckedKubeconfig {
    text: String,
    parsed: Kubeconfig,
}

impl CheckedKubeconfig {
    /// Reads and checks a kubeconfig. The error says what was refused and which setting allows it; it repeats nothing
    /// of the text, which holds credentials.
    pub(super) fn read(text: String, allowed: &NameList) -> Result<CheckedKubeconfig, String> {
        let parsed = Kubeconfig::from_yaml(&text).map_err(|error| unreadable(&error))?;
        let mut refused = insecure_fields(&parsed);
        refused.retain(|(_, option)| !allowed.contains(option));
        if refused.is_empty() {
            return Ok(CheckedKubeconfig { text, parsed });
        }
        let fields: Vec<&str> = refused.iter().map(|(field, _)| field.as_str()).collect();
        let mut options: Vec<&str> = refused.iter().map(|(_, option)| option.as_str()).collect();
        options.sort_unstable();
        options.dedup();
        Err(format!(
            "{} refused, as it could run commands, read local files or reach a server unchecked; {SETTING}={} allows it",
            fields.join(", "),
            options.join(","),
        ))
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text
    }

    pub(super) fn kubeconfig(&self) -> Kubeconfig {
        self.parsed.clone()
    }
}

impl fmt::Debug for CheckedKubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckedKubeconfig(..)")
    }
}

/// Where parsing failed, and nothing of what is written there.
fn unreadable(error: &KubeconfigError) -> String {
    let KubeconfigError::Parse(error) = error else { return error.to_string() };
    match error.location() {
        Some(at) => format!("it is no kubeconfig (line {}, column {})", at.line(), at.column()),
        None => "it is no kubeconfig".to_owned(),
    }
}

/// Fields that are not trusted, each with the option that allows it. All users and clusters are looked at and not
/// those of the current context alone, as upstream does.
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

/// Every field is named: a new one of the library must be judged here before this compiles.
fn insecure_user_fields(user: &AuthInfo) -> Vec<(&'static str, String)> {
    let AuthInfo {
        exec,
        auth_provider,
        token_file,
        client_certificate,
        client_key,
        // Credentials of the author, sent to the author's server.
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

/// As for users, every field is named.
fn insecure_cluster_fields(cluster: &Cluster) -> Vec<(&'static str, &'static str)> {
    let Cluster {
        insecure_skip_tls_verify,
        certificate_authority,
        // Any server may be named, and a proxy cannot be used: the library is built without them.
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

    use super::{CheckedKubeconfig, KubeconfigEntry, MAX_BYTES};

    fn text(user: &Value, cluster: &Value) -> String {
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}, {"name": "b", "cluster": cluster}],
            "users": [{"name": "a", "user": {"token": "secret"}}, {"name": "b", "user": user}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]})
        .to_string()
    }

    fn check(user: &Value, cluster: &Value, allowed: &str) -> Result<(), String> {
        CheckedKubeconfig::read(text(user, cluster), &NameList::of(allowed)).map(drop)
    }

    #[test]
    fn hole_01_what_runs_or_reads_is_refused_and_named_with_its_setting() {
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
            let reason = check(user, cluster, "").unwrap_err();
            assert!(reason.starts_with(&field), "{reason}");
            let setting = format!("PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS={option} allows");
            assert!(reason.contains(&setting), "{reason}");
            assert_eq!(check(user, cluster, &format!("other, {option}")), Ok(()), "{field}");
            assert!(check(user, cluster, "other").is_err(), "{field}");
        }
    }

    #[test]
    fn hole_01_what_create_remote_secret_writes_is_accepted() {
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
        let reason = CheckedKubeconfig::read(hidden, &NameList::default()).unwrap_err();
        assert!(reason.starts_with("users[2].user.exec"), "{reason}");
    }

    #[test]
    fn hole_01_reasons_repeat_no_credential() {
        for broken in ["users: [{name: a, user: {token: {s3cret: s3cret}}}]", "token: s3cret\nusers: s3cret", "s3cret"]
        {
            let reason = CheckedKubeconfig::read(broken.to_owned(), &NameList::default()).unwrap_err();
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
}
