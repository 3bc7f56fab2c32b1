//! CHECK of a whole network.

use std::fs;

use serde_json::json;

use super::{Host, ID, assert_failed, assert_silent, assert_unrecorded, result};

#[test]
fn check_gives_every_plugin_the_final_result() {
    let host = Host::new("0.4.0");
    for (plugin, address) in [("a", "10.0.0.1/24"), ("b", "10.0.0.2/24"), ("c", "10.0.0.3/24")] {
        host.answer("ADD", plugin, &result(address), false);
    }
    assert_eq!(host.net(&format!("add net /x {ID}")).ok()["cniVersion"], "0.4.0");
    host.calls();
    assert_silent(&host.net(&format!("check net /x {ID} --capability-args {{\"mac\":1}}")));
    assert_eq!(host.calls(), "CHECK a, CHECK b, CHECK c");
    for call in ["CHECK-a", "CHECK-b", "CHECK-c"] {
        assert_eq!(host.config(call)["prevResult"]["ips"][0]["address"], "10.0.0.3/24");
    }
    assert_eq!(host.config("CHECK-a")["runtimeConfig"], json!({"mac": 1}));

    host.answer("CHECK", "b", r#"{"code":103,"msg":"no such rule","details":"add it"}"#, true);
    assert_failed(&host.net(&format!("check net /x {ID}")), "b: no such rule; add it", "");
    assert_eq!(host.calls(), "CHECK a, CHECK b, CHECK c", "all differences are reported");
}

#[test]
fn check_reads_caches_of_libcni_0_7_and_refuses_corrupt_ones() {
    let host = Host::new("0.4.0");
    let bare = r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.1/24"}]}"#;
    host.cache("net-id-1-eth0", bare);
    assert_silent(&host.net(&format!("check net /x {ID}")));
    assert_eq!(host.config("CHECK-a")["prevResult"]["cniVersion"], "0.4.0");
    host.calls();
    for (text, msg) in [
        ("{", "decoding version from network config: "),
        (r#"{"cniVersion":"0.4567.0"}"#, "unsupported CNI result version"),
    ] {
        fs::write(host.cached(), text).unwrap();
        let outcome = host.net(&format!("check net /x {ID}"));
        let said = format!("failed to get network \"net\" cached result: {msg}");
        assert!(outcome.stderr.starts_with(&said), "{outcome:?}");
    }
    fs::remove_file(host.cached()).unwrap();
    assert_eq!(host.calls(), "");
    assert_unrecorded(&host.net(&format!("check net /x {ID}")), "net");
    assert_eq!(host.config("CHECK-a").get("prevResult"), None, "it is for the plugin to miss it");
}

#[test]
fn check_is_refused_before_0_4_0_and_can_be_disabled() {
    let host = Host::new("0.3.1");
    let msg = "configuration version \"0.3.1\" does not support the CHECK command";
    assert_failed(&host.net("check net /x"), msg, "");
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "disableCheck": "TRUE", "plugins": [{"type": "a"}]}));
    assert_unrecorded(&host.net("check net /x"), "net");
    assert_eq!(host.calls(), "");
}

/// The network's version may have changed since ADD, and older files remain.
#[test]
fn check_and_del_convert_a_result_of_another_version() {
    let host = Host::new("1.1.0");
    let older = r#"{"kind":"cniCacheV1","containerId":"id-1","ifName":"eth0","networkName":"net","result":{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.1/24"}]}}"#;
    host.cache("net-id-1-eth0", older);
    let expected = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.1/24"}]});
    assert_silent(&host.net(&format!("check net /x {ID}")));
    assert_eq!(host.config("CHECK-c")["prevResult"], expected);
    let stdin = fs::read_to_string(host.0.join("CHECK-c.stdin")).unwrap();
    assert!(!stdin.contains("\"config\"") && !stdin.contains("\"kind\""), "{stdin}");
    assert_silent(&host.net(&format!("del net /x {ID}")));
    assert_eq!(host.config("DEL-c")["prevResult"], expected);
}
