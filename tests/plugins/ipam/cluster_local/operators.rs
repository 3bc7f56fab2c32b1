//! The commands of operators, and repairs.

use serde_json::{Value, json};

use crate::support::attachment::for_ours;
use crate::support::call::binary;
use crate::support::netns::Lab;
use crate::support::synced::{attach, attach_another};

const STORE: &str = "/var/lib/cni/cluster-local/pods";

fn bridge(ipam: &str) -> Value {
    json!({"type": "bridge", "bridge": "pods0", "ipam": {"type": ipam, "ranges": [[{"subnet": "10.48.0.0/24"}]]}})
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
