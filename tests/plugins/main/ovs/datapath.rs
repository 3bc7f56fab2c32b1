//! Packets: by the datapath in vswitchd's own process here, and by the kernel's where it has one.

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_ours, skip, with};
use crate::support::netns::{Container, Lab};
use crate::support::networks::ovs::{conf, start_vswitchd, stop_vswitchd, switch};
use crate::support::networks::stacked::VLAN;
use crate::support::peers::each_case;
use crate::support::snapshot::Watch;
use crate::support::traffic::{assert_no_ping, assert_pings};

/// A container with this fixed address.
fn attach<'l>(lab: &'l Lab, (last, keys): (u8, Value)) -> (Container, Attachment<'l>) {
    let container = lab.container();
    let ipam = json!({"type": "static", "subnet": null, "addresses": [{"address": format!("10.10.0.{last}/24")}]});
    let ovs = lab.attach(&container, &with(&with(&conf(), json!({"ipam": ipam})), keys));
    ovs.add();
    (container, ovs)
}

/// Whether the kernel has the datapath.
fn has_datapath(lab: &Lab) -> bool {
    let found = lab.host.try_sh(
        "modprobe openvswitch 2>/dev/null; grep -q '^openvswitch ' /proc/modules || [ -d /sys/module/openvswitch ]",
    );
    if !found.status.success() {
        skip("the kernel module openvswitch");
    }
    found.status.success()
}

fn vlans_separate_containers(lab: &Lab) {
    if !switch(lab, "netdev") {
        return;
    }
    let before = Watch::start(lab, &[]);
    let (first, a) = attach(lab, (1, json!({"vlan": 10})));
    let (_second, b) = attach(lab, (2, json!({"vlan": 10})));
    let (_third, c) = attach(lab, (3, json!({"vlan": 20})));
    let keys = json!({"vlan": 20, "vlan_mode": "native-untagged", "trunk": [{"id": 10}]});
    let (trunk, d) = attach(lab, (4, keys));
    assert_pings(&first, "10.10.0.2");
    assert_no_ping(&first, "10.10.0.3");
    assert_pings(&trunk, "10.10.0.3");
    [a, b, c, d].iter().for_each(Attachment::del);
    before.assert_unchanged("four containers");
    stop_vswitchd(lab);
}

fn a_trunk_carries_tagged_frames(lab: &Lab) {
    if !VLAN.is_in(lab) || !switch(lab, "netdev") {
        return;
    }
    let (access, _) = attach(lab, (1, json!({"vlan": 10})));
    let (trunk, _) = attach(lab, (2, json!({"trunk": [{"id": 10}]})));
    trunk.sh("ip link add link eth0 name eth0.10 type vlan id 10 && ip link set eth0.10 up
         ip addr flush dev eth0 && ip addr add 10.10.0.2/24 dev eth0.10");
    assert_pings(&trunk, "10.10.0.1");
    drop(access);
    stop_vswitchd(lab);
}

/// For the virtual machine.
fn the_kernel_s_datapath_serves_across_a_restart_of_vswitchd(lab: &Lab) {
    if !has_datapath(lab) || !switch(lab, "system") {
        return;
    }
    let (first, a) = attach(lab, (1, json!({"vlan": 10})));
    let (_second, b) = attach(lab, (2, json!({"vlan": 10})));
    assert_pings(&first, "10.10.0.2");
    stop_vswitchd(lab);
    start_vswitchd(lab, "system");
    assert_pings(&first, "10.10.0.2");
    a.del();
    b.del();
    lab.host.sh("ovs-vsctl --timeout=90 del-br ovs0");
    stop_vswitchd(lab);
}

each_case! { |case| for_ours("ovs", case);
    vlans_separate_containers
    a_trunk_carries_tagged_frames
    the_kernel_s_datapath_serves_across_a_restart_of_vswitchd
}
