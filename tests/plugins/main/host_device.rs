//! host-device moves a device of the host into a container; finding it and returning it have
//! modules of their own.

mod back;
mod beside;
pub mod failed_add;
pub mod found;
mod hidden;

use serde_json::{Value, json};

use crate::parallel::all_at_once;
use crate::support::attachment::{for_each_peer, for_ours, ips, with};
use crate::support::broken::{Break, assert_check_finds, breaks};
use crate::support::call::Peer;
use crate::support::contract::assert_dns_of_network_or_ipam;
use crate::support::netns::{Lab, Namespace};
use crate::support::networks::host_device::{
    await_carrier, conf, device, is_up, layer_two, leased,
};
use crate::support::traffic::assert_pings;

/// The hardware address of `dev0`.
pub const MAC: &str = "02:00:00:00:dd:00";

/// Expects that the container has the device under its new name, with the old name in the alias.
#[track_caller]
pub fn assert_is_inside(lab: &Lab, container: &Namespace, original: &str) {
    let link = container.link("eth0").expect("eth0 is in the container");
    assert_eq!((&link["address"], &link["ifalias"]), (&json!(MAC), &json!(original)));
    assert!(is_up(container, "eth0"));
    await_carrier(container, "eth0");
    assert!(lab.host.link(original).is_none(), "{original} has left the host");
}

/// Expects that the host has the device under its old name, without an alias.
#[track_caller]
pub fn assert_is_back(lab: &Lab, container: &Namespace) {
    let link = lab.host.link("dev0").expect("dev0 is on the host");
    assert_eq!((&link["address"], link.get("ifalias")), (&json!(MAC), None));
    assert!(container.link("eth0").is_none(), "eth0 has left the container");
}

#[test]
fn the_device_talks_with_its_peer_from_the_container() {
    for_each_peer("host-device", |lab| {
        device(lab);
        for container in [lab.container(), lab.container_of_process()] {
            let attachment = lab.attach(&container, &conf());
            let result = attachment.add();
            assert_is_inside(lab, &container, "dev0");
            assert_eq!(container.addresses("eth0"), ["10.40.0.2/24", "2001:db8:40::2/64"]);
            assert_pings(&container, "10.40.0.1");
            assert_pings(&container, "2001:db8:40::1");
            ips(&result).iter().for_each(|ip| assert_pings(&lab.outside, ip));
            assert_eq!(attachment.check(&result).ok(), Value::Null);
            attachment.del();
            assert_is_back(lab, &container);
        }
    });
}

#[test]
fn result_says_what_the_kernel_has() {
    for_each_peer("host-device", |lab| {
        device(lab);
        let container = lab.container();
        let interfaces = json!([{"name": "eth0", "mac": MAC, "sandbox": container.netns}]);
        let attachment = lab.attach(&container, &conf());
        let expected = json!({
            "cniVersion": "1.0.0",
            "interfaces": interfaces,
            "ips": [
                {"address": "10.40.0.2/24", "gateway": "10.40.0.1", "interface": 0},
                {"address": "2001:db8:40::2/64", "interface": 0},
            ],
            "routes": [{"dst": "10.99.0.0/16"}],
        });
        assert_eq!(attachment.add(), expected);
        assert_eq!(container.json("ip -j route show 10.99.0.0/16")[0]["gateway"], "10.40.0.1");
        attachment.del();
        let bare = lab.attach(&container, &layer_two()).add();
        assert_eq!(bare, json!({"cniVersion": "1.0.0", "interfaces": interfaces}));
    });
}

#[test]
fn layer_two_devices_are_up_and_carry_frames() {
    for_each_peer("host-device", |lab| {
        device(lab);
        for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let container = lab.container();
            let attachment =
                lab.attach(&container, &with(&layer_two(), json!({"cniVersion": version})));
            let result = attachment.add();
            assert_eq!(result.get("ips").filter(|ips| **ips != json!([])), None, "{version}");
            assert_is_inside(lab, &container, "dev0");
            container.sh("ip addr add 10.40.0.77/24 dev eth0");
            assert_pings(&container, "10.40.0.1");
            if version >= "0.4.0" {
                assert_eq!(attachment.check(&result).ok(), Value::Null);
            }
            attachment.del();
            assert_is_back(lab, &container);
        }
    });
}

/// Names belong to namespaces: links on the host and in the container do not conflict.
#[test]
fn names_that_others_have_are_no_obstacle() {
    for_each_peer("host-device", |lab| {
        device(lab);
        lab.host.sh("ip link add eth0 type veth peer name eth1");
        let container = lab.container();
        container.sh("ip link add dev0 type veth peer name other");
        let attachment = lab.attach(&container, &conf());
        attachment.add();
        assert_is_inside(lab, &container, "dev0");
        assert_pings(&container, "10.40.0.1");
        attachment.del();
        assert_is_back(lab, &container);
        assert!(container.link("dev0").is_some() && lab.host.link("eth0").is_some(), "theirs stay");
    });
}

#[test]
fn one_of_two_containers_gets_the_device_that_both_want() {
    for_each_peer("host-device", |lab| {
        for round in 0..5 {
            device(lab);
            let containers = [lab.container(), lab.container()];
            let attachments: Vec<_> =
                containers.iter().map(|c| lab.attach(c, &layer_two())).collect();
            let outcomes = all_at_once(&attachments, "ADD");
            let winners: Vec<usize> = (0..2).filter(|at| outcomes[*at].status == 0).collect();
            assert_eq!(winners.len(), 1, "round {round}: {outcomes:?}");
            let (winner, loser) = (winners[0], 1 - winners[0]);
            assert_is_inside(lab, &containers[winner], "dev0");
            assert!(
                containers[loser].link("eth0").is_none()
                    && containers[loser].link("dev0").is_none()
            );
            if lab.peer == Peer::Ours {
                attachments[loser].del();
            }
            assert_is_inside(lab, &containers[winner], "dev0");
            attachments[winner].del();
            assert_is_back(lab, &containers[winner]);
            lab.host.sh("ip link del dev0");
        }
    });
}

#[test]
fn dns_is_the_network_s_or_that_of_ipam() {
    // The reference reports only the network's DNS, and none without IPAM: see tests/differences.
    let alone =
        with(&layer_two(), json!({"cniVersion": "0.4.0", "dns": {"domain": "net.example"}}));
    for_ours("host-device", |lab| {
        device(lab);
        assert_dns_of_network_or_ipam(lab, &conf());
        assert_eq!(lab.attach(&lab.container(), &alone).add()["dns"], alone["dns"]);
    });
}

#[test]
fn check_finds_what_has_changed() {
    let route = Break::new("route removed", "ip route del 10.99.0.0/16", "10.99.0.0/16");
    let own = vec![route, Break::mac_changed(), Break::link_renamed()];
    let cases = breaks(["10.40.0.2/24", "2001:db8:40::2/64"], own);
    let lease = Break::new("lease removed", "true", "no address of network")
        .host("rm /var/lib/cni/networks/net1/10.40.0.2");
    for_each_peer("host-device", |lab| {
        for (case, conf) in cases.iter().map(|case| (case, conf())).chain([(&lease, leased())]) {
            device(lab);
            let container = lab.container();
            let attachment = lab.attach(&container, &conf);
            assert_check_finds(lab, &container, &attachment, case);
            attachment.try_del(); // the reference's fails if the link is missing
            lab.outside.try_sh("ip link del peer0");
        }
    });
}
