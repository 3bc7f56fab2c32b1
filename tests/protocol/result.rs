//! Results, byte for byte as the reference prints them, in every version.
//!
//! `fixtures/results/<case>/conf.json` is a configuration without its version, and `<version>.json`
//! is what the reference printed for it. `static` shows the conversion of an IPAM result,
//! `loopback` that of a previous result.

use std::path::{Path, PathBuf};

use super::{VERSIONS, has_user_namespaces, in_own_namespace, with_version};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::peers::peers;

peers! {
    addresses_and_routes_are_printed_in_every_version,
    previous_result_is_printed_in_the_versions_of_its_family,
    previous_result_with_a_long_interface_index_keeps_it,
    results_without_a_form_before_0_3_0_are_refused,
    loopback_tells_its_addresses_in_every_version,
}

const ALL: &[&str] = &VERSIONS;
const FROM_0_3_0: &[&str] = &["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

const STATIC: [(&str, &[&str]); 14] = [
    ("address", ALL),
    ("gateway", ALL),
    ("empty-gateway", ALL),
    ("ipv6", ALL),
    ("dual-stack", ALL),
    ("route-attributes", ALL),
    ("host-bits", ALL),
    ("ipv4-mapped", ALL),
    ("ipv6-texts", ALL),
    ("route-of-a-family-without-address", ALL),
    ("escapes", ALL),
    ("dns-of-empty-lists", ALL),
    ("several-addresses", FROM_0_3_0),
    ("no-address", FROM_0_3_0),
];

const LOOPBACK: [(&str, &[&str]); 5] = [
    ("previous-0.2", &["0.1.0", "0.2.0"]),
    ("previous-0.4", &["0.3.0", "0.3.1", "0.4.0"]),
    ("previous-1.x", &["1.0.0", "1.1.0"]),
    ("previous-empty-0.4", &["0.3.0", "0.3.1", "0.4.0"]),
    ("previous-empty-1.x", &["1.0.0", "1.1.0"]),
];

fn fixture(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/results").join(case)
}

fn conf(case: &str, version: &str) -> String {
    with_version(version, &std::fs::read_to_string(fixture(case).join("conf.json")).unwrap())
}

#[track_caller]
fn assert_printed(outcome: &Outcome, case: &str, version: &str) {
    let expected = std::fs::read_to_string(fixture(case).join(format!("{version}.json"))).unwrap();
    assert_eq!(outcome.status, 0, "{case} {version}: {outcome:?}");
    assert_eq!(outcome.stdout, expected, "{case} {version}");
    assert_eq!(outcome.stderr, "", "{case} {version}");
}

fn addresses_and_routes_are_printed_in_every_version(peer: &Peer) {
    for (case, versions) in STATIC {
        for version in versions {
            let outcome = Call::new(peer, "static", "ADD", conf(case, version)).run();
            assert_printed(&outcome, case, version);
        }
    }
}

fn previous_result_is_printed_in_the_versions_of_its_family(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    for (case, versions) in LOOPBACK {
        for version in versions {
            let call = Call::new(peer, "loopback", "ADD", conf(case, version));
            assert_printed(&in_own_namespace(call).run(), case, version);
        }
    }
}

/// The reference decodes a previous result through doubles.
fn previous_result_with_a_long_interface_index_keeps_it(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    let conf = r#"{"name":"net-1","prevResult":{"ips":[{"interface":9007199254740993,"address":"10.1.2.3/24"}]}}"#;
    let result = in_own_namespace(Call::new(peer, "loopback", "ADD", with_version("1.1.0", conf)))
        .run()
        .ok();
    let exact = if *peer == Peer::Ours { 9_007_199_254_740_993_u64 } else { 9_007_199_254_740_992 };
    assert_eq!(result["ips"][0]["interface"], exact);
}

/// Ours reports it as a mistake of the configuration.
fn results_without_a_form_before_0_3_0_are_refused(peer: &Peer) {
    let code = if *peer == Peer::Ours { 7 } else { 999 };
    for version in ["0.1.0", "0.2.0"] {
        let add = |case| Call::new(peer, "static", "ADD", conf(case, version)).run();
        let none = "cannot convert: no valid IP addresses";
        let several =
            format!("CNI version {version} does not support more than 1 address per family");
        let outcome = add("no-address");
        assert_eq!((outcome.status, outcome.fails(code, "").msg.as_str()), (1, none));
        if *peer == Peer::Ours {
            assert_eq!(outcome.json()["cniVersion"], version);
        }
        let outcome = add("several-addresses");
        let error = outcome.fails(code, "");
        assert!(outcome.status == 1 && error.msg.contains(&several), "{outcome:?}");
    }
}

/// The reference prints the 1.x form in every version, except where it converts.
fn loopback_tells_its_addresses_in_every_version(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    for version in VERSIONS {
        let conf = with_version(version, r#"{"name":"net-1","type":"loopback"}"#);
        let call = Call::new(peer, "loopback", "ADD", conf);
        let outcome = in_own_namespace(call).run();
        let result = outcome.ok();
        assert_eq!(result["cniVersion"], version);
        let is_old = version < "0.3.0";
        let is_1x = version >= "1.0.0";
        if is_old && *peer == Peer::Ours {
            let [v4, v6] = ["127.0.0.1/8", "::1/128"].map(|ip| serde_json::json!({"ip": ip}));
            let expected =
                serde_json::json!({"cniVersion": version, "dns": {}, "ip4": v4, "ip6": v6});
            assert_eq!(result, expected);
            continue;
        }
        let lo = serde_json::json!([{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/proc/self/ns/net"}]);
        assert_eq!(result["interfaces"], lo, "{version}");
        let addresses: Vec<_> =
            result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].clone()).collect();
        assert_eq!(addresses, ["127.0.0.1/8", "::1/128"]);
        if *peer == Peer::Ours {
            let six = if is_1x { serde_json::Value::Null } else { "6".into() };
            assert_eq!(
                (&result["ips"][1]["version"], &result["ips"][1]["interface"]),
                (&six, &0.into())
            );
        }
        let has_form_of_version =
            result["ips"][0]["version"] == "4" && result["dns"] == serde_json::json!({});
        assert_eq!(has_form_of_version, *peer == Peer::Ours && !is_1x, "{version}: {outcome:?}");
    }
}
