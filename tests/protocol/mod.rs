//! Tier T1: the protocol as a runtime sees it, whatever the plugin. Needs neither root nor network.
//!
//! A case runs against both peers. Where the reference and ours differ on purpose, the case says
//! what each side does.

mod args;
mod decode;
mod delegate;
mod environment;
mod get;
mod network_name;
mod own_netns;
mod prev_result;
mod result;
mod stdin;
mod stdout;
mod version;

use serde_json::Value;

use crate::support::attachment::skip;
use crate::support::call::{Call, Outcome, Peer};
use crate::support::programs::located;
use crate::support::scratch::Scratch;

/// Every version of the specification, oldest first.
pub const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The plugins of the first milestone. All of them support every version.
pub const PLUGINS: [&str; 5] = ["loopback", "bridge", "ptp", "host-local", "static"];

/// A configuration that every plugin can decode; its name is valid and it asks for nothing.
pub fn conf(version: &str) -> String {
    format!(r#"{{"cniVersion":"{version}","name":"net-1"}}"#)
}

/// A configuration of `static`, which answers without touching the kernel.
pub fn static_conf(version: &str) -> String {
    format!(
        r#"{{"cniVersion":"{version}","name":"net-1","ipam":{{"type":"static","addresses":[{{"address":"10.1.2.3/24"}}]}}}}"#
    )
}

/// A configuration of `host-local` with its state in `data`.
pub fn host_local_conf(version: &str, data: &Scratch) -> String {
    format!(
        r#"{{"cniVersion":"{version}","name":"net-1","ipam":{{"type":"host-local","subnet":"10.1.2.0/24","dataDir":"{}"}}}}"#,
        data.text()
    )
}

/// Runs the call in its own user and network namespace, which also stands for the container's, with a /run of its own.
///
/// So loopback and other plugins that change a namespace change only this one, and tests share no records.
pub fn in_own_namespace(call: Call) -> Call {
    let call = call.env("CNI_NETNS", "/proc/self/ns/net").env("CNI_NETNS_OVERRIDE", "1");
    let [shell, mount] = ["sh", "mount"].map(|program| located(program).display().to_string());
    let script = format!("{mount} -t tmpfs tmpfs /run && exec \"$@\"");
    call.wrapped(&["unshare", "-Urnm", &shell, "-c", &script, "sh"].map(str::to_owned))
}

/// Whether this machine permits user namespaces. Prints SKIP otherwise.
pub fn has_user_namespaces() -> bool {
    let made = std::process::Command::new("unshare").args(["-Urnm", "true"]).output();
    let has = made.is_ok_and(|output| output.status.success());
    if !has {
        skip("user namespaces");
    }
    has
}

/// The error object, byte for byte. Ours carries the version of the configuration; the reference
/// leaves it out.
pub fn error_text(peer: &Peer, version: &str, code: u64, msg: &str, details: &str) -> String {
    let mut lines = vec![];
    if *peer == Peer::Ours {
        lines.push(format!(r#"    "cniVersion": {}"#, go_quoted(version)));
    }
    lines.push(format!(r#"    "code": {code}"#));
    lines.push(format!(r#"    "msg": {}"#, go_quoted(msg)));
    if !details.is_empty() {
        lines.push(format!(r#"    "details": {}"#, go_quoted(details)));
    }
    format!("{{\n{}\n}}", lines.join(",\n"))
}

/// A JSON string as Go writes it.
fn go_quoted(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Asserts a failure: exit status 1 and exactly this error object on stdout.
#[track_caller]
pub fn assert_error(
    peer: &Peer,
    outcome: &Outcome,
    version: &str,
    code: u64,
    msg: &str,
    details: &str,
) {
    assert_eq!(
        outcome.stdout,
        error_text(peer, version, code, msg, details),
        "stderr: {}",
        outcome.stderr
    );
    assert_eq!(outcome.status, 1, "{outcome:?}");
}

/// Asserts success without output.
#[track_caller]
pub fn assert_silent_success(outcome: &Outcome) {
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
}

/// The configuration, an object without a version, with this version.
pub fn with_version(version: &str, conf: &str) -> String {
    conf.replacen('{', &format!(r#"{{"cniVersion":"{version}","#), 1)
}
