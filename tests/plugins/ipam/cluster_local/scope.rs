//! `"scope": "machine"`: what is in the files, whose the leases are, and a change of the scope.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{Net, subnet};
use crate::support::attachment::with;
use crate::support::call::Outcome;
use crate::support::scratch::Scratch;

fn check(net: &Net<'_>, id: &str, ip: &str) -> Outcome {
    let result = json!({"cniVersion": "1.1.0", "ips": [{"address": format!("{ip}/24")}]});
    net.call_with("CHECK", id, json!({"prevResult": result})).run()
}

fn gc(net: &Net<'_>, valid: &[&str]) {
    let valid: Vec<Value> =
        valid.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
    let changes = json!({"cni.dev/valid-attachments": valid});
    net.call_with("GC", "", changes).without("CNI_CONTAINERID").run().ok();
}

#[test]
fn a_lease_has_three_lines_and_the_realm_a_directory() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", with(&subnet("10.1.0.0/24"), json!({"realm": "blue"})));
    net.add("a");
    let lease = fs::read_to_string(data.join(".machine/blue/10.1.0.2")).unwrap();
    assert_eq!(lease, "a\r\neth0\r\nnet");
    assert!(!data.join("net").exists(), "there are no blocks");
}

/// Containers, and their interfaces, have the same names in both networks.
#[test]
fn del_gc_and_check_of_one_network_leave_the_leases_of_the_other() {
    let data = Scratch::new();
    let [red, blue] = ["red", "blue"].map(|name| Net::new(&data, name, subnet("10.1.0.0/24")));
    assert_eq!([red.add("a"), blue.add("a"), red.add("b")], ["10.1.0.2", "10.1.0.3", "10.1.0.4"]);
    assert_eq!(red.try_add("a").err().code, 102, "it has its address");
    check(&red, "a", "10.1.0.2").ok();
    check(&blue, "a", "10.1.0.3").ok();
    let error = check(&red, "a", "10.1.0.3").err();
    assert_eq!((error.code, error.details.as_str()), (103, "it holds 10.1.0.2"), "{error:?}");
    assert_eq!(check(&blue, "b", "10.1.0.4").err().code, 103);
    red.del("a");
    red.del("a");
    blue.del("b");
    assert_eq!((red.leases().len(), blue.leases().len()), (1, 1));
    gc(&blue, &["a"]);
    assert_eq!((red.leases().len(), blue.leases().len()), (1, 1));
    gc(&red, &["a"]);
    assert_eq!((red.leases().len(), blue.leases().len()), (0, 1));
    gc(&blue, &[]);
    assert_eq!(blue.leases().len(), 0);
}

/// An address that one network excludes, or has as its gateway, is the other's to allocate.
#[test]
fn exclusions_and_gateways_are_of_one_network() {
    let data = Scratch::new();
    let range = json!({"subnet": "10.1.0.0/29", "gateway": "10.1.0.6", "exclude": ["10.1.0.2"]});
    let red = Net::new(&data, "red", json!({"ranges": [[range]]}));
    let blue = Net::new(&data, "blue", subnet("10.1.0.0/29"));
    assert_eq!(red.add_all("a b c d"), ["10.1.0.1", "10.1.0.3", "10.1.0.4", "10.1.0.5"]);
    let given: BTreeSet<String> = blue.add_all("a b").into_iter().collect();
    assert_eq!(given, ["10.1.0.2", "10.1.0.6"].map(str::to_owned).into());
    for (net, address) in [(&red, "10.1.0.2"), (&red, "10.1.0.6"), (&blue, "10.1.0.1")] {
        let wanted = json!({"runtimeConfig": {"ips": [address]}});
        assert_eq!(net.call_with("ADD", "x", wanted).run().err().code, 101, "{address}");
    }
}

/// The names of the files in a directory and below that hold an address or a name.
fn holding(dir: &Path) -> Vec<String> {
    const STAYING: [&str; 2] = ["lock", "boot"];
    let mut found = vec![];
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            found.extend(holding(&entry.path()));
        } else if !STAYING.contains(&name.as_str()) && !name.starts_with("last_reserved_ip") {
            found.push(name);
        }
    }
    found
}

#[test]
fn a_failed_add_leaves_nothing() {
    let data = Scratch::new();
    let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/29"}]]);
    let net = Net::new(&data, "net", json!({"ranges": ranges, "sticky": "arg:VM"}));
    let add = |id: &str, vm: &str, ip: &str| {
        let wanted = json!({"runtimeConfig": {"ips": [ip]}});
        net.call_with("ADD", id, wanted).env("CNI_ARGS", format!("VM={vm}")).run()
    };
    // The address is the gateway of the second set.
    assert_eq!(add("a", "one", "10.2.0.1").err().code, 101);
    assert_eq!(holding(Path::new(data.text())), [""; 0]);
    add("a", "one", "10.2.0.3").ok();
    assert_eq!(net.leases().len(), 2);
}

/// DEL and GC work whatever the configuration says now.
#[test]
fn leases_of_both_scopes_are_released() {
    for ipam in [
        subnet("10.1.0.0/24"),
        with(&subnet("10.1.0.0/24"), json!({"scope": "cluster"})),
        json!({"scope": 5, "ranges": "nonsense"}),
    ] {
        for command in ["DEL", "GC"] {
            let data = Scratch::new();
            // A lease as with the scope `cluster`, without blocks.
            fs::create_dir_all(data.join("net")).unwrap();
            fs::write(data.join("net/10.1.0.2"), "a\r\neth0").unwrap();
            let machine = Net::new(&data, "net", subnet("10.1.0.0/24"));
            assert_eq!(machine.add("a"), "10.1.0.2", "leases of the other scope are not seen");
            let now = Net::new(&data, "net", ipam.clone());
            match command {
                "DEL" => now.del("a"),
                _ => gc(&now, &["b"]),
            }
            assert_eq!(holding(Path::new(data.text())), [""; 0], "{command} {ipam}");
        }
    }
}
