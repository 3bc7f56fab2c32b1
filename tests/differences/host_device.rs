//! Deliberate differences of host-device from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, differ, differs, differs_where};
use crate::plugins::main::host_device::found;
use crate::support::attachment::{Attachment, with};
use crate::support::netns::{Container, Lab};
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::{host_device, tap};
use crate::support::snapshot::Watch;

/// A late DEL must not change another network's attachment. A runtime repeats DEL until it succeeds.
const ROWS: &str = r#"
gives the device back to a DEL of another network | {} | add; own=$conf; with '"name":"other"'; try DEL; here dev0; conf=$own; run DEL; here dev0 | 0 none dev0 | 0 dev0 dev0
keeps the device in the container after a failed ADD, where a second one does not find it | {"ipam": {"routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}} | try ADD; here dev0; conf=$(printf %s "$conf"|sed 's/10.88.0.1/10.40.0.1/'); try ADD | 1 dev0 0 | 1 none 1
fails DEL of a device that is back | {} | add; del; try DEL | 0 | 1
fails DEL of a namespace that is gone, and the lease stays | {"ipam": {"type": "host-local", "subnet": "10.40.0.0/24", "addresses": null, "routes": null}} | add; vanish; try DEL; [ ! -e $store/10.40.0.2 ] || echo lease | 0 | 1 lease
does nothing in DEL without CNI_NETNS, and the lease stays | {"ipam": {"type": "host-local", "subnet": "10.40.0.0/24", "addresses": null, "routes": null}} | add; vanish; netns=; del; [ ! -e $store/10.40.0.2 ] || echo lease |  | lease
uses one of several keys that name a device, in an order of its own | {"ipam": null, "hwaddr": "02:00:00:00:00:99"} | try ADD | 1 | 0
fills in a variable that is meant to be internal | {"ipam": null, "dpdkMode": true} | add; has eth0 | eth0 | none
ignores the dns of IPAM | {"ipam": {"dns": {"nameservers": ["192.0.2.53"]}}} | add; grep -c '"192.0.2.53"' /run/ADD | 1 | 0
ignores the configured dns of a network without IPAM | {"ipam": null, "dns": {"nameservers": ["192.0.2.53"]}} | add; grep -c '"192.0.2.53"' /run/ADD | 1 | 0
"#;

fn with_device(lab: &Lab, changes: Value) -> (Container, Attachment<'_>) {
    host_device::device(lab);
    let container = lab.container();
    let attachment = lab.attach(&container, &with(&host_device::conf(), changes));
    (container, attachment)
}

#[test]
fn host_devices_differ_where_the_table_says_so() {
    differ("host-device", ROWS, with_device);
}

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

/// The reference's tap ignores the dns of IPAM.
#[test]
fn dns_of_a_tap_comes_from_ipam() {
    let told = json!({"nameservers": ["192.0.2.53"]});
    let of_ipam = static_ipam(&tap::conf(), json!([{"address": "10.50.0.7/24"}]), json!([]));
    let of_ipam = with(&of_ipam, json!({"ipam": {"dns": told}}));
    differs_where("tap", tap::makes_taps, told, Value::Null, |lab| {
        lab.attach(&lab.container(), &of_ipam).add()["dns"].clone()
    });
}
