//! Rules of WasmPlugin and TrafficExtension.

use std::collections::BTreeSet;

use api::istio::extensions::v1alpha1::traffic_extension::FilterConfig;
use api::istio::extensions::v1alpha1::{EnvValueSource, LuaConfig, TrafficExtension, VmConfig, WasmPlugin};
use api::istio::r#type::v1beta1::PortSelector;

use super::report::{Report, Rule, Violation};
use super::selector;

const LONGEST_CODE: usize = 65_536;

pub(super) fn wasm_plugin(plugin: &WasmPlugin, report: &mut Report) {
    selector::policy(plugin.selector.as_ref(), plugin.target_ref.as_ref(), &plugin.target_refs, report);
    let module = WasmModule {
        url: &plugin.url,
        sha256: &plugin.sha256,
        pull_secret: &plugin.image_pull_secret,
        name: &plugin.plugin_name,
        vm: plugin.vm_config.as_ref(),
    };
    module.check(report);
    report.each("match", &plugin.r#match, |report, one| ports(&one.ports, report));
}

pub(super) fn traffic_extension(extension: &TrafficExtension, report: &mut Report) {
    selector::policy(extension.selector.as_ref(), None, &extension.target_refs, report);
    match &extension.filter_config {
        None => report.error("exactly one of wasm or lua must be set"),
        Some(FilterConfig::Lua(lua)) => report.within("lua", |report| report.check(lua_code(lua))),
        Some(FilterConfig::Wasm(wasm)) => {
            let module = WasmModule {
                url: &wasm.url,
                sha256: &wasm.sha256,
                pull_secret: &wasm.image_pull_secret,
                name: &wasm.plugin_name,
                vm: wasm.vm_config.as_ref(),
            };
            report.within("wasm", |report| module.check(report));
        }
    }
    report.each("match", &extension.r#match, |report, one| ports(&one.ports, report));
}

fn lua_code(lua: &LuaConfig) -> Rule {
    match lua.inline_code.len() {
        0 => Err(Violation::from("lua.inlineCode cannot be empty".to_owned())),
        1..=LONGEST_CODE => Ok(()),
        _ => Err(Violation::from("lua.inlineCode exceeds maximum size of 64KB".to_owned())),
    }
}

fn ports(ports: &[PortSelector], report: &mut Report) {
    report.each("ports", ports, |report, port| {
        let fits = (1..=65535).contains(&port.number);
        report.error_if(!fits, format_args!("port is out of range: {}", port.number));
    });
}

/// A WebAssembly module of either kind.
struct WasmModule<'a> {
    url: &'a str,
    sha256: &'a str,
    pull_secret: &'a str,
    name: &'a str,
    vm: Option<&'a VmConfig>,
}

impl WasmModule<'_> {
    fn check(&self, report: &mut Report) {
        report.check(url(self.url));
        report.check(sha256(self.sha256));
        report.error_if(self.pull_secret.len() > 253, "imagePullSecret field must be less than 253 characters long");
        report.error_if(self.name.len() > 256, "pluginName field must be less than 255 characters long");
        report.given("vmConfig", self.vm, |report, vm| report.check(environment(vm)));
    }
}

/// The URL of a module: a known scheme, or an image without a scheme.
fn url(text: &str) -> Rule {
    if text.is_empty() {
        return Err(Violation::from("url field needs to be set".to_owned()));
    }
    if text.chars().any(char::is_control) {
        return Err(Violation::from("failed to parse url: invalid control character in URL".to_owned()));
    }
    // Without `//` it is a host and port, or an image and tag.
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    match scheme.to_ascii_lowercase().as_str() {
        "" | "file" | "http" | "https" | "oci" => Ok(()),
        other => Err(Violation::from(format!("url contains unsupported scheme: {other}"))),
    }
}

fn sha256(text: &str) -> Rule {
    if text.is_empty() {
        return Ok(());
    }
    if text.len() != 64 {
        return Err(Violation::from("sha256 field must be 64 characters long".to_owned()));
    }
    match text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        true => Ok(()),
        false => Err(Violation::from("sha256 field must match [a-f0-9]{64} pattern".to_owned())),
    }
}

fn environment(vm: &VmConfig) -> Rule {
    let mut names = BTreeSet::new();
    for variable in &vm.env {
        if variable.name.is_empty() {
            return Err(Violation::from("spec.vmConfig.env invalid".to_owned()));
        }
        if variable.name.len() > 256 {
            return Err(Violation::from("env.name field must be less than 255 characters long".to_owned()));
        }
        if !names.insert(&variable.name) {
            return Err(Violation::from("duplicate env".to_owned()));
        }
        if variable.value_from() != EnvValueSource::Inline && !variable.value.is_empty() {
            return Err(Violation::from("value may only be set when valueFrom is INLINE".to_owned()));
        }
    }
    Ok(())
}
