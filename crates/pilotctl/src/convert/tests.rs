//! Whole files, converted.

use super::Conversion;

/// The printed documents of one file.
fn converted(text: &str) -> (String, Vec<String>) {
    of_files(&[("old.yaml".to_owned(), text.to_owned())])
}

fn of_files(texts: &[(String, String)]) -> (String, Vec<String>) {
    let conversion = Conversion::of(texts, &[], "default");
    let problems = conversion.problems.iter().map(ToString::to_string).collect();
    (conversion.printed(texts).join("\n---\n"), problems)
}

#[test]
fn a_document_that_becomes_one_keeps_its_comments_and_others_stay() {
    let text = "# the outside\napiVersion: config.istio.io/v1alpha2\nkind: EgressRule\nmetadata:\n  name: out\nspec:\n  \
                destination:\n    service: '*.example' # all of it\n  ports:\n  - port: 80\n    protocol: http\n---\n\
                # untouched\napiVersion: v1\nkind: Service   # as it is\nmetadata: {name: a}\n";
    let (printed, problems) = converted(text);
    assert_eq!(problems, Vec::<String>::new());
    let expected = "# the outside\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: out\n  \
                    namespace: default\n# all of it\nspec:\n  hosts:\n";
    assert!(printed.starts_with(expected), "{printed}");
    assert!(printed.ends_with("---\n# untouched\napiVersion: v1\nkind: Service   # as it is\nmetadata: {name: a}"));
}

#[test]
fn rules_of_one_destination_become_one_object() {
    let rule = |name: &str, precedence: u32| {
        format!(
            "apiVersion: config.istio.io/v1alpha2\nkind: RouteRule\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{destination: {{name: r}}, precedence: {precedence}, httpReqTimeout: {{simpleTimeout: \
             {{timeout: {precedence}s}}}}}}\n"
        )
    };
    let files = [("a.yaml".to_owned(), rule("low", 1)), ("b.yaml".to_owned(), rule("high", 2))];
    for (printed, problems) in [of_files(&files), converted(&format!("{}---\n{}", rule("low", 1), rule("high", 2)))] {
        assert_eq!((problems.len(), printed.matches("kind: VirtualService").count()), (0, 1), "{printed}");
        let (first, second) = (printed.find("timeout: 2s"), printed.find("timeout: 1s"));
        assert!(first.is_some() && first < second, "{printed}");
    }
}

#[test]
fn what_cannot_be_converted_stays_and_is_reported() {
    let text = "apiVersion: config.istio.io/v1alpha2\nkind: RouteRule\nmetadata: {name: a, namespace: shop}\n\
                spec: {destination: {name: r}, match: {source: {name: page}}}\n---\napiVersion: \
                config.istio.io/v1alpha2\nkind: QuotaSpec\nmetadata: {name: q, namespace: shop}\nspec: {}\n";
    let (printed, problems) = converted(text);
    assert!(printed.starts_with("apiVersion: config.istio.io/v1alpha2\nkind: RouteRule"), "{printed}");
    assert!(!printed.contains("QuotaSpec"), "{printed}");
    assert!(problems[0].contains("old.yaml:1: RouteRule shop/a: could not convert spec.match.source"), "{problems:?}");
    assert!(problems[1].contains("QuotaSpec shop/q: has no effect"), "{problems:?}");
}

#[test]
fn policies_of_rbac_are_printed_once() {
    let text = "apiVersion: rbac.istio.io/v1alpha1\nkind: RbacConfig\nmetadata: {name: default, namespace: \
                istio-system}\nspec: {mode: 'ON'}\n---\napiVersion: rbac.istio.io/v1alpha1\nkind: ServiceRole\n\
                metadata: {name: reader, namespace: shop}\nspec: {rules: [{services: ['*'], methods: [GET]}]}\n---\n\
                apiVersion: rbac.istio.io/v1alpha1\nkind: ServiceRoleBinding\nmetadata: {name: readers, namespace: \
                shop}\nspec: {subjects: [{user: '*'}], roleRef: {kind: ServiceRole, name: reader}}\n";
    let (printed, problems) = converted(text);
    assert_eq!((problems, printed.matches("kind: AuthorizationPolicy").count()), (Vec::new(), 2), "{printed}");
}

const POLICY: &str = "apiVersion: authentication.istio.io/v1alpha1
kind: Policy
metadata: {name: strict, namespace: shop}
spec: {targets: [{name: cart}], peers: [{mtls: {}}]}
";
const SERVICE: &str = "apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {selector: {run: carts}, ports: [{port: 80}]}
";
const ENTRY: &str = "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: carts, namespace: shop}
spec:
  hosts: [cart.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{name: http, number: 80, protocol: HTTP}]
  workloadSelector: {labels: {run: carts}}
";

#[test]
fn a_policy_selects_the_workloads_of_the_service_that_it_names() {
    for service in [SERVICE, ENTRY] {
        // In the same file, in another one, and from the server, whose objects are not printed.
        let (same, problems) = converted(&format!("{POLICY}---\n{service}"));
        assert_eq!(problems, Vec::<String>::new(), "the selector is known");
        let files = [("old.yaml".to_owned(), POLICY.to_owned()), ("services.yaml".to_owned(), service.to_owned())];
        let (other, _) = of_files(&files);
        let of_server = Conversion::of(&files[..1], &files[1..], "default");
        let alone = of_server.printed(&files[..1]).join("\n---\n");
        assert!(of_server.problems.is_empty() && !alone.contains("name: carts"), "{alone}");
        for printed in [same, other, alone] {
            assert!(printed.contains("matchLabels:\n      run: carts"), "{printed}");
            assert!(!printed.contains("app: cart"), "{printed}");
        }
    }
}

#[test]
fn a_selector_that_is_a_guess_is_reported() {
    let elsewhere = SERVICE.replace("namespace: shop", "namespace: office");
    let without_selector = SERVICE.replace("selector: {run: carts}, ", "");
    for text in [POLICY.to_owned(), format!("{POLICY}---\n{elsewhere}"), format!("{POLICY}---\n{without_selector}")] {
        let (printed, problems) = converted(&text);
        assert!(printed.contains("matchLabels:\n      app: cart"), "{printed}");
        assert!(problems.len() == 1 && problems[0].contains("app: cart while it is unknown"), "{problems:?}");
    }
}
