//! Deliberate differences of host-device from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, differs, differs_where};
use crate::plugins::main::host_device::found;
use crate::support::attachment::with;
use crate::support::netns::Lab;
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::{host_device, tap};
use crate::support::snapshot::Watch;

/// The reference returns a device down and without addresses.
#[test]
fn a_device_comes_back_as_it_was() {
    differs("host-device", (true, true, 3), (false, false, 0), |lab| {
        host_device::device(lab);
        let before = Watch::start(lab, &[]);
        let attachment = lab.attach(&lab.container(), &host_device::conf());
        attachment.add();
        attachment.del();
        (
            before.changes().is_empty(),
            host_device::is_up(&lab.host, "dev0"),
            lab.host.addresses("dev0").len(),
        )
    });
}

/// The reference gives the device back. A late DEL must not change another network's attachment.
#[test]
fn del_of_another_network_leaves_the_device_in_the_container() {
    differs("host-device", (OK, false, true), (OK, true, true), |lab| {
        host_device::device(lab);
        let attachment = lab.attach(&lab.container(), &host_device::conf());
        attachment.add();
        let late = attachment.clone().conf(json!({"name": "other"})).call("DEL", None).run();
        let is_back = lab.host.link("dev0").is_some();
        attachment.call("DEL", None).run();
        (late.status, is_back, lab.host.link("dev0").is_some())
    });
}

/// After a failure of IPAM or of an address the reference keeps the device in the container, where
/// a second ADD does not find it.
#[test]
fn a_failed_add_gives_the_device_back() {
    let refused = with(
        &host_device::conf(),
        json!({"ipam": {"routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}}),
    );
    differs("host-device", (true, OK), (false, FAILED), |lab| {
        host_device::device(lab);
        let attachment = lab.attach(&lab.container(), &refused);
        assert_eq!(attachment.try_add().status, FAILED);
        (
            lab.host.link("dev0").is_some(),
            attachment.conf(json!({"ipam": {"routes": null}})).try_add().status,
        )
    });
}

/// The reference's DEL fails if the interface or the namespace is missing. A runtime repeats DEL
/// until it succeeds.
#[test]
fn del_of_a_device_that_is_back_already_succeeds() {
    differs("host-device", OK, FAILED, |lab| {
        host_device::device(lab);
        let attachment = lab.attach(&lab.container(), &host_device::conf());
        attachment.add();
        attachment.del();
        attachment.try_del().status
    });
    differs("host-device", (OK, false), (FAILED, true), |lab| {
        host_device::device(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &host_device::leased());
        attachment.add();
        container.vanish();
        (attachment.try_del().status, lab.path("/var/lib/cni/networks/net1/10.40.0.2").exists())
    });
}

/// Without CNI_NETNS the reference's DEL does nothing, and the lease stays.
#[test]
fn del_of_a_device_without_netns_releases_the_address() {
    differs("host-device", false, true, |lab| {
        host_device::device(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &host_device::leased());
        attachment.add();
        container.vanish();
        attachment.netns(None).del();
        lab.path("/var/lib/cni/networks/net1/10.40.0.2").exists()
    });
}

/// The reference looks for the device in sysfs before it returns it.
#[test]
fn del_of_a_device_does_not_ask_sysfs() {
    let conf = with(
        &host_device::layer_two(),
        json!({"device": null, "runtimeConfig": {"deviceID": "0000:00:1f.6"}}),
    );
    differs("host-device", (OK, true), (FAILED, false), |lab| {
        host_device::device(lab);
        found::fake_sysfs(lab, "e1000e", "mkdir -p net/dev0");
        let attachment = lab.attach(&lab.container(), &conf);
        attachment.add();
        lab.host.sh("rm -r /sys/bus /sys/devices");
        (attachment.try_del().status, lab.host.link("dev0").is_some())
    });
}

/// Of several keys that name a device the reference uses the first in an order of its own.
#[test]
fn a_device_is_named_in_one_way_only() {
    let conf = with(&host_device::layer_two(), json!({"hwaddr": "02:00:00:00:00:99"}));
    differs("host-device", FAILED, OK, |lab| {
        host_device::device(lab);
        lab.attach(&lab.container(), &conf).try_add().status
    });
}

/// The reference puts the ID into a path unchecked.
#[test]
fn a_device_s_id_does_not_lead_out_of_its_directory() {
    let conf = with(
        &host_device::layer_two(),
        json!({"device": null, "pciBusID": "../../../../run/elsewhere"}),
    );
    differs("host-device", FAILED, OK, |lab| {
        host_device::device(lab);
        found::fake_sysfs(
            lab,
            "e1000e",
            "mkdir -p /run/elsewhere/net/dev0 && ln -s /sys/bus/pci/drivers/e1000e /run/elsewhere/driver",
        );
        lab.attach(&lab.container(), &conf).try_add().status
    });
}

/// The reference's decoder fills in a variable that is meant to be internal.
#[test]
fn dpdk_mode_is_found_out_and_not_configured() {
    let conf = with(&host_device::layer_two(), json!({"dpdkMode": true}));
    differs("host-device", true, false, |lab| {
        host_device::device(lab);
        let container = lab.container();
        lab.attach(&container, &conf).add();
        container.link("eth0").is_some()
    });
}

/// The reference's host-device and tap ignore the dns of IPAM; host-device without IPAM ignores the
/// configured dns.
#[test]
fn dns_comes_from_the_plugin_that_knows_it() {
    let told = json!({"nameservers": ["192.0.2.53"]});
    let of_ipam = with(&host_device::conf(), json!({"ipam": {"dns": told}}));
    let own = with(&host_device::layer_two(), json!({"dns": told}));
    for conf in [of_ipam, own] {
        differs("host-device", told.clone(), Value::Null, |lab| {
            host_device::device(lab);
            lab.attach(&lab.container(), &conf).add()["dns"].clone()
        });
    }
    let of_ipam = static_ipam(&tap::conf(), json!([{"address": "10.50.0.7/24"}]), json!([]));
    let of_ipam = with(&of_ipam, json!({"ipam": {"dns": told}}));
    let observe = |lab: &Lab| match tap::makes_taps(lab) {
        true => lab.attach(&lab.container(), &of_ipam).add()["dns"].clone(),
        false => Value::Null,
    };
    differs_where("tap", tap::makes_taps, told, Value::Null, observe);
}
