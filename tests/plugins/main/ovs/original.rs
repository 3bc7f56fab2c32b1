//! The original's state: its ports, and the files that it keeps.

use serde_json::{Value, json};

use super::on_a_node;
use crate::support::attachment::{interface, with};
use crate::support::netns::{Container, Lab};
use crate::support::networks::ovs::{column, conf, ports};
use crate::support::snapshot::Watch;

const CACHE: &str = "/var/lib/cni/ovs-cni/cache";

/// Makes what the original makes: its pair, its rows and its file.
fn attach_as_the_original(lab: &Lab, container: &Container, name: &str) {
    let netconf = with(&conf(), json!({"socket_file": "", "vlan": null}));
    let kept =
        json!({"Netconf": netconf, "OrigIfName": "", "UserspaceMode": false, "VdpaType": ""});
    lab.host.sh(&format!(
        "set -e
         ip link add {name} type veth peer name eth0 netns {netns_name}
         ovs-vsctl --no-wait add-port ovs0 {name} -- set port {name} vlan_mode=access tag=3 \
            external_ids:contPodUid='\"\"' external_ids:contIface=eth0 \
            external_ids:contNetns={netns} external_ids:owner=ovs-cni.network.kubevirt.io
         mkdir -p -m 700 {CACHE} && echo '{kept}' >{CACHE}/{id}-eth0",
        netns_name = container.netns.rsplit('/').next().unwrap(),
        netns = container.netns,
        id = container.id,
    ));
}

#[test]
fn the_kept_file_is_the_original_s() {
    on_a_node(|lab| {
        let container = lab.container();
        let ovs = lab.attach(&container, &with(&conf(), json!({"vlan": 3})));
        let result = ovs.add();
        let path = format!("{CACHE}/{}-eth0", container.id);
        let kept: Value = serde_json::from_str(&lab.host.sh(&format!("cat {path}"))).unwrap();
        let netconf = with(&ovs.conf, json!({"socket_file": ""}));
        assert_eq!(
            kept,
            json!({"Netconf": netconf, "OrigIfName": "", "UserspaceMode": false, "VdpaType": ""})
        );
        assert_eq!(lab.host.sh(&format!("stat -c '%a' {path} {CACHE}")), "600\n700\n");
        // The original finds the port by these three.
        let ids = column(lab, "port", (&interface(&result, 0), "external_ids"));
        for id in ["contIface=eth0", "owner=ovs-cni.network.kubevirt.io", "contNetns="] {
            assert!(ids.contains(id), "{ids}");
        }
        ovs.del();
        assert_eq!(lab.host.sh(&format!("ls -A {CACHE}")), "");
    });
}

#[test]
fn del_removes_what_the_original_attached() {
    on_a_node(|lab| {
        let warm = lab.attach(&lab.container(), &conf());
        warm.add();
        warm.del();
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        attach_as_the_original(lab, &container, "vethabcdef01");
        lab.attach(&container, &conf()).del();
        before.assert_unchanged("the original's ADD");
        // Its namespace has gone, and left two rows of one path: the original deletes neither.
        attach_as_the_original(lab, &container, "vethabcdef01");
        lab.host.sh(&format!(
            "ovs-vsctl --no-wait add-port ovs0 vethabcdef02 -- set port vethabcdef02 external_ids:contIface=eth0 \
             external_ids:contNetns={} external_ids:owner=ovs-cni.network.kubevirt.io",
            container.netns
        ));
        lab.attach(&container, &conf()).del();
        before.assert_unchanged("two rows of the original");
    });
}

/// The path of a namespace may be another container's by now.
#[test]
fn without_its_file_a_port_of_the_original_stays() {
    on_a_node(|lab| {
        let container = lab.container();
        attach_as_the_original(lab, &container, "vethabcdef01");
        lab.attach(&container, &conf()).id("another").del();
        assert_eq!(ports(lab), ["vethabcdef01"]);
    });
}

#[test]
fn gc_removes_files_of_stale_attachments_only() {
    on_a_node(|lab| {
        let [first, second] = [lab.container(), lab.container()];
        attach_as_the_original(lab, &first, "vethabcdef01");
        attach_as_the_original(lab, &second, "vethabcdef02");
        lab.host.sh(&format!(
            "sed s/net1/net2/ {CACHE}/{0}-eth0 >{CACHE}/other-eth0; echo x >{CACHE}/torn-eth0",
            first.id
        ));
        lab.attach(&first, &conf()).gc(&[(&first.id, "eth0")]).ok();
        let left = format!("{}-eth0\nother-eth0\ntorn-eth0\n", first.id);
        assert_eq!(lab.host.sh(&format!("ls {CACHE}")), left);
    });
}
