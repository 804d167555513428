//! The stable code of every problem, with its page: what happened, what is served meanwhile, what to do. `pilotctl help
//! CODE` and `docs/reference/codes.md` show these texts. Codes that begin with `IST` are those of `istioctl analyze`.

use std::fmt;

/// The page of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodePage {
    pub code: &'static str,
    pub title: &'static str,
    /// What happened, and what is served meanwhile.
    pub meaning: &'static str,
    pub remedy: &'static str,
}

macro_rules! codes {
    ($($name:ident, $code:literal, $title:literal, $meaning:literal, $remedy:literal;)*) => {
        /// A stable name of a problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ProblemCode {
            $($name,)*
        }

        impl ProblemCode {
            /// All codes, in the order of the table.
            pub const ALL: &'static [ProblemCode] = &[$(ProblemCode::$name,)*];

            pub fn page(self) -> CodePage {
                match self {
                    $(ProblemCode::$name => CodePage { code: $code, title: $title, meaning: $meaning, remedy: $remedy },)*
                }
            }
        }
    };
}

codes! {
    Deprecated, "IST0002", "Deprecated kind",
        "The kind belongs to an old version of Istio. It is converted and works.",
        "Replace it with the documents that the message prints.";
    MissingReference, "IST0101", "Reference to something that does not exist",
        "A rule names a host, port, subset or gateway that is not defined where the rule can see it. Requests that follow it fail with 503 (NC, UH) or 404 (NR). Other rules are not affected.",
        "Correct the name, or define the missing object. A short host name is completed with the namespace of the rule.";
    NotInjected, "IST0102", "Namespace without injection",
        "Pods of the namespace get no sidecar.",
        "Label the namespace `istio-injection=enabled`, or `disabled` if that is meant.";
    MissingProxy, "IST0103", "Pod without a sidecar",
        "The namespace is injected, but the pod has no sidecar: it was created before, it refuses by an annotation, or it uses the node's network.",
        "Create the pod again, for example with `kubectl rollout restart`.";
    SchemaError, "IST0106", "Invalid object",
        "The object violates a rule of its kind and is not used. If it was valid before, its last good version is served.",
        "Correct the field that the message names.";
    SameMeshHost, "IST0109", "Two VirtualServices for one host",
        "Several VirtualServices of the mesh gateway have the same host. Only the oldest is used, the others have no effect.",
        "Join them in one VirtualService, or give them different hosts.";
    SidecarsOfWorkload, "IST0110", "Two Sidecars for one workload",
        "Several Sidecars select the same workload. The oldest is used.",
        "Make their selectors disjoint.";
    SidecarsOfNamespace, "IST0111", "Two Sidecars for one namespace",
        "Several Sidecars without a selector are in one namespace. The oldest is used.",
        "Delete all but one, or give them selectors.";
    PortNeeded, "IST0112", "Destination without a port",
        "The destination has several ports and the route does not name one. The route has no effect.",
        "Add `port: {number: N}` to the destination.";
    SharedPort, "IST0116", "One port with several transports",
        "Services that select the same workload have the same port for TCP and for UDP. The proxy serves only one of them.",
        "Give the ports different numbers.";
    PortName, "IST0118", "Port name without a protocol",
        "The name of the port does not begin with a protocol, so the proxy detects HTTP by itself. Server-first protocols wait for that.",
        "Name the port as in `http-web` or `tcp-db`, or set its appProtocol.";
    InjectionLabels, "IST0123", "Namespace with two injection labels",
        "Several labels of the namespace say how its pods are injected. Which one applies depends on the order of webhooks.",
        "Keep one of them.";
    UnknownRegistry, "IST0126", "Network of an unknown registry",
        "MeshNetworks names a cluster or registry that does not exist. No endpoint belongs to the network by that name.",
        "Correct `fromRegistry`: it is the id of a cluster.";
    NoWorkload, "IST0127", "Policy without a workload",
        "No workload has the labels of the policy, so it applies to none. Workloads that it should protect are not protected.",
        "Correct the labels or the namespace of the policy.";
    UnverifiedServer, "IST0128", "Server certificate is not verified",
        "TLS is used without caCertificates, so any certificate is accepted.",
        "Set caCertificates or credentialName.";
    UnverifiedServerPort, "IST0129", "Server certificate of a port is not verified",
        "TLS of this port is used without caCertificates, so any certificate is accepted.",
        "Set caCertificates or credentialName.";
    UnreachableRule, "IST0130", "Rule of a VirtualService that is never used",
        "Requests that the rule matches are taken by an earlier one.",
        "Move the rule before the one that takes its requests, narrow that one, or remove the rule.";
    IneffectiveMatch, "IST0131", "Match of a VirtualService that is never used",
        "Requests of the match are taken by an earlier match that the message names. The other matches of the rule are used.",
        "Remove the match, or move its rule before the other one.";
    GatewayWithoutHost, "IST0132", "Host that the gateway does not have",
        "No server of the gateway has one of the VirtualService's hosts. The VirtualService has no effect there.",
        "Add the host to a server of the Gateway, or correct it in the VirtualService.";
    SchemaWarning, "IST0133", "Part of an object has no effect",
        "The object is used, but the part that the message names has no effect.",
        "Correct or remove that part.";
    AddressNeeded, "IST0134", "TCP port without an address",
        "Connections to a TCP port can only be distinguished by address. Without one the port takes all connections to its number.",
        "Add `addresses`, or set PILOT_ENABLE_IP_AUTOALLOCATE=true.";
    SharedTargetPort, "IST0137", "Target port of several ports",
        "Services that select the same workload have different ports for one target port. The oldest decides how the workload's proxy treats it.",
        "Use the same port in all of them, or different target ports.";
    SharedCertificate, "IST0138", "Gateways that share a certificate",
        "Clients reuse an HTTP/2 connection for every host of the certificate, and the other gateway answers 404.",
        "Join the gateways, or give each host its own certificate.";
    GatewayConflict, "IST0145", "Two gateways for one port and host",
        "Gateways with the same selector have the same port and hosts. Only the oldest serves them.",
        "Join them, or give them different hosts or ports.";
    UncheckedClaim, "IST0149", "Route by a claim that is not checked",
        "The gateway checks no tokens, so requests have no claims and the route never matches.",
        "Add a RequestAuthentication for the gateway's workloads.";
    ExternalNamePort, "IST0150", "Port name of an ExternalName Service",
        "The port is treated as TCP, which may take traffic of other services with that port number.",
        "Name the port after its protocol, such as `http` or `tls`.";
    RelativePatch, "IST0151", "Relative patch without a priority",
        "The patch depends on what other EnvoyFilters did before, and their order is not defined.",
        "Set the priority, or use INSERT_FIRST or ADD.";
    ReplacePatch, "IST0152", "REPLACE that is not supported here",
        "REPLACE is defined for HTTP_FILTER and NETWORK_FILTER only. The patch has no effect.",
        "Use MERGE, or REMOVE and ADD.";
    AddPatch, "IST0153", "ADD that is ignored",
        "ADD has no effect on ROUTE_CONFIGURATION and HTTP_ROUTE.",
        "Use MERGE or another applyTo.";
    RemovePatch, "IST0154", "REMOVE that is ignored",
        "REMOVE has no effect on ROUTE_CONFIGURATION and HTTP_ROUTE.",
        "Use another applyTo.";
    NoProvider, "IST0157", "Access log without a provider",
        "The Telemetry names no provider and the mesh has no default one, so nothing is logged.",
        "Name a provider, or set `defaultProviders.accessLogging` in the mesh config.";
    TelemetriesOfWorkload, "IST0159", "Two Telemetries for one workload",
        "Several Telemetries select the same workload. The oldest is used.",
        "Make their selectors disjoint.";
    TelemetriesOfNamespace, "IST0160", "Two Telemetries for one namespace",
        "Several Telemetries without a selector are in one namespace. The oldest is used.",
        "Delete all but one, or give them selectors.";
    InvalidCredential, "IST0161", "Secret that is not usable",
        "The Secret of a gateway has no valid certificate and key. The port does not accept connections.",
        "Correct the Secret: it needs `tls.crt` and `tls.key`.";
    GatewayPort, "IST0162", "Gateway port that no Service has",
        "The gateway listens on the port, but no Service leads there, so it cannot be reached through the Service.",
        "Add the port to the Service, or correct it in the Gateway.";
    SubsetWithoutWorkload, "IST0173", "Subset without workloads",
        "No workload of the service has the labels of the subset. Requests to the subset fail with 503 (UH).",
        "Correct the labels, or deploy the workload.";
    RuleWithoutService, "IST0174", "DestinationRule for a missing host",
        "No service has the host of the rule. The rule has no effect.",
        "Correct the host. A short name is completed with the namespace of the rule.";
    ConflictingProtocols, "IST0177", "One port with several protocols",
        "ServiceEntries with the same host and port disagree on its protocol. The oldest decides.",
        "Use the same protocol in all of them.";
    ForeignHost, "PIL0001", "VirtualService for a host of another namespace",
        "The VirtualService takes calls to a host of another namespace from clients everywhere.",
        "Set its exportTo to `.`, or let a VirtualService of the owner delegate to it.";
    PathSpelling, "PIL0002", "Denied path that another spelling bypasses",
        "Envoy compares paths as they are written, and servers may take several spellings for the same path.",
        "Set meshConfig.pathNormalization to DECODE_AND_MERGE_SLASHES.";
    HostSpelling, "PIL0003", "Denied host that another spelling bypasses",
        "Envoy compares hosts as they are written: with case, port and final dot.",
        "Add the host with `:*`, or set PILOTAGE_STRICT_AUTHORIZATION=true.";
    PolicyPort, "PIL0004", "Policy about a port that the gateway does not listen on",
        "The port of a rule is compared with that of the gateway's listener, which is the target port of its service. No listener has this port, so the rule never matches: a rule that denies has no effect.",
        "Use the target port, such as 8443 for a service with `port: 443, targetPort: 8443`.";
    PlainTextIdentity, "PIL0005", "Denied identity that plain text does not have",
        "The policy denies callers by identity, and its workloads accept plain text, whose callers have no identity: the rule does not match them.",
        "Set mutual TLS to STRICT with a PeerAuthentication, or name the permitted callers in an ALLOW policy.";
    UnusedAccount, "PIL0006", "Principal without a workload",
        "No workload of the namespace has the service account of the principal. The rule matches no caller.",
        "Correct the principal: it is `TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`.";
    Syntax, "PIL0101", "Document that cannot be parsed",
        "The text is not YAML or JSON: indentation, brackets, quotes, a duplicate key, or an encoding other than UTF-8. Objects that the file had before are served in their last good version. Other files are not affected.",
        "Correct the line that the message names.";
    NotAnObject, "PIL0102", "Document that is not an object",
        "A document needs apiVersion, kind, metadata and spec. Objects that the file had before are served in their last good version.",
        "Add the missing key; check the spelling and indentation of the four keys.";
    UnknownKind, "PIL0103", "Unknown kind or API group",
        "No kind of this name exists in this API group and version. The document is not used. If it was an object before, its last good version is served.",
        "Correct `kind` or `apiVersion`. `docs/reference/config-kinds.md` lists all kinds.";
    UnknownField, "PIL0104", "Unknown field",
        "The object is used without this field.",
        "Correct the spelling or the indentation of the field.";
    WrongValue, "PIL0105", "Value of a wrong type",
        "The value cannot be used for its field, so the object is not used. If it was valid before, its last good version is served.",
        "Write a value of the type that the message names. Text that looks like a number or boolean needs quotes.";
    InvalidObject, "PIL0106", "Invalid object",
        "The object violates a rule of its kind and is not used. If it was valid before, its last good version is served.",
        "Correct the field that the message names.";
    WithoutEffect, "PIL0107", "Part of an object has no effect",
        "The object is used, but the part that the message names has no effect.",
        "Correct or remove that part.";
    DuplicateObject, "PIL0108", "Object that is defined twice",
        "Two documents have the same kind, namespace and name. The one in the first file, by name, is used.",
        "Rename or delete one of them.";
    UnreadableFile, "PIL0109", "File or folder that cannot be read",
        "Its last good objects are served until it can be read.",
        "Check that it exists, is a regular file and may be read by the server's user.";
    EmptyFile, "PIL0110", "File that became empty",
        "An empty file is what a full disk or a crashed editor leaves, so its last good objects are served.",
        "Restore the file, or delete it to remove its objects.";
    FileLeftOut, "PIL0111", "File that is left out",
        "Only files whose names end with .yaml or .yml are read.",
        "Rename the file if it should be read.";
    Metadata, "PIL0112", "Mistake in the metadata",
        "A value of the metadata cannot be used.",
        "Correct the value that the message names.";
    MisspeltMetadata, "PIL0113", "Misspelt metadata",
        "Name or namespace of the object are misspelt, so it is not known which object this is. The document is not used; objects that the file had before are served in their last good version.",
        "Correct the key that the message names.";
    Limit, "PIL0114", "More than the limit",
        "Part of the configuration exceeds a limit and is left out; the rest is served.",
        "Make it smaller, or raise the limit that the message names (`docs/limits.md`).";
    StoreConflict, "PIL0115", "Object of several stores",
        "Several stores have the same object. That of the first store is used.",
        "Delete it in all stores but one.";
    Setting, "PIL0116", "Mistake in a setting",
        "A mesh-wide setting cannot be used as it is written. If it is an error, the previous settings stay in use.",
        "Correct the value that the message names.";
    ServiceConflict, "PIL0201", "Service of several registries",
        "Several registries have a service of the same host. The message says which one is served.",
        "Rename one of them, or choose a conflict policy in the registry file.";
    RegistryService, "PIL0202", "Service that cannot be imported as it is",
        "A service of a registry has a name, port or instance that the mesh cannot use. The message says what is left out.",
        "Change the service in its registry.";
    Route, "PIL0203", "Route of Cloud Foundry that cannot be used",
        "The route is left out; other routes are not affected.",
        "Change the route.";
    Cluster, "PIL0204", "Kubernetes cluster that cannot be read completely",
        "The last known objects of the cluster are served.",
        "Check the address, the credentials and the roles that the message names.";
    Source, "PIL0205", "Source of configuration or services that fails",
        "The last known state of the source is served.",
        "Check the server that the message names.";
    HeldLoss, "PIL0206", "Sudden loss that is held back",
        "Nearly all services or objects of a source disappeared at once, which is what a broken registry looks like. They are served until the loss is confirmed.",
        "Check the source. If the loss is real, wait until it is applied.";
    KeySet, "PIL0207", "Key set that cannot be fetched",
        "The keys of a token issuer cannot be fetched. The last keys stay in use; without any, tokens of the issuer are rejected.",
        "Check that this server reaches the URL.";
    Rejected, "PIL0301", "Resource that Envoy rejected",
        "An Envoy rejected what was made of an object. Rejecting clients get the previous version, or none; everything else is served.",
        "Correct the object that the message names, usually an EnvoyFilter.";
    Resource, "PIL0302", "Resource that is not served completely",
        "Part of a resource is left out.",
        "Follow the message.";
    Certificates, "PIL0401", "Certificates or keys that cannot be used",
        "A certificate, key or CA is missing, expired or about to expire. The last good one stays in use.",
        "Renew or correct the file or Secret that the message names.";
    WithoutCertificates, "PIL0402", "Proxies without certificates",
        "Agents without certificates and without a CA: their traffic is plain text, and listeners that demand mutual TLS are left out.",
        "Mount certificates, or give the agents a TLS port of the control plane.";
    WaitingForSecrets, "PIL0403", "Envoy that waits for secrets",
        "An Envoy waits for certificates that it cannot get, so its listeners do not accept connections.",
        "Create the Secrets that the message names, or correct the names in Gateway or DestinationRule.";
}

impl ProblemCode {
    pub fn as_str(self) -> &'static str {
        self.page().code
    }

    /// The code of this text, in either case.
    pub fn parse(text: &str) -> Option<ProblemCode> {
        ProblemCode::ALL.iter().copied().find(|code| code.as_str().eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for ProblemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for CodePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n\n{}\n\nWhat to do: {}", self.code, self.title, self.meaning, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::ProblemCode;

    #[test]
    fn codes_are_unique_and_found_by_name() {
        let codes: BTreeSet<&str> = ProblemCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(codes.len(), ProblemCode::ALL.len());
        assert_eq!(ProblemCode::parse("pil0103"), Some(ProblemCode::UnknownKind));
        assert_eq!(ProblemCode::parse("PIL9999"), None);
    }
}
