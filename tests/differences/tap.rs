//! Deliberate differences of tap from the reference.

use serde_json::json;

use super::{FAILED, OK, differs, differs_where};
use crate::plugins::main::host_device::failed_add;
use crate::support::attachment::with;
use crate::support::failed_add::{Case, fail};
use crate::support::networks::{host_device, tap};

/// With owner and group the reference creates the tap in another way: it ignores the other keys,
/// and frames get another header.
#[test]
fn a_tap_with_owner_and_group_is_one_as_any_other() {
    let conf = with(
        &tap::layer_two(),
        json!({"owner": 0, "group": 0, "mtu": 1400, "mac": "02:00:00:00:00:01"}),
    );
    differs_where(
        "tap",
        tap::makes_taps,
        (true, true, json!(false)),
        (false, false, json!(true)),
        |lab| {
            let container = lab.container();
            lab.attach(&container, &conf).add();
            let link = container.link("eth0").unwrap();
            (
                link["mtu"] == 1400,
                link["address"] == "02:00:00:00:00:01",
                link["linkinfo"]["info_data"]["pi"].clone(),
            )
        },
    );
}

/// The reference does not notice that the name was refused, and takes the interface that has it for
/// the new one.
#[test]
fn a_tap_takes_no_interface_over() {
    differs_where("tap", tap::makes_taps, (FAILED, "0".to_owned()), (OK, "1".to_owned()), |lab| {
        let container = lab.container();
        container.sh("ip link add eth0 type veth peer name other");
        let status = lab.attach(&container, &tap::layer_two()).try_add().status;
        (status, container.sh("ip -d link | grep -c 'tun type tap' || true").trim().to_owned())
    });
}

/// The reference runs `ip` unless owner and group are given.
#[test]
fn a_tap_needs_no_ip_program() {
    differs_where("tap", tap::makes_taps, OK, FAILED, |lab| {
        let mut call = lab.attach(&lab.container(), &tap::layer_two()).call("ADD", None);
        call.wrapper.extend(["env", "PATH=/nonexistent"].map(str::to_owned));
        call.run().status
    });
}

/// Without addresses the reference's CHECK compares nothing.
#[test]
fn check_of_a_tap_looks_for_it() {
    differs_where("tap", tap::makes_taps, FAILED, OK, |lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &tap::layer_two());
        let result = attachment.add();
        container.sh("ip link del eth0");
        attachment.check(&result).status
    });
}

/// The reference asks only the IPAM plugin.
#[test]
fn status_of_tap_tells_that_the_driver_is_missing() {
    differs("tap", FAILED, OK, |lab| {
        lab.host.sh("mount -t tmpfs empty /dev/net");
        lab.attach(&lab.container(), &with(&tap::layer_two(), json!({"cniVersion": "1.1.0"})))
            .status()
            .status
    });
}

/// Failed ADDs of the reference's tap and host-device leave changes behind.
#[test]
fn failed_adds_of_tap_and_host_device_leave_nothing() {
    for case in failed_add::failing().into_iter().filter(|case| case.reference_leaves_something) {
        differs("host-device", true, false, |lab| {
            fail(lab, &host_device::conf(), &case).0.is_empty()
        });
    }
    let case = Case::new("no such bridge", json!({"bridge": "br0"}), 7, "br0");
    differs_where("tap", tap::makes_taps, true, false, |lab| {
        fail(lab, &tap::layer_two(), &case).0.is_empty()
    });
}
