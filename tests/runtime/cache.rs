//! The cache of attachments: libcni's files, byte for byte, in both directions.
//!
//! `fixtures/cache/<version>.json` were written by the upstream cnitool of library 1.3.0. Each
//! contains all of its input, so the test can repeat the call.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni_multi::cni::attachment::Key;
use cni_multi::runtime::cache::Cache;
use cni_multi::runtime::directory;
use cni_multi::runtime::list::NetworkList;
use serde_json::{Value, json};

use super::{Host, ID, assert_failed, assert_silent, result};

const RECORDED: [&str; 5] = [
    include_str!("../fixtures/cache/0.2.0.json"),
    include_str!("../fixtures/cache/0.3.1.json"),
    include_str!("../fixtures/cache/0.4.0.json"),
    include_str!("../fixtures/cache/1.0.0.json"),
    include_str!("../fixtures/cache/1.1.0.json"),
];

/// A host on which the recorded attachment can be repeated, the name of its file, and the arguments
/// of `net`.
fn host_of(recorded: &Value) -> (Host, String, String) {
    let host = Host::new("1.0.0");
    host.plugin("fake");
    let text = |key: &str| recorded[key].as_str().unwrap();
    fs::write(host.0.join("net.d/10-net.conflist"), STANDARD.decode(text("config")).unwrap())
        .unwrap();
    host.answer("ADD", "fake", &recorded["result"].to_string(), false);
    let name = format!("{}-{}-{}", text("networkName"), text("containerId"), text("ifName"));
    (host, name, format!("{} {}", text("networkName"), text("netns")))
}

#[test]
fn what_libcni_wrote_is_written_again_to_the_byte() {
    for recorded in RECORDED {
        let value: Value = serde_json::from_str(recorded).unwrap();
        let (host, name, at) = host_of(&value);
        let mut call = host.call(&format!("add {at}"));
        if let Some(args) = value["cniArgs"].as_array() {
            let pair = |pair: &Value| {
                format!("{}={}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap())
            };
            call = call.env("CNI_ARGS", args.iter().map(pair).collect::<Vec<_>>().join(";"));
            call = call.env("CAP_ARGS", value["capabilityArgs"].to_string());
        }
        call.run().ok();
        assert_eq!(fs::read_to_string(host.0.join("cache/results").join(name)).unwrap(), recorded);
    }
}

#[test]
fn what_libcni_wrote_serves_check_and_del() {
    for recorded in RECORDED {
        let value: Value = serde_json::from_str(recorded).unwrap();
        let (host, name, at) = host_of(&value);
        host.cache(&name, recorded);
        if value["result"]["cniVersion"].as_str().unwrap() >= "0.4.0" {
            assert_silent(&host.net(&format!("check {at}")));
            assert_eq!(host.config("CHECK-fake")["prevResult"], value["result"]);
            assert_silent(&host.net(&format!("del {at}")));
            assert_eq!(host.config("DEL-fake")["prevResult"], value["result"]);
        } else {
            assert_silent(&host.net(&format!("del {at}")));
            assert_eq!(host.config("DEL-fake").get("prevResult"), None);
        }
        assert_eq!(host.cached_names(), [""; 0]);
    }
}

#[test]
fn files_of_libcni_are_listed_and_detached_without_a_network() {
    for recorded in RECORDED {
        let value: Value = serde_json::from_str(recorded).unwrap();
        let (host, name, _) = host_of(&value);
        host.cache(&name, recorded);
        fs::create_dir(host.0.join("net.d/mynet")).unwrap();
        fs::write(host.0.join("net.d/mynet/10.conf"), r#"{"type":"b"}"#).unwrap();
        host.with_runtime(|runtime, _| {
            let found = &runtime.cache.all().unwrap()[0];
            let record = found.record.clone().unwrap();
            let at = record.at.unwrap();
            assert_eq!(runtime.cache.record(&at.key).unwrap().unwrap().at, Some(at.clone()));
            let names = [at.key.network.as_str(), at.key.ifname.as_str(), at.netns.as_str()];
            assert_eq!(names, ["mynet", "eth0", "/run/netns/t"]);
            let args: Vec<_> = at.args.iter().map(|(key, value)| json!([key, value])).collect();
            assert_eq!(Value::from(args), value.get("cniArgs").cloned().unwrap_or(json!([])));
            let capability_args: Value =
                serde_json::from_str(&at.capability_args.to_text()).unwrap();
            assert_eq!(capability_args, value.get("capabilityArgs").cloned().unwrap_or(json!({})));
            let result = record.result.unwrap().unwrap();
            assert_eq!(result.cni_version(), value["result"]["cniVersion"]);

            // The document lacks the plugins from the directory, so a DEL by the document alone
            // would miss them.
            let alone = NetworkList::parse(record.document.clone()).unwrap();
            assert_eq!(alone.plugins.len(), 1);
            let whole = directory::of_document(record.document, &host.0.join("net.d")).unwrap();
            runtime.del(&whole, &at).unwrap();
        });
        assert_eq!((host.calls().as_str(), host.cached_names().len()), ("DEL b, DEL fake", 0));
    }
}

/// Other programs edit libcni's files: Multus changes the routes of a result in place.
#[test]
fn an_edited_result_counts() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    host.net(&format!("add net /x {ID}")).ok();
    let mut value: Value =
        serde_json::from_str(&fs::read_to_string(host.cached()).unwrap()).unwrap();
    value["result"]["routes"] = json!([{"dst": "0.0.0.0/0", "gw": "10.0.0.254"}]);
    host.cache("net-id-1-eth0", &serde_json::to_string_pretty(&value).unwrap());
    assert_silent(&host.net(&format!("check net /x {ID}")));
    assert_eq!(host.config("CHECK-b")["prevResult"]["routes"], value["result"]["routes"]);
}

/// CHECK would compare nothing without a result; DEL needs none, but does not hide what stays.
#[test]
fn an_unreadable_entry_fails_check_and_del_says_that_it_stays() {
    let host = Host::new("1.0.0");
    fs::create_dir_all(host.cached()).unwrap(); // a directory where the file should be
    let file = host.cached().display().to_string();
    let msg =
        format!("failed to get network \"net\" cached result: read {file}: not a regular file");
    assert_failed(&host.net(&format!("check net /x {ID}")), &msg, "");
    assert_eq!(host.calls(), "");
    let msg = format!("remove {file}: is a directory");
    let advice = "it is detached; another del removes the file, too";
    assert_failed(&host.net(&format!("del net /x {ID}")), &msg, advice);
}

#[test]
fn names_that_are_no_file_s_reach_no_plugin() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    let long = "n".repeat(200);
    host.network(&json!({"cniVersion": "1.0.0", "name": long, "plugins": [{"type": "a"}]}));
    let outcome = host.net(&format!("add {long} /x --container-id {}", "c".repeat(64)));
    let said = "the names of network, container and interface make 270 bytes";
    assert!(outcome.status == 1 && outcome.stderr.starts_with(said), "{outcome:?}");
    assert_eq!(host.calls(), "");
    host.net(&format!("add {long} /x --container-id {}", "c".repeat(49))).ok();

    for (wrong, status) in [
        ("add net /x --container-id ../../x", 2),
        ("add net /x -i ../x", 2),
        ("del ../net /x", 1),
        ("check net /x -i a/b", 2),
    ] {
        let outcome = host.net(wrong);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (status, ""), "{wrong}: {outcome:?}");
    }
    host.network(&json!({"cniVersion": "1.0.0", "name": "../net", "plugins": [{"type": "a"}]}));
    assert_eq!(host.net("add ../net /x").status, 1);
    assert_eq!(host.calls(), "ADD a");
}

#[test]
fn a_directory_is_made_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let host = Host::new("1.0.0");
    host.answer("ADD", "a", &result("10.0.0.1/24"), false);
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}]}));
    fs::remove_dir(host.0.join("cache")).unwrap();
    host.net(&format!("add net /x {ID}")).ok();
    let mode = |name: &str| fs::metadata(host.0.join(name)).unwrap().permissions().mode() & 0o777;
    let modes = ["cache", "cache/results", "cache/results/net-id-1-eth0"].map(mode);
    assert_eq!(modes, [0o700, 0o700, 0o600]);
    let key = Key::parse("net", "id-1", "eth0").unwrap();
    assert!(Cache::new(host.0.join("cache")).contains(&key).unwrap());
}
