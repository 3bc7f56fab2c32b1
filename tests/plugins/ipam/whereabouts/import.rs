//! `cni-multi ipam import --whereabouts`: what attachments of this machine hold in a cluster.

use std::fs;

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::call::binary;
use crate::support::netns::Lab;
#[cfg(feature = "cluster")]
use crate::support::node::Node;
use crate::support::synced::{Synced, attach, attach_another};

/// The leases of a network with the scope `machine`.
const STORE: &str = "/var/lib/cni/cluster-local/.machine/default";

/// The network as the original served it. Its program is not here: the addresses are assigned.
fn before(address: &str) -> Value {
    json!({"type": "bridge", "bridge": "pods0", "ipam": {"type": "static",
        "addresses": [{"address": address}]}})
}

fn after() -> Value {
    json!({"type": "bridge", "bridge": "pods0", "ipam": {"type": "whereabouts", "scope": "machine",
        "range": "10.86.0.225/28", "ipRanges": [{"range": "fd00:86::/64"}]}})
}

fn configure(lab: &Lab, plugin: &Value) {
    let list = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [plugin]});
    fs::write(lab.path("/run/net.d/pods.conflist"), list.to_string()).unwrap();
}

/// The output of kubectl for allocations of the IPv4 range.
fn pools(lab: &Lab, allocations: Value) {
    let pool = json!({"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": {"name": "10.86.0.224-28", "namespace": "kube-system"},
        "spec": {"range": "10.86.0.224/28", "allocations": allocations}});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [pool]});
    fs::write(lab.path("/run/ippools.json"), list.to_string()).unwrap();
}

/// Stdout of a command that succeeds.
#[track_caller]
fn prints(lab: &Lab, line: &str) -> String {
    lab.host.sh(&format!("NETCONFPATH=/run/net.d {} ipam {line}", binary().display()))
}

/// A command fails, and says this.
#[track_caller]
fn fails(lab: &Lab, line: &str, words: &[&str]) {
    let line = format!("NETCONFPATH=/run/net.d {} ipam {line}", binary().display());
    let output = lab.host.try_sh(&line);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]), "{line}: {said}");
    assert!(words.iter().all(|words| said.contains(words)), "{line}: {said}");
}

fn held(id: &str) -> Value {
    json!({"id": id, "podref": "shop/till", "ifname": "eth0"})
}

#[test]
fn a_lost_lease_is_written_again() {
    for_ours("bridge", |lab| {
        let assigned = json!({"ipam": {"addresses": [{"address": "10.86.0.230/28"}]}});
        let synced = attach(lab, &[with(&after(), assigned)], "");
        let lost = format!("rm {STORE}/10.86.0.225");
        synced.assert_repaired(&lost, &["lease 10.86.0.225 again"]);
        assert!(!lab.path(STORE).join("10.86.0.230").exists(), "it is assigned");
        synced.del();
    });
}

/// A container with 10.86.0.225 of the original, and the configuration of now.
fn moved<'l>(lab: &'l Lab, scope: &str) -> Synced<'l> {
    let synced = attach(lab, &[before("10.86.0.225/28")], "");
    configure(lab, &with(&after(), json!({"ipam": {"scope": scope}})));
    synced
}

fn id_of(lab: &Lab) -> String {
    let records = lab.host.sh("cat /var/lib/cni/results/*");
    let record: Value = serde_json::from_str(&records).unwrap();
    record["containerId"].as_str().unwrap().to_owned()
}

#[test]
fn a_machine_takes_over_what_its_attachments_hold() {
    for_ours("bridge", |lab| {
        let synced = moved(lab, "machine");
        let id = id_of(lab);
        pools(lab, json!({"1": held(&id), "2": held("of-another-node"), "3": held("gone")}));
        let rest = "left out 2: no attachment of this machine holds them\n";
        let line = "import --whereabouts --dry-run /run/ippools.json";
        assert_eq!(prints(lab, line), format!("pods: would import 1, already there 0\n{rest}"));
        assert!(!lab.path(STORE).exists());
        let line = "import --whereabouts /run/ippools.json";
        assert_eq!(prints(lab, line), format!("pods: imported 1, already there 0\n{rest}"));
        assert_eq!(prints(lab, line), format!("pods: imported 0, already there 1\n{rest}"));
        synced.check().ok();
        assert_eq!(attach_another(lab, "").ips(), ["10.86.0.226", "fd00:86::1"]);
        let listed: Value = serde_json::from_str(&prints(lab, "ls -o json")).unwrap();
        let rows: Vec<&Value> = listed["leases"].as_array().unwrap().iter().collect();
        let ipams: Vec<&str> = rows.iter().map(|row| row["ipam"].as_str().unwrap()).collect();
        assert_eq!(ipams, ["whereabouts"; 3], "{listed}");
        synced.del();
        assert!(!lab.path(STORE).join("10.86.0.225").exists());
    });
}

#[test]
fn an_import_that_is_not_whole_changes_nothing() {
    for_ours("bridge", |lab| {
        let _synced = moved(lab, "machine");
        let id = id_of(lab);
        let line = "import --whereabouts /run/ippools.json";
        pools(lab, json!({"1": held(&id), "99": held("x")}));
        let offset = "items[0].spec.allocations.99: \"99\" is no offset in 10.86.0.224/28";
        fails(lab, line, &[offset]);
        pools(lab, json!({"1": held(&id)}));
        lab.host.sh("mkdir /run/other.d && mv /run/net.d/pods.conflist /run/other.d");
        fails(lab, line, &["which is not configured here", "--conf-dir"]);
        configure(lab, &with(&after(), json!({"ipam": {"range": "10.85.0.0/28"}})));
        fails(lab, line, &["10.86.0.225 is not in the ranges of the network"]);
        assert!(!lab.path(STORE).join("10.86.0.225").exists());
        let elsewhere = format!("{line} --conf-dir /run/other.d");
        assert!(prints(lab, &elsewhere).starts_with("pods: imported 1, already there 0\n"));
    });
}

/// On a node of a cluster the daemon claims the address when it starts.
#[test]
#[cfg(feature = "cluster")]
fn a_node_of_a_cluster_takes_over_what_its_attachments_hold() {
    let Some((_etcd, [one])) = Node::cluster() else { return };
    one.kill();
    let synced = moved(&one.lab, "cluster");
    pools(&one.lab, json!({"1": held(&id_of(&one.lab)), "2": held("of-another-node")}));
    let rest = "left out 1: no attachment of this machine holds them\n";
    let line = "import --whereabouts --dry-run /run/ippools.json";
    assert_eq!(prints(&one.lab, line), format!("pods: would import 1, already there 0\n{rest}"));
    let line = "import --whereabouts /run/ippools.json";
    assert_eq!(prints(&one.lab, line), format!("pods: imported 1, already there 0\n{rest}"));
    one.start();
    one.wait_until(|node| node.blocks("pods").iter().any(|(_, state)| state == "active"));
    fails(&one.lab, line, &["stop the daemon first"]);
    synced.check().ok();
    assert_eq!(attach_another(&one.lab, "").ips().len(), 2);
}

#[test]
fn other_networks_are_left_out_of_the_import_of_one() {
    for_ours("bridge", |lab| {
        let _synced = moved(lab, "machine");
        pools(lab, json!({"1": held(&id_of(lab))}));
        let said = prints(lab, "import --whereabouts other /run/ippools.json");
        assert!(said.ends_with("left out 1: of other networks\n"), "{said}");
        assert!(!lab.path(STORE).exists());
        fs::write(lab.path("/run/ippools.json"), "{}").unwrap();
        let line = "import --whereabouts /run/ippools.json";
        fails(lab, line, &["/run/ippools.json: items: missing"]);
    });
}
