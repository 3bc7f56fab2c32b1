//! `net inspect` without a kernel.

use serde_json::json;

use super::{Site, assert_failed, result};

const SEVERAL: &str = "several attachments match; select one with --container-id or --ifname";

fn site() -> Site {
    let site = Site::with_lab();
    site.attached("lab", "one", "/nonexistent/red", &result(&["10.1.2.3/24"]));
    site
}

#[test]
fn everything_that_is_known_is_printed() {
    let site = site();
    let text = site.prints("inspect lab --container-id one");
    for line in ["namespace           gone\n", "config.plugins      {\"type\":\"slow\"}\n"] {
        assert!(text.contains(line), "{text}");
    }
    let mut told = site.json("inspect lab");
    told.as_object_mut().unwrap().remove("ageSeconds").unwrap();
    let expected = json!({
        "name": "one", "network": "lab", "containerId": "one", "ifname": "eth0",
        "netns": "/nonexistent/red", "namespace": "gone", "addresses": ["10.1.2.3/24"], "ports": [], "file": "/cache/results/lab-one-eth0",
        "args": "A=1", "capabilityArgs": {"mac": "02:00:00:00:00:01"},
        "config": {"cniVersion": "1.1.0", "name": "lab", "plugins": [{"type": "slow"}]},
        "result": result(&["10.1.2.3/24"]),
        "kernel": {"interface": "absent", "problem": "open netns \"/nonexistent/red\": no such file or directory"},
    });
    assert_eq!(told, expected);
}

#[test]
fn an_attachment_is_found_by_whatever_tells_it_from_the_others() {
    let site = site();
    let id = |line: &str| site.json(line)["containerId"].as_str().unwrap().to_owned();
    assert_eq!(id("inspect lab"), "one", "there is no other");
    site.attached("lab", "two", "/nonexistent/blue", &result(&[]));
    site.attached("lab", "cnitool-77383ca0a0715733ca6f", "", &result(&[]));
    site.attached("other", "two", "/nonexistent/blue", &result(&[]));
    assert_eq!(id("inspect lab --container-id two"), "two");
    site.attached("lab", "twofold", "/nonexistent/green", &result(&[]));
    assert_eq!(id("inspect lab --container-id two"), "two", "an id comes before a beginning");
    assert_eq!(id("inspect lab --container-id twof"), "twofold");
    std::fs::remove_file(site.at("cache/results/lab-twofold-eth0")).unwrap();
    assert_eq!(id("inspect lab /nonexistent/blue"), "two", "a runtime's id need not be known");
    let by_path = id("inspect lab /var/run/netns/testing");
    assert_eq!(by_path, "cnitool-77383ca0a0715733ca6f", "the id says the path");
    assert_eq!(id("inspect lab-two-eth0"), "two", "the file's name");
    let fitting = "lab-cnitool-77383ca0a0715733ca6f-eth0, lab-one-eth0, lab-two-eth0";
    assert_failed(&site.net("inspect lab"), SEVERAL, fitting);
    let recorded = "recorded: cnitool-7738, one, two";
    for line in ["inspect lab -i net1", "inspect lab blue", "inspect lab --container-id three"] {
        assert_failed(&site.net(line), "no such attachment", recorded);
    }
    assert_failed(&site.net("inspect labb"), "no such attachment", recorded);
    std::fs::remove_dir_all(site.at("cache")).unwrap();
    assert_failed(&site.net("inspect lab"), "no such attachment", "recorded: nothing");
}

/// Without a network the argument is a container.
#[test]
fn a_container_alone_is_found_in_any_network() {
    let site = site();
    site.attached("other", "twofold", "/run/netns/blue", &result(&[]));
    let id = |line: &str| site.json(line)["containerId"].as_str().unwrap().to_owned();
    for name in ["one", "o", "/nonexistent/red"] {
        assert_eq!(id(&format!("inspect {name}")), "one", "{name}");
    }
    for name in ["twofold", "two", "blue", "/var/run/netns/blue"] {
        assert_eq!(id(&format!("inspect {name}")), "twofold", "{name}");
    }
    assert_eq!(id(&format!("inspect {}", site.at("cache/results/lab-one-eth0"))), "one");
    assert_eq!(id("inspect lab --container-id on"), "one");
    site.attached("other", "one", "/nonexistent/red", &result(&[]));
    assert_failed(&site.net("inspect one"), SEVERAL, "lab-one-eth0, other-one-eth0");
    site.attached("other", "once", "", &result(&[]));
    assert_failed(&site.net("inspect on"), "several container ids begin with \"on\"", "once, one");
}

#[test]
fn a_broken_file_is_reported_by_its_name() {
    let site = site();
    site.cached("lab-torn-eth0", "{");
    let problem =
        "read /cache/results/lab-torn-eth0: EOF while parsing an object at line 1 column 1";
    let mut told = site.json("inspect lab-torn-eth0");
    told.as_object_mut().unwrap().remove("ageSeconds").unwrap();
    let expected = json!({
        "namespace": "unknown", "addresses": [], "ports": [],
        "file": "/cache/results/lab-torn-eth0", "problem": problem,
    });
    assert_eq!(told, expected);
    assert!(site.prints("inspect lab-torn-eth0").contains(&format!("problem     {problem}\n")));
}

#[test]
fn a_bare_result_without_names_is_printed_as_it_is() {
    let site = Site::with_lab();
    let bare = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.9.0.2/24"}});
    site.cached("gone-abc-eth0", &bare.to_string());
    let told = site.json("inspect gone-abc-eth0");
    assert_eq!(told["addresses"], json!(["10.9.0.2/24"]));
    assert_eq!(told["result"]["ip4"]["ip"], "10.9.0.2/24");
    assert_eq!(told["problem"], "no owner is recorded: gone-abc-eth0");
    assert_eq!((told.get("kernel"), told.get("network")), (None, None));
}
