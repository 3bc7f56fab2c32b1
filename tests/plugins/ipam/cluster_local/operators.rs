//! The commands of operators, and repairs.

use serde_json::{Value, json};

use crate::support::attachment::for_ours;
use crate::support::call::binary;
use crate::support::netns::Lab;
use crate::support::synced::{attach, attach_another};

const STORE: &str = "/var/lib/cni/cluster-local/.machine/default";

fn bridge(ipam: &str) -> Value {
    json!({"type": "bridge", "bridge": "pods0", "ipam": {"type": ipam, "scope": "machine",
        "ranges": [[{"subnet": "10.48.0.0/24"}]]}})
}

/// Stdout of `cni-multi ipam LINE`.
#[track_caller]
fn ipam(lab: &Lab, line: &str) -> String {
    lab.host.sh(&format!("NETCONFPATH=/run/net.d {} ipam {line}", binary().display()))
}

#[test]
fn a_lost_lease_is_written_again() {
    for_ours("bridge", |lab| {
        let synced = attach(lab, &[bridge("cluster-local")], "");
        synced.assert_repaired(&format!("rm {STORE}/10.48.0.2"), &["lease 10.48.0.2 again"]);
        synced.del();
    });
}

#[test]
fn leases_are_listed_freed_exported_and_imported() {
    for_ours("bridge", |lab| {
        let synced = attach(lab, &[bridge("cluster-local")], "");
        let listed: Value = serde_json::from_str(&ipam(lab, "ls pods -o json")).unwrap();
        assert_eq!(listed["leases"][0]["address"], "10.48.0.2", "{listed}");
        let exported = ipam(lab, "export pods");
        assert!(exported.contains("\"cluster-local\""), "{exported}");
        synced.del();
        let held = attach_another(lab, "");
        assert_eq!(held.ips(), ["10.48.0.3"]);
        std::fs::write(lab.path("/run/leases.json"), &exported).unwrap();
        assert_eq!(ipam(lab, "import /run/leases.json"), "pods: imported 1, already there 0\n");
        lab.host.sh(&format!("grep eth0 {STORE}/10.48.0.2"));
        let metrics = format!("NETCONFPATH=/run/net.d {} metrics", binary().display());
        let range = r#"cni_multi_range_held{network="pods",ipam="cluster-local""#;
        assert!(lab.host.sh(&metrics).contains(range));
    });
}

#[test]
fn leases_of_a_network_without_a_configuration_are_listed_and_freed() {
    for_ours("bridge", |lab| {
        let _synced = attach(lab, &[bridge("cluster-local")], "");
        lab.host.sh("rm /run/net.d/pods.conflist");
        lab.host.sh(&format!("printf 'gone\\r\\neth0\\r\\nold' >{STORE}/10.48.0.9"));
        let listed: Value = serde_json::from_str(&ipam(lab, "ls -o json")).unwrap();
        let rows = listed["leases"].as_array().unwrap().iter();
        let rows: Vec<_> = rows.map(|row| [&row["network"], &row["address"]]).collect();
        assert_eq!(rows, [["old", "10.48.0.9"], ["pods", "10.48.0.2"]], "{listed}");
        assert!(ipam(lab, "free old 10.48.0.9 --force").starts_with("freed 10.48.0.9"));
        assert!(!lab.path(STORE).join("10.48.0.9").exists());
    });
}

/// The document names the plugin: with another name in it, leases move from host-local.
#[test]
fn leases_of_host_local_are_taken_over() {
    for_ours("bridge", |lab| {
        let synced = attach(lab, &[bridge("host-local")], "");
        let exported = ipam(lab, "export pods").replace("host-local", "cluster-local");
        std::fs::write(lab.path("/run/leases.json"), &exported).unwrap();
        let list =
            json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [bridge("cluster-local")]});
        std::fs::write(lab.path("/run/net.d/pods.conflist"), list.to_string()).unwrap();
        assert_eq!(ipam(lab, "import /run/leases.json"), "pods: imported 1, already there 0\n");
        assert_eq!(attach_another(lab, "").ips(), ["10.48.0.3"]);
        synced.check().ok();
    });
}
