//! Other plugins in a container with a device of the host: DEL after a killed ADD removes their
//! links and spares the device.

use serde_json::Value;

use crate::support::attachment::for_ours;
use crate::support::call::Call;
use crate::support::netns::{Container, Lab};
use crate::support::networks::host_device::{device, layer_two};
use crate::support::networks::{bridge, stacked, tap};
use crate::support::tracer::{Then, trace};

/// Lists all links except the permanent ones.
const OTHERS: &str = "ip -o link | grep -vE ' (lo|eth0|uplink|br0)(@[^ ]*)?: ' || true";

/// Runs the call and kills it before its `number`th system call; false if it makes fewer.
fn kill_before(call: &Call, number: usize) -> bool {
    let mut calls = 0;
    let traced = trace(call, |stop| {
        calls += usize::from(stop.is_own && stop.result.is_none());
        if calls == number { Then::Kill } else { Then::Go }
    });
    traced.killed
}

/// Kills ADD before each of its system calls and expects DEL to remove the leftovers.
fn assert_killed_adds_leave_nothing(lab: &Lab, container: &Container, conf: &Value) {
    let attachment = lab.attach(container, conf).ifname("eth1");
    let mut kills = 0;
    while kill_before(&attachment.call("ADD", None), kills + 1) {
        kills += 1;
        attachment.del();
        let when = format!("{}: left after kill {kills}", conf["type"]);
        assert_eq!(container.sh(OTHERS), "", "{when}");
        assert_eq!(lab.host.sh(OTHERS), "", "{when}");
    }
    assert!(kills > 50, "{}: {kills} system calls", conf["type"]);
    attachment.del();
}

/// Between its creation and its alias or record, only its name and kind identify the owner of a
/// link.
#[test]
fn killed_adds_beside_a_device_leave_nothing_after_del() {
    for_ours("host-device", |lab| {
        device(lab);
        let container = lab.container();
        let device = lab.attach(&container, &layer_two());
        device.add();
        for conf in [bridge::conf(), stacked::MACVLAN.conf(), tap::conf()] {
            assert_killed_adds_leave_nothing(lab, &container, &conf);
        }
        device.del();
    });
}

/// Both links are of one kind; only the inode tells the device from the link of the killed ADD.
#[test]
fn killed_macvlan_beside_a_macvlan_leaves_nothing_after_del() {
    for_ours("host-device", |lab| {
        if !stacked::MACVLAN.is_in(lab) {
            return;
        }
        lab.host.sh("ip link add link uplink name dev0 type macvlan mode bridge");
        let container = lab.container();
        let device = lab.attach(&container, &layer_two());
        device.add();
        assert_killed_adds_leave_nothing(lab, &container, &stacked::MACVLAN.conf());
        assert_eq!(container.link("eth0").unwrap()["ifalias"], "dev0", "the device is still there");
        device.del();
        assert!(lab.host.link("dev0").is_some(), "the device is back");
    });
}
