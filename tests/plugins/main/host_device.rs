//! host-device moves a device of the host into a container; finding it and returning it have
//! modules of their own.

mod back;
pub mod failed_add;
pub mod found;
mod hidden;

use serde_json::{Value, json};

use crate::parallel::all_at_once;
use crate::support::attachment::{for_each_peer, ips, with};
use crate::support::call::Peer;
use crate::support::netns::{Lab, Namespace};
use crate::support::networks::host_device::{await_carrier, conf, device, is_up, layer_two};
use crate::support::peers::each_case;
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

fn the_device_talks_with_its_peer_from_the_container(lab: &Lab) {
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
}

fn result_says_what_the_kernel_has(lab: &Lab) {
    device(lab);
    let (container, attachment, result) = lab.added(&conf());
    let own = json!([{"name": "eth0", "mac": MAC, "sandbox": container.netns}]);
    let bare = json!({"cniVersion": "1.0.0", "interfaces": own});
    let addresses = json!({
        "ips": [
            {"address": "10.40.0.2/24", "gateway": "10.40.0.1", "interface": 0},
            {"address": "2001:db8:40::2/64", "interface": 0},
        ],
        "routes": [{"dst": "10.99.0.0/16"}],
    });
    assert_eq!(result, with(&bare, addresses));
    assert_eq!(container.json("ip -j route show 10.99.0.0/16")[0]["gateway"], "10.40.0.1");
    attachment.del();
    assert_eq!(lab.attach(&container, &layer_two()).add(), bare);
}

fn layer_two_devices_are_up_and_carry_frames(lab: &Lab) {
    device(lab);
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let conf = with(&layer_two(), json!({"cniVersion": version}));
        let (container, attachment, result) = lab.added(&conf);
        assert_eq!(result.get("ips").filter(|ips| **ips != json!([])), None, "{version}");
        assert_is_inside(lab, &container, "dev0");
        container.sh("ip addr add 10.40.0.77/24 dev eth0");
        assert_pings(&container, "10.40.0.1");
        if version >= "0.4.0" {
            attachment.check(&result).ok();
        }
        attachment.del();
        assert_is_back(lab, &container);
    }
}

/// Names belong to namespaces: links on the host and in the container do not conflict.
fn names_that_others_have_are_no_obstacle(lab: &Lab) {
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
}

fn one_of_two_containers_gets_the_device_that_both_want(lab: &Lab) {
    for round in 0..5 {
        device(lab);
        let containers = [lab.container(), lab.container()];
        let attachments = containers.each_ref().map(|c| lab.attach(c, &layer_two()));
        let outcomes = all_at_once(&attachments, "ADD");
        let winners: Vec<usize> = (0..2).filter(|at| outcomes[*at].status == 0).collect();
        assert_eq!(winners.len(), 1, "round {round}: {outcomes:?}");
        let (winner, loser) = (winners[0], 1 - winners[0]);
        assert_is_inside(lab, &containers[winner], "dev0");
        let has = |link: &str| containers[loser].link(link).is_some();
        assert!(!has("eth0") && !has("dev0"));
        if lab.peer == Peer::Ours {
            attachments[loser].del();
        }
        assert_is_inside(lab, &containers[winner], "dev0");
        attachments[winner].del();
        assert_is_back(lab, &containers[winner]);
        lab.host.sh("ip link del dev0");
    }
}

each_case! { |case| for_each_peer("host-device", case);
    the_device_talks_with_its_peer_from_the_container
    result_says_what_the_kernel_has
    layer_two_devices_are_up_and_carry_frames
    names_that_others_have_are_no_obstacle
    one_of_two_containers_gets_the_device_that_both_want
}
