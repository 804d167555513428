//! `pilotctl demo` with real Envoys: it starts, prints changes, ends without a trace, and says why it cannot start.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use testkit::sandbox::{Sandbox, SandboxRun};
use testkit::{programs, servers};

const PILOTCTL: &str = env!("CARGO_BIN_EXE_pilotctl");
const LIMIT: Duration = Duration::from_secs(180);
/// Time for the first response, and for the report of a failure. Programs without optimization on a machine that builds and
/// tests other things need more.
const AT_ONCE: Duration = Duration::from_secs(if cfg!(debug_assertions) { 9 } else { 3 });

/// Functions for scripts: the number of the demo's processes and of the files that it left, and a wait for a line.
const HELPERS: &str = r#"
processes() { readlink /proc/[0-9]*/exe | grep -c -E '/(envoy|pilot-discovery|pilot-agent|pilotctl|consul|java)' || true; }
files() { ls -A "$TMPDIR" | wc -l; }
must_fail() { if "$@"; then echo "unexpected success of $*"; exit 1; fi; }
wait_for() { until grep -q "$1" "$2"; do kill -0 "$demo"; sleep 0.02; done; }
"#;

/// A sandbox with a copy of the shop.
fn shop() -> Option<Sandbox> {
    if servers::without("envoy") {
        return None;
    }
    for (package, name) in [("discovery", "pilot-discovery"), ("agent", "pilot-agent")] {
        programs::binary(package, name);
    }
    let own = Path::new(PILOTCTL).parent().map(Path::to_owned).unwrap_or_default();
    let sandbox = Sandbox::new(&[own]);
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/shop");
    sandbox.copy(&sample, "samples/shop");
    Some(sandbox)
}

fn run(sandbox: &Sandbox, script: &str) -> SandboxRun {
    let envoy = servers::binary("envoy").to_string_lossy().into_owned();
    sandbox.run(&format!("{HELPERS}{script}"), &[("PILOTAGE_ENVOY", &envoy)], LIMIT)
}

#[test]
fn every_signal_ends_all_processes_and_removes_all_files() {
    let Some(sandbox) = shop() else { return };
    let output = run(
        &sandbox,
        r#"
        for signal in INT TERM HUP KILL; do
            pilotctl demo >"out-$signal" 2>&1 & demo=$!
            wait_for 'is open at' "out-$signal"
            curl -sf http://127.0.80.1:18080/ | grep -q '  reviews v'
            # The janitor is another pilotctl.
            test "$(processes)" -eq 13
            grep -o 'after [0-9.]* s and responds' "out-$signal"
            kill -$signal $demo
            wait $demo || true
            if [ $signal = KILL ]; then until [ "$(processes)" -eq 0 ]; do sleep 0.02; done; fi
            echo "$signal: $(processes) processes, $(files) files"
        done
        # A demo that was killed does not disturb the next one.
        pilotctl demo --once
        echo "after it: $(processes) processes, $(files) files"
        "#,
    )
    .good();
    for signal in ["INT", "TERM", "HUP", "KILL", "after it"] {
        assert!(output.contains(&format!("{signal}: 0 processes, 0 files")), "{output}");
    }
    let first: Vec<f64> = output
        .lines()
        .filter_map(|line| line.strip_prefix("after ")?.strip_suffix(" s and responds")?.parse().ok())
        .collect();
    println!("first responses after {first:?} s");
    assert!(first.len() == 4 && first.iter().all(|took| *took < AT_ONCE.as_secs_f64()), "{first:?}\n{output}");
}

#[test]
fn a_killed_demo_keeps_no_folder_from_the_next_one() {
    let Some(sandbox) = shop() else { return };
    // The janitor of the first demo must not remove the folder of the second one, which has the same path.
    let output = run(
        &sandbox,
        r#"
        pilotctl demo >one 2>&1 & demo=$!
        wait_for 'waiting for the shop' one
        kill -KILL $demo
        wait $demo || true
        until pilotctl demo --detach >two 2>&1; do grep -q 'could not listen\|another demo' two; sleep 0.1; done
        curl -sf http://127.0.80.1:18080/ | grep -q '  reviews v'
        test -d $TMPDIR/pilotage-demo-*
        pilotctl demo stop
        until [ "$(processes)" -eq 0 ]; do sleep 0.02; done
        echo "left: $(files) files"
        "#,
    )
    .good();
    assert!(output.contains("left: 0 files"), "{output}");
}

#[test]
fn changes_and_problems_are_printed() {
    let Some(sandbox) = shop() else { return };
    let output = run(
        &sandbox,
        r#"
        pilotctl demo >out 2>&1 & demo=$!
        wait_for 'is open at' out
        grep -Eo '(admin|status|metrics) http://[^ ]*' out | cut -d' ' -f2 | while read url; do curl -sfo /dev/null "$url"; done
        canary=samples/shop/config/canary.yaml
        sed -i 's/weight: 90/weight: 80/; s/weight: 10$/weight: 20/' $canary
        wait_for 'canary.yaml: VirtualService shop/reviews changed: 5 of 5 proxies have it after [0-9]* ms' out
        sed -i 's/weight: 80/weight: many/' $canary
        wait_for '^error \[PIL0105\] .*canary.yaml' out
        curl -sf http://127.0.80.1:18080/ | grep -q '  reviews v'
        sed -i 's/weight: many/weight: 80/' $canary
        wait_for '^solved: error \[PIL0105\]' out
        rm $canary
        wait_for 'DestinationRule shop/reviews removed: 5 of 5' out
        kill $demo
        wait $demo || true
        cat out
        "#,
    );
    let output = output.good();
    assert!(output.contains("waiting for pilot-discovery") && output.contains("waiting for the shop"), "{output}");
}

#[test]
fn detached_demo_runs_until_it_is_stopped() {
    let Some(sandbox) = shop() else { return };
    let output = run(
        &sandbox,
        r#"
        pilotctl demo --detach
        curl -sf http://127.0.80.1:18080/ | grep -q '  reviews v'
        must_fail pilotctl demo
        pilotctl demo stop
        until [ "$(processes)" -eq 0 ]; do sleep 0.02; done
        echo "left: $(files) files"
        pilotctl demo stop
        must_fail pilotctl demo --detach --envoy /nowhere/envoy
        "#,
    )
    .good();
    for expected in [
        "`pilotctl demo stop` ends it.",
        "pilotctl: another demo is running (process ",
        "the demo has ended",
        "left: 0 files",
        "no demo is running",
        "pilotctl: could not find an Envoy at /nowhere/envoy: `cargo xtask setup envoy` downloads one",
    ] {
        assert!(output.contains(expected), "no {expected:?} in\n{output}");
    }
}

#[test]
fn services_behind_the_front_refuse_plain_text() {
    let Some(sandbox) = shop() else { return };
    let output = run(
        &sandbox,
        r#"
        pilotctl demo --detach
        # The front accepts plain text, and calls the others over mutual TLS.
        curl -sf http://127.0.80.1:18080/
        for number in 2 3 4 5; do
            code=0
            curl -s --max-time 60 -o "answer-$number" "http://127.0.80.$number:18080/" || code=$?
            echo "plain text to $number: curl ended with $code, $(cat "answer-$number" 2>/dev/null | wc -c) bytes"
        done
        pilotctl demo stop
        "#,
    )
    .good();
    assert!(output.contains("catalog v1 for spiffe://shop.example/ns/shop/sa/front"), "{output}");
    for number in 2..=5 {
        // The connection is accepted and then closed: 52 is an empty response, 56 a reset.
        let refused = [52, 56].map(|code| format!("plain text to {number}: curl ended with {code}, 0 bytes"));
        assert!(refused.iter().any(|line| output.contains(line)), "{number}: {output}");
    }
}

/// Runs a demo that must fail, and checks its last words.
fn fails(sandbox: &Sandbox, script: &str, expected: &[&str]) {
    let run = run(sandbox, &format!("{script}\necho \"$(processes) processes\""));
    let (took, output) = (run.took, run.output.clone());
    run.good();
    println!("{took:?}: {}", output.lines().find(|line| line.starts_with("pilotctl:")).unwrap_or_default());
    for text in expected.iter().chain(&["0 processes"]) {
        assert!(output.contains(text), "no {text:?} in\n{output}");
    }
    assert!(took < AT_ONCE, "{took:?}: {output}");
}

#[test]
fn failures_are_reported_at_once_with_the_reason() {
    let Some(sandbox) = shop() else { return };
    let work = sandbox.work();
    let program = |name: &str, text: &str, mode: u32| -> PathBuf {
        let path = work.join(name);
        fs::write(&path, text).expect("a file");
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&path, permissions).expect("a mode");
        path
    };
    program("hangs", "#!/bin/sh\nexec sleep 100\n", 0o755);
    program("spins", "#!/bin/sh\nwhile :; do :; done\n", 0o755);
    let version = "#!/bin/sh\ncase \"$*\" in *--version*) echo 'envoy version: 1'; exit;; esac\n";
    program("dies", &format!("{version}echo 'no room on deck' >&2\nexit 3\n"), 0o755);
    program("text", "not a program\n", 0o644);
    program("broken", "\u{7f}ELF broken\n", 0o755);
    program("other", "#!/bin/sh\nexit 0\n", 0o755);
    let demo = |arguments: &str| format!("must_fail pilotctl demo {arguments}");
    let next = "`cargo xtask setup envoy` downloads one";

    let taken = |address: &str, port: u16| {
        format!(
            "python3 -c 'import socket, time; s = socket.create_server((\"{address}\", {port})); time.sleep(100)' &\n\
             until (: </dev/tcp/{address}/{port}) 2>/dev/null; do sleep 0.02; done\n{}\nkill %1",
            demo("")
        )
    };
    let words = "could not listen on 127.0.80.2:18080 for the sidecar of catalog-v1: Address already in use";
    fails(&sandbox, &taken("127.0.80.2", 18080), &[words]);
    fails(&sandbox, &taken("127.0.0.1", 28083), &["could not listen on 127.0.0.1:28083 for cart-v1: Address already"]);
    fails(&sandbox, &demo("--envoy ./hangs"), &["hangs does not answer --version; ", next]);
    fails(&sandbox, &demo("--envoy ./spins"), &["spins does not answer --version; ", next]);
    fails(
        &sandbox,
        &demo("--envoy ./dies"),
        &["the demo failed; logs: ", " ended with exit status: 255", "no room on deck"],
    );
    fails(&sandbox, "test -f $TMPDIR/pilotage-demo-*/agent-front-v1.log; rm -r $TMPDIR/pilotage-demo-*", &[]);
    fails(
        &sandbox,
        &demo("--envoy ./text"),
        &["text --version failed with code 1: could not start", "Permission denied", next],
    );
    fails(&sandbox, &demo("--envoy ./broken"), &["broken --version failed with code", next]);
    fails(&sandbox, &demo("--envoy ./other"), &["other is not an Envoy: its --version prints no version; ", next]);
    fails(
        &sandbox,
        &demo("--shop nowhere"),
        &["could not read nowhere/config: run from the project's folder or give --shop"],
    );
    fails(&sandbox, "TMPDIR=/proc must_fail pilotctl demo", &["could not make /proc/pilotage-demo-"]);
    let full =
        "mkdir full; mount -t tmpfs -o size=4k none full; dd if=/dev/zero of=full/zero bs=4k count=1 2>/dev/null";
    fails(&sandbox, &format!("{full}; TMPDIR=$PWD/full must_fail pilotctl demo"), &["No space left on device"]);
    let nearly = "mkdir nearly; mount -t tmpfs -o size=40k none nearly";
    fails(&sandbox, &format!("{nearly}; TMPDIR=$PWD/nearly must_fail pilotctl demo"), &["No space left on device"]);
}

/// The demo with its services in a registry.
fn with_registry(name: &str) {
    let Some(sandbox) = shop() else { return };
    let output = run(&sandbox, &format!("pilotctl demo --once --registry {name}")).good();
    assert!(
        output.contains("  reviews v") && output.contains("for spiffe://shop.example/ns/shop/sa/front"),
        "{output}"
    );
}

#[test]
fn services_may_be_registered_in_consul() {
    if !servers::without("consul") {
        with_registry("consul");
    }
}

#[test]
fn services_may_be_registered_in_eureka() {
    if !servers::without("eureka.jar") {
        with_registry("eureka");
    }
}
