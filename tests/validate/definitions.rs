//! `cni-multi validate` of NetworkAttachmentDefinitions, as kubectl prints them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::validate;
use crate::support::scratch::Scratch;

/// An object of this name with a configuration.
fn definition(name: &str, config: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": "shop", "annotations": {"other": "x"}},
        "spec": {"config": config},
    })
}

/// As Multus reads it: the name may come from the object, the device from an annotation.
#[test]
fn every_definition_of_a_list_is_checked_under_its_name() {
    let red = "{\n  \"cniVersion\": \"1.1.0\", \"name\": \"red\",\n  \"plugins\": [\n    { \"type\": \"bridge\", \"vlan\": 5000 }\n  ]\n}";
    let mut device = definition("nic", &json!(r#"{"cniVersion":"1.1.0","type":"host-device"}"#));
    device["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"] = json!("intel.com/nic");
    let listed = r#"{"cniVersion":"1.1.0","plugins":[{"type":"host-device"},{"type":"tunin"}]}"#;
    let mut listed = definition("nics", &json!(listed));
    listed["metadata"]["annotations"] = device["metadata"]["annotations"].clone();
    let items = json!([
        definition("red", &json!(red)),
        device,
        listed,
        definition("bare", &json!(r#"{"cniVersion":"1.1.0","type":"host-device"}"#)),
        definition("torn", &json!("{\n\"type\": \"bridge\"")),
        definition("empty", &json!("")),
        definition("object", &json!({"type": "bridge"})),
        {"kind": "ConfigMap", "metadata": {"name": "other"}},
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let outcome = validate(Path::new("/"), &["-"], list.to_string().as_bytes());
    assert_eq!((outcome.status, outcome.stderr.as_str()), (1, ""), "{outcome:?}");
    let told: Vec<&str> =
        outcome.stdout.lines().filter(|line| line.starts_with("<stdin>")).collect();
    let expected = [
        ("<stdin>[shop/red]:4:33: error: plugins[0].vlan: 5000 is out of range", "invalid-value"),
        ("<stdin>[shop/nics]:1:65: error: plugins[1].type: failed to find plugin", "no-plugin"),
        ("<stdin>[shop/bare]:1:1: error: ", "invalid-value"),
        ("<stdin>[shop/torn]:2:", "syntax"),
        ("<stdin>:1:", "not-read"),
        ("<stdin>:1:", "wrong-type"),
        ("<stdin>:1:", "not-read"),
    ];
    for (begin, code) in expected {
        let is_told =
            |line: &&&str| line.starts_with(begin) && line.ends_with(&format!("[{code}]"));
        assert!(told.iter().any(|line| is_told(&line)), "{begin} {code}: {told:#?}");
    }
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for name in ["\"shop/empty\" has no spec.config", "in \"shop/object\"", "ConfigMap \"other\""] {
        assert!(outcome.stdout.contains(name), "{name}: {}", outcome.stdout);
    }
    let shown = "    { \"type\": \"bridge\", \"vlan\": 5000 }\n";
    assert!(outcome.stdout.contains(shown), "{outcome:?}");
    assert!(outcome.stdout.ends_with("1 file, 5 errors, 2 warnings\n"), "{outcome:?}");
}

#[test]
fn one_definition_in_a_file_has_places_within_its_text() {
    let dir = Scratch::new();
    let config = r#"{"cniVersion":"1.1.0","type":"loopback","nmae":"x"}"#;
    fs::write(dir.join("nad.json"), definition("lo", &json!(config)).to_string()).unwrap();
    fs::create_dir(dir.join("lo")).unwrap();
    fs::write(dir.join("lo/10-x.conf"), "{").unwrap(); // of no list of this network
    let outcome = validate(Path::new(dir.text()), &["nad.json", "-o", "json"], b"");
    let findings = outcome.json()["findings"].clone();
    let at = |key: &str| findings[0][key].clone();
    assert_eq!(
        json!([at("file"), at("line"), at("column"), at("path"), at("code"), findings[1]]),
        json!(["nad.json[shop/lo]", 1, 41, "nmae", "unknown-key", null])
    );
    assert_eq!(outcome.status, 0);
}
