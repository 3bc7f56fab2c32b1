//! host-device finds a device by each key that can name one.

use serde_json::{Value, json};

use super::{assert_is_back, assert_is_inside};
use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::netns::Lab;
use crate::support::networks::host_device::{conf, device, layer_two};
use crate::support::table::cells;

/// Replaces the lab's sysfs by one with a single PCI device. The script `makes` runs in the
/// directory of the device.
pub fn fake_sysfs(lab: &Lab, driver: &str, makes: &str) {
    lab.host.sh(&format!(
        "set -e; mount -t tmpfs fake /sys
         mkdir -p /sys/bus/pci/devices /sys/bus/pci/drivers/{driver} /sys/bus/auxiliary/devices
         mkdir -p /sys/devices/pci0000:00/0000:00:1f.6; cd /sys/devices/pci0000:00/0000:00:1f.6
         ln -s ../../../devices/pci0000:00/0000:00:1f.6 /sys/bus/pci/devices/0000:00:1f.6
         ln -s ../../../bus/pci/drivers/{driver} driver
         {makes}"
    ));
}

/// What names the device, the keys, and what it needs in sysfs.
const WAYS: &str = r#"
name | {"device": "dev0"} | true
alternative name | {"device": "an-other-name-of-the-device"} | true
hardware address | {"hwaddr": "02:00:00:00:dd:00"} | true
hardware address, in capitals and with dashes | {"hwaddr": "02-00-00-00-DD-00"} | true
path in the kernel | {"kernelpath": "/sys/devices/pci0000:00/0000:00:1f.6"} | mkdir -p net/dev0
path in the kernel, the first of its interfaces | {"kernelpath": "/sys/devices/pci0000:00/0000:00:1f.6"} | mkdir -p net/dev0 net/dev1
PCI | {"pciBusID": "0000:00:1f.6"} | mkdir -p net/dev0
PCI, virtio | {"pciBusID": "0000:00:1f.6"} | mkdir -p virtio0/net/dev0
device plugin, PCI | {"runtimeConfig": {"deviceID": "0000:00:1f.6"}} | mkdir -p net/dev0
device plugin, virtio | {"runtimeConfig": {"deviceID": "0000:00:1f.6"}} | mkdir -p virtio3/net/dev0
device plugin, auxiliary bus | {"runtimeConfig": {"deviceID": "mlx5_core.sf.4"}} | mkdir -p mlx5_core.sf.4/net/dev0; ln -s ../../../devices/pci0000:00/0000:00:1f.6/mlx5_core.sf.4 /sys/bus/auxiliary/devices/mlx5_core.sf.4
device plugin, in place of what is configured | {"pciBusID": "0000:00:1f.7", "runtimeConfig": {"deviceID": "0000:00:1f.6"}} | mkdir -p net/dev0
nothing for the others | {"device": "dev0", "hwaddr": "", "kernelpath": "", "pciBusID": "", "runtimeConfig": {"deviceID": ""}} | true
"#;

#[test]
fn a_device_is_found_by_whatever_names_it() {
    for [what, names, sysfs] in cells(WAYS) {
        let names: Value = serde_json::from_str(names).unwrap();
        for_each_peer("host-device", |lab| {
            eprintln!("{what}"); // shown when the case fails
            device(lab);
            lab.host.sh("ip link property add dev dev0 altname an-other-name-of-the-device");
            fake_sysfs(lab, "e1000e", sysfs);
            for base in [conf(), layer_two()] {
                let conf = with(&with(&base, json!({"device": null})), names.clone());
                let (container, attachment, result) = lab.added(&conf);
                assert_is_inside(lab, &container, "dev0");
                attachment.check_and_del(&result);
                assert_is_back(lab, &container);
            }
        });
    }
}

/// A device of a user-space driver is not a link of the kernel: nothing is moved, and the addresses
/// are only reported.
#[test]
fn a_device_of_a_user_space_driver_stays_where_it_is() {
    let names = [
        json!({"pciBusID": "0000:00:1f.6"}),
        json!({"runtimeConfig": {"deviceID": "0000:00:1f.6"}}),
    ];
    for_each_peer("host-device", |lab| {
        for driver in ["vfio-pci", "uio_pci_generic", "igb_uio"] {
            fake_sysfs(lab, driver, "true");
            for (names, base) in names.iter().flat_map(|it| [(it, conf()), (it, layer_two())]) {
                let conf = with(&with(&base, json!({"device": null})), names.clone());
                let (container, attachment, before) = lab.watched(&conf);
                let result = attachment.add();
                let expected = json!([{"name": "eth0", "sandbox": container.netns}]);
                assert_eq!(result["interfaces"], expected, "{driver}");
                if conf.get("ipam").is_some() {
                    assert_eq!(result["ips"][0]["address"], "10.40.0.2/24");
                    assert_eq!(result["ips"][0]["interface"], 0);
                }
                before.assert_unchanged("ADD");
                attachment.assert_ends(&result, &before);
            }
            lab.host.sh("umount /sys");
        }
    });
}

/// The reference reads this name of an internal variable from the configuration and then moves
/// nothing: see tests/differences.
#[test]
fn dpdk_mode_is_no_key() {
    for_ours("host-device", |lab| {
        device(lab);
        let keys = json!({"DPDKMode": true, "dpdkMode": "yes"});
        let (container, attachment, _) = lab.added(&with(&conf(), keys));
        assert_is_inside(lab, &container, "dev0");
        attachment.del();
        assert_is_back(lab, &container);
    });
}
