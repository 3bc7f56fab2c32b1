//! ADD of a whole network: what each plugin receives, and what is printed and cached.

use std::fs;

use serde_json::{Value, json};

use super::{Host, ID, assert_failed, result};

#[test]
fn add_chains_results_and_prints_and_keeps_the_last() {
    let host = Host::new("1.0.0");
    host.answer("ADD", "a", &result("10.0.0.1/24"), false);
    host.answer("ADD", "b", &result("10.0.0.2/24"), false);
    host.answer("ADD", "c", r#"{"ips":[{"address":"10.0.0.3/24"}]}"#, false);
    let call = host.call(&format!("add net /run/netns/t {ID} --args K=V;L=W"));
    let outcome = call
        .env("CAP_ARGS", r#"{"mac":"02:00:00:00:00:01","ips":["10.9.9.9"]}"#)
        .env("CNI_CONTAINERID", "stale")
        .run();
    assert_eq!(
        outcome.stdout,
        "{\n    \"cniVersion\": \"1.0.0\",\n    \"ips\": [\n        {\n            \"address\": \"10.0.0.3/24\"\n        }\n    ]\n}"
    );
    assert_eq!((outcome.status, host.calls().as_str()), (0, "ADD a, ADD b, ADD c"));

    let config = |plugin: &str| host.config(&format!("ADD-{plugin}"));
    let declared = json!({"mac": "02:00:00:00:00:01"}); // and supplied
    assert_eq!(config("a")["runtimeConfig"], declared);
    assert_eq!((config("a").get("prevResult"), config("b").get("runtimeConfig")), (None, None));
    let of_b = [&config("b")["name"], &config("b")["cniVersion"]].map(Value::clone);
    assert_eq!(of_b, [json!("net"), json!("1.0.0")]);
    let of_a: Value = serde_json::from_str(&result("10.0.0.1/24")).unwrap();
    assert_eq!(config("b")["prevResult"], of_a);
    assert_eq!(config("c")["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    let bin = host.0.join("bin");
    let expected = format!(
        "CNI_ARGS=K=V;L=W\nCNI_COMMAND=ADD\nCNI_CONTAINERID=id-1\nCNI_IFNAME=eth0\nCNI_NETNS=/run/netns/t\nCNI_PATH={}\n",
        bin.display()
    );
    assert_eq!((host.env("ADD-a"), host.env("ADD-c")), (expected.clone(), expected));

    let cached: Value = serde_json::from_str(&fs::read_to_string(host.cached()).unwrap()).unwrap();
    assert_eq!([&cached["kind"], &cached["netns"]], ["cniCacheV1", "/run/netns/t"]);
    assert_eq!(cached["cniArgs"], json!([["K", "V"], ["L", "W"]]));
    assert_eq!(cached["result"], outcome.json());
}

#[test]
fn each_interface_has_a_cache_file_and_the_id_is_cnitool_s() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    for line in ["add net /var/run/netns/testing", "add net /var/run/netns/testing -i net1"] {
        assert_eq!(host.net(line).status, 0);
    }
    let names = ["eth0", "net1"].map(|it| format!("net-cnitool-77383ca0a0715733ca6f-{it}"));
    assert_eq!(host.cached_names(), names);
}

#[test]
fn a_result_of_another_version_is_converted_for_the_next_plugin() {
    let host = Host::new("1.0.0");
    host.answer("ADD", "a", r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}"#, false);
    let outcome = host.net(&format!("add net /x {ID}"));
    let begin = "plugin type=\"b\" name=\"own\" failed (add): failed to unmarshal raw result: ";
    assert!(
        outcome.status == 1 && outcome.stderr.starts_with(begin),
        "b printed nothing: {outcome:?}"
    );
    let converted: Value = serde_json::from_str(&result("10.0.0.1/24")).unwrap();
    assert_eq!(host.config("ADD-b")["prevResult"], converted);
}

#[test]
fn a_missing_plugin_shows_before_anything_is_done() {
    let host = Host::new("1.0.0");
    let bin = host.0.join("bin");
    fs::remove_file(bin.join("c")).unwrap();
    let missing = format!("failed to find plugin \"c\" in path [{}]", bin.display());
    let there = "there are a, b, bandwidth, bond, bridge, cluster-local, dhcp, dummy, firewall, flannel and 16 more";
    for (verb, what) in [("add", "add"), ("del", "delete")] {
        let msg = format!("plugin type=\"c\" failed ({what}): {missing}");
        assert_failed(&host.net(&format!("{verb} net /x {ID}")), &msg, there);
    }
    assert_eq!(host.calls(), "");
}

#[test]
fn a_busy_file_and_one_that_cannot_run_are_reported() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    let b = host.0.join("bin/b");
    let open = fs::File::options().append(true).open(&b).unwrap();
    let outcome = std::thread::scope(|scope| {
        let add = scope.spawn(|| host.net(&format!("add net /x {ID}")));
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(open);
        add.join().unwrap()
    });
    outcome.ok();
    assert_eq!(host.calls(), "ADD a, ADD b, ADD c");
    assert_eq!(host.net(&format!("del net /x {ID}")).status, 0);
    host.calls();

    fs::set_permissions(&b, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let outcome = host.net(&format!("add net /x {ID}"));
    let said = format!(
        "plugin type=\"b\" name=\"own\" failed (add): netplugin failed with no error message: \
         fork/exec {}: permission denied\n",
        b.display()
    );
    assert!(outcome.stderr.starts_with(&said), "{outcome:?}");
    for part in ["undo: ", "failed (delete): "] {
        assert!(outcome.stderr.contains(part), "{outcome:?}");
    }
    assert_eq!(host.calls(), "ADD a, DEL c, DEL a", "all but the one that cannot");
}

#[test]
fn a_plugin_may_be_there_twice() {
    let host = Host::new("1.0.0");
    let plugins = json!([{"type": "a", "n": 1}, {"type": "a", "n": 2}]);
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}));
    host.answer_adds();
    host.net(&format!("add net /x {ID}")).ok();
    assert_eq!((host.calls().as_str(), &host.config("ADD-a")["n"]), ("ADD a, ADD a", &json!(2)));
    assert_eq!(host.net(&format!("del net /x {ID}")).status, 0);
    assert_eq!((host.calls().as_str(), &host.config("DEL-a")["n"]), ("DEL a, DEL a", &json!(1)));
}

/// A plugin receives its own object and the runtime's additions, and nothing else of the list.
#[test]
fn a_plugin_gets_its_configuration_and_the_specified_additions() {
    let host = Host::new("1.1.0");
    host.answer_adds();
    let plugin = json!({"type": "a", "name": "own", "cniVersion": "0.1.0", "capabilities": {"mac": true, "ips": true, "x": false},
        "runtimeConfig": {"stale": 1}, "cni.dev/unknown": {"a": [1]}, "big": 18_446_744_073_709_551_615_u64, "args": {"labels": []}});
    host.network(&json!({"cniVersion": "1.1.0", "name": "net", "args": {"podman_labels": {}}, "plugins": [plugin, {"type": "b", "runtimeConfig": {"kept": 1}}]}));
    let supplied = r#"{"mac":"m","x":1,"other":2,"portMappings":[]}"#;
    host.call(&format!("add net /x {ID}")).env("CAP_ARGS", supplied).run().ok();
    let expected = json!({"type": "a", "name": "net", "cniVersion": "1.1.0", "runtimeConfig": {"mac": "m"},
        "cni.dev/unknown": {"a": [1]}, "big": 18_446_744_073_709_551_615_u64, "args": {"labels": []}});
    assert_eq!(host.config("ADD-a"), expected);
    let kept = host.config("ADD-b")["runtimeConfig"].clone();
    assert_eq!(kept, json!({"kept": 1}), "nothing to pass leaves what was there");
    assert!(!fs::read_to_string(host.0.join("ADD-a.stdin")).unwrap().contains("capabilities"));
}

/// Every name is validated before any plugin runs.
#[test]
fn names_that_no_attachment_can_have_run_nothing() {
    let host = Host::new("1.0.0");
    for arguments in
        ["--container-id some-%%id", "-i 1234567890123456", "-i .", "-i ..", "-i a/b", "-i a:b"]
    {
        let outcome = host.net(&format!("add net /x {arguments}"));
        assert_eq!((outcome.status, outcome.stdout.as_str()), (2, ""), "{arguments}");
    }
    assert_eq!(host.calls(), "");
}

/// A network version that does not exist, with plugins that accept it.
#[test]
fn a_result_with_no_form_in_the_network_s_version_is_undone() {
    let host = Host::new("1.2.3");
    host.answer_adds();
    let outcome = host.net(&format!("add net /x {ID}"));
    assert_failed(
        &outcome,
        "plugin type=\"a\" failed (add): no converter for CNI result version 1.0.0 to 1.2.3",
        "what was done has been undone",
    );
    assert_eq!(host.calls(), "ADD a, DEL c, DEL b, DEL a");
}
