//! `cni-multi example`: what it prints validates, for each plugin and for every two, and attaches a
//! namespace where the kernel has the links.

use std::fs;
use std::process::{Command, Output};

use cni_multi::plugin::{Entry, Kind};
use cni_multi::registry::PLUGINS;
use serde_json::Value;

use crate::support::call::{Peer, binary, farm};
use crate::support::netns::Lab;
use crate::support::scratch::Scratch;

fn example(names: &[&str]) -> Output {
    Command::new(binary()).arg("example").args(names).output().unwrap()
}

#[track_caller]
fn printed(names: &[&str]) -> String {
    let output = example(names);
    assert!(output.status.success() && output.stderr.is_empty(), "{names:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(names: &[&str]) -> String {
    let output = example(names);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{names:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The types of the plugins of a list, each with that of its IPAM plugin.
fn types(list: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(list).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let plugins = list["plugins"].as_array().unwrap();
    plugins.iter().flat_map(|it| [text(&it["type"]), text(&it["ipam"]["type"])]).collect()
}

/// Whether the two cannot be in one list.
fn exclude_each_other(one: &Entry, other: &Entry) -> bool {
    let are_two = one.kind == other.kind && one.kind != Kind::Meta && one.name != other.name;
    let names = [one.name, other.name];
    let without_ipam = names.iter().any(|it| ["loopback", "flannel"].contains(it))
        && [one, other].iter().any(|it| it.kind == Kind::Ipam);
    are_two || without_ipam || names.contains(&"ptp") && names.contains(&"dhcp")
}

#[test]
fn every_two_plugins_make_a_valid_list_or_none() {
    let dir = Scratch::new();
    let mut count = 0;
    for one in PLUGINS {
        for other in PLUGINS {
            if exclude_each_other(one, other) {
                assert!(!refused(&[one.name, other.name]).is_empty());
                continue;
            }
            let list = printed(&[one.name, other.name]);
            for name in [one.name, other.name] {
                assert!(types(&list).iter().any(|there| there == name), "{name}: {list}");
            }
            fs::write(dir.join(&format!("{count}.conflist")), list).unwrap();
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
    for file in fs::read_dir(dir.join("")).unwrap().map(|entry| entry.unwrap().path()) {
        let output = Command::new(binary())
            .args(["validate", "--strict", "--plugin-path", farm().to_str().unwrap()])
            .arg(&file)
            .output()
            .unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn plugins_are_in_the_order_of_a_list() {
    let list = types(&printed(&["portmap", "static", "tuning", "vlan"]));
    assert_eq!(list, ["vlan", "static", "tuning", "", "portmap", ""]);
    assert_eq!(types(&printed(&["firewall"])), ["bridge", "host-local", "firewall", ""]);
    assert_eq!(types(&printed(&["loopback"])), ["loopback", ""]);
}

/// What needs no other link, with plugins that change the interface.
#[test]
fn an_example_attaches_a_namespace() {
    let lab = Lab::new(Peer::Ours);
    for names in [&["bridge", "portmap", "firewall", "tuning"][..], &["ptp", "sbr", "static"]] {
        let container = lab.container();
        let (list, binary) = (printed(names), binary());
        let name = serde_json::from_str::<Value>(&list).unwrap()["name"].to_string();
        let script = format!(
            "mkdir -p /run/net.d; cat >/run/net.d/x.conflist <<'END'\n{list}END\n\
             for verb in add check del; do {} net $verb {name} {} \
             --conf-dir /run/net.d --cache-dir /run/cache || exit 1; done",
            binary.display(),
            container.netns,
        );
        assert!(lab.host.sh(&script).contains("10.88.0.2/24"), "{names:?}");
        assert!(lab.host.link("cni0").is_some() || names[0] == "ptp", "{names:?}");
    }
}
