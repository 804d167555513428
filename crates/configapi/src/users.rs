//! Callers and what they may do. `read` allows everything but Secrets, `write` everything, both in named namespaces or in
//! all. Objects without a namespace are readable with any role and writable with `write` in all namespaces.

use std::sync::Arc;

use parking_lot::RwLock;
use serde::Deserialize;

/// Members of this group may do everything, as in upstream.
pub const ADMINISTRATORS: &str = "system:masters";
/// All namespaces, in a role.
const ALL: &str = "*";

/// An authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub user: String,
    pub groups: Vec<String>,
}

impl Caller {
    /// A caller who may do everything, such as on a Unix socket.
    pub fn administrator(user: &str) -> Caller {
        Caller { user: user.to_owned(), groups: vec![ADMINISTRATORS.to_owned()] }
    }

    fn is_administrator(&self) -> bool {
        self.groups.iter().any(|group| group == ADMINISTRATORS)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Read,
    Write,
}

/// A role of a user or of a group.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleEntry {
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub group: Option<String>,
    pub role: Role,
    /// Names of namespaces, or `*`.
    pub namespaces: Vec<String>,
}

impl RoleEntry {
    fn is_of(&self, caller: &Caller) -> bool {
        self.user.as_ref().is_some_and(|user| *user == caller.user)
            || self.group.as_ref().is_some_and(|group| caller.groups.contains(group))
    }

    fn covers(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|known| known == ALL || (!namespace.is_empty() && known == namespace))
    }
}

/// The file of roles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RolesFile {
    roles: Vec<RoleEntry>,
}

/// All roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles(Vec<RoleEntry>);

/// Why a file of roles or tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    #[error("could not parse the roles: {0}")]
    Roles(String),
    #[error("could not parse the tokens: line {0} needs a token and a user, separated by a comma")]
    Tokens(usize),
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRequest<'a> {
    pub role: Role,
    /// Empty for objects without a namespace and for lists of all namespaces.
    pub namespace: &'a str,
    pub is_namespaced: bool,
    pub is_secret: bool,
}

impl Roles {
    /// Parses YAML: `roles:` with entries of `user` or `group`, `role` and `namespaces`.
    pub fn parse(text: &str) -> Result<Roles, UsersError> {
        let file: RolesFile = serde_saphyr::from_str(text).map_err(|error| UsersError::Roles(error.to_string()))?;
        if file.roles.iter().any(|entry| entry.user.is_none() == entry.group.is_none()) {
            return Err(UsersError::Roles("each role needs either a user or a group".to_owned()));
        }
        Ok(Roles(file.roles))
    }

    /// Whether a caller may do this.
    pub fn allow(&self, caller: &Caller, request: AccessRequest<'_>) -> bool {
        if caller.is_administrator() {
            return true;
        }
        let mut own = self.0.iter().filter(|entry| entry.is_of(caller));
        let needs_write = request.role == Role::Write || request.is_secret;
        match (needs_write, request.is_namespaced) {
            (true, _) => own.any(|entry| entry.role == Role::Write && entry.covers(request.namespace)),
            (false, true) => own.any(|entry| entry.covers(request.namespace)),
            (false, false) => own.next().is_some(),
        }
    }

    /// Whether a caller has any role.
    pub fn knows(&self, caller: &Caller) -> bool {
        caller.is_administrator() || self.0.iter().any(|entry| entry.is_of(caller))
    }
}

/// Static tokens.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tokens(Vec<(String, Caller)>);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

impl Tokens {
    /// Parses the format of kube-apiserver's token file: `token,user,uid,"group1,group2"`.
    pub fn parse(text: &str) -> Result<Tokens, UsersError> {
        let mut tokens = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut parts = line.splitn(4, ',').map(str::trim);
            let (token, user) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            if token.is_empty() || user.is_empty() {
                return Err(UsersError::Tokens(number + 1));
            }
            let groups = parts.nth(1).unwrap_or_default().trim_matches('"').split(',').map(str::trim);
            let groups = groups.filter(|group| !group.is_empty()).map(str::to_owned).collect();
            tokens.push((token.to_owned(), Caller { user: user.to_owned(), groups }));
        }
        Ok(Tokens(tokens))
    }

    /// The caller of a token. The time does not depend on how much of a token is right.
    pub fn caller(&self, token: &str) -> Option<&Caller> {
        let mut found = None;
        for (known, caller) in &self.0 {
            let (a, b) = (known.as_bytes(), token.as_bytes());
            let difference = a.iter().zip(b).fold(a.len() ^ b.len(), |sum, (a, b)| sum | usize::from(a ^ b));
            if difference == 0 {
                found = Some(caller);
            }
        }
        found
    }
}

/// The tokens and roles of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserRules {
    pub tokens: Tokens,
    pub roles: Roles,
}

/// Tokens and roles, which may be replaced while requests are answered.
#[derive(Debug, Default)]
pub struct Users(RwLock<Arc<UserRules>>);

impl Users {
    pub fn new(rules: UserRules) -> Users {
        Users(RwLock::new(Arc::new(rules)))
    }

    pub fn current(&self) -> Arc<UserRules> {
        self.0.read().clone()
    }

    /// Requests that come from now on are checked by these rules.
    pub fn replace(&self, rules: UserRules) {
        *self.0.write() = Arc::new(rules);
    }
}

#[cfg(test)]
mod tests {
    use super::{AccessRequest, Caller, Role, Roles, Tokens};

    const ROLES: &str = "
roles:
- {user: alice, role: write, namespaces: [shop]}
- {group: viewers, role: read, namespaces: ['*']}
";

    fn request(role: Role, namespace: &str) -> AccessRequest<'_> {
        AccessRequest { role, namespace, is_namespaced: true, is_secret: false }
    }

    #[test]
    fn roles_are_limited_to_their_namespaces() {
        let roles = Roles::parse(ROLES).unwrap();
        let alice = Caller { user: "alice".to_owned(), groups: Vec::new() };
        assert!(roles.allow(&alice, request(Role::Write, "shop")));
        assert!(roles.allow(&alice, AccessRequest { is_secret: true, ..request(Role::Read, "shop") }));
        assert!(!roles.allow(&alice, request(Role::Write, "other")));
        assert!(!roles.allow(&alice, request(Role::Read, "")), "a list of all namespaces");
        assert!(roles.allow(&alice, AccessRequest { is_namespaced: false, ..request(Role::Read, "") }));
        assert!(!roles.allow(&alice, AccessRequest { is_namespaced: false, ..request(Role::Write, "") }));
    }

    #[test]
    fn readers_do_not_see_secrets() {
        let roles = Roles::parse(ROLES).unwrap();
        let viewer = Caller { user: "bob".to_owned(), groups: vec!["viewers".to_owned()] };
        assert!(roles.allow(&viewer, request(Role::Read, "")));
        assert!(!roles.allow(&viewer, AccessRequest { is_secret: true, ..request(Role::Read, "shop") }));
        assert!(!roles.allow(&viewer, request(Role::Write, "shop")));
        let stranger = Caller { user: "eve".to_owned(), groups: Vec::new() };
        assert!(!roles.knows(&stranger) && !roles.allow(&stranger, request(Role::Read, "shop")));
        assert!(Roles::default().allow(&Caller::administrator("root"), request(Role::Write, "")));
    }

    #[test]
    fn tokens_are_read_as_kube_apiserver_reads_them() {
        let tokens = Tokens::parse("# comment\nabc,alice,1,\"a,b\"\nxyz,bob\n").unwrap();
        let alice = tokens.caller("abc").unwrap();
        assert_eq!(
            (alice.user.as_str(), alice.groups.as_slice()),
            ("alice", ["a".to_owned(), "b".to_owned()].as_slice())
        );
        assert!(tokens.caller("xyz").is_some() && tokens.caller("ab").is_none() && tokens.caller("").is_none());
        assert!(Tokens::parse("abc").is_err());
        assert_eq!(format!("{tokens:?}"), "2 tokens");
    }

    #[test]
    fn a_role_without_a_subject_is_an_error() {
        assert!(Roles::parse("roles: [{role: read, namespaces: ['*']}]").is_err());
        assert!(Roles::parse("roles: [{user: a, role: admin, namespaces: []}]").is_err());
    }
}
