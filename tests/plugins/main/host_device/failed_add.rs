//! host-device ADD that fails: a useful error, and the device in its old place and state.

use serde_json::{Value, json};

use super::assert_is_inside;
use super::found::fake_sysfs;
use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::failed_add::{Case, assert_all_fail, assert_fails, assert_fails_at, rows};
use crate::support::networks::host_device::{await_carrier, conf, device, layer_two, leased};
use crate::support::snapshot::Watch;
use crate::support::table::cells;

/// Configuration errors: the keys in place of `device`, and the start of our message. 0000:00:1f.8 is not a network device.
const MISTAKES: &str = r#"
{} | specify either "device", "hwaddr", "kernelpath" or "pciBusID"
{"device": ""} | specify either "device", "hwaddr", "kernelpath" or "pciBusID"
{"device": "dev0", "hwaddr": "02:00:00:00:dd:00"} | hwaddr
{"device": "dev0", "kernelpath": "/sys/devices/pci0000:00/0000:00:1f.6"} | kernelpath
{"device": "dev0", "pciBusID": "0000:00:1f.6"} | pciBusID
{"hwaddr": "02:00:00:00:dd:00", "kernelpath": "/sys/devices/pci0000:00/0000:00:1f.6"} | kernelpath
{"hwaddr": "02:00:00:00:dd:00", "pciBusID": "0000:00:1f.6"} | pciBusID
{"kernelpath": "/sys/devices/pci0000:00/0000:00:1f.6", "pciBusID": "0000:00:1f.6"} | pciBusID
{"device": "dev0", "runtimeConfig": {"deviceID": "0000:00:1f.6"}} | runtimeConfig.deviceID
{"hwaddr": "02:00:00:00:dd:00", "runtimeConfig": {"deviceID": "mlx5_core.sf.4"}} | runtimeConfig.deviceID
{"device": "nonesuch"} | device: "nonesuch"
{"device": "an-other-name-that-no-device-has"} | device: "an-other-name-that-no-device-has"
{"hwaddr": "02:00:00:00:dd:99"} | hwaddr: 02:00:00:00:dd:99
{"hwaddr": "02:00:00:00:dd"} | hwaddr: "02:00:00:00:dd"
{"kernelpath": "/sys/devices/pci0000:00/0000:00:1f.7"} | kernelpath: "/sys/devices/pci0000:00/0000:00:1f.7"
{"kernelpath": "/sys/devices/pci0000:00"} | kernelpath: "/sys/devices/pci0000:00"
{"kernelpath": "/sys/devices/../devices/pci0000:00/0000:00:1f.6"} | kernelpath: "/sys/devices/..
{"kernelpath": "/sys/bus/pci/devices/0000:00:1f.6"} | kernelpath: "/sys/bus/pci/
{"kernelpath": "sys/devices/pci0000:00/0000:00:1f.6"} | kernelpath: "sys/devices/
{"pciBusID": "0000:00:1f.7"} | pciBusID: "0000:00:1f.7"
{"pciBusID": "0000:00:1f.8"} | pciBusID: "0000:00:1f.8"
{"pciBusID": "../devices/0000:00:1f.6"} | pciBusID: "../devices/0000:00:1f.6"
{"pciBusID": ".."} | pciBusID: ".."
{"runtimeConfig": {"deviceID": "0000:00:1f.7"}} | runtimeConfig.deviceID: "0000:00:1f.7"
{"runtimeConfig": {"deviceID": "mlx5_core.sf.5"}} | runtimeConfig.deviceID: "mlx5_core.sf.5"
{"runtimeConfig": {"deviceID": "../devices/0000:00:1f.6"}} | runtimeConfig.deviceID: "../devices
"#;

const SYSFS: &str = "mkdir -p net/dev0 mlx5_core.sf.4/net/dev0; \
    ln -s ../../../devices/pci0000:00/0000:00:1f.6/mlx5_core.sf.4 /sys/bus/auxiliary/devices/; \
    mkdir ../0000:00:1f.8; ln -s ../../../bus/pci/drivers/e1000e ../0000:00:1f.8/driver; \
    ln -s ../../../devices/pci0000:00/0000:00:1f.8 /sys/bus/pci/devices/0000:00:1f.8";

#[test]
fn an_ambiguous_device_is_refused_and_nothing_is_touched() {
    for_ours("host-device", |lab| {
        device(lab);
        fake_sysfs(lab, "e1000e", SYSFS);
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        for [names, begins] in cells(MISTAKES) {
            let names: Value = serde_json::from_str(names).unwrap();
            for base in [layer_two(), leased()] {
                let conf = with(&with(&base, json!({"device": null})), names.clone());
                lab.attach(&container, &conf).try_add().fails(7, begins);
            }
        }
        before.assert_unchanged("the refused ADDs");
    });
}

const FAILING: &str = r#"
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam
IPAM refuses | {"ipam": {"type": "host-local", "subnet": "10.40.0.0/31", "addresses": null, "routes": null}} | 7: 10.40.0.0/31
IPAM has no address | {"ipam": {"addresses": [], "routes": null}} | 101: missing IP config
route unreachable | {"ipam": {"routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}} | 100: 10.88.0.1
route unreachable, a lease is taken | {"ipam": {"type": "host-local", "subnet": "10.40.0.0/24", "addresses": null, "routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}} | 100: 10.88.0.1
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other
a second name is taken | {} | 102: eth0 | in: ip link add other type veth peer name more && ip link property add dev other altname eth0
wrong type | {"device": 7} | 6: device | both
"#;

pub fn failing() -> Vec<Case> {
    rows(FAILING).into_iter().map(|case| case.host(DEVICE)).collect()
}

/// The same device as `device` creates.
const DEVICE: &str = "ip link add dev0 address 02:00:00:00:dd:00 type veth peer name peer0 netns outside && \
    ip -n outside link set peer0 up && ip link set dev0 mtu 1400 && ip link set dev0 up && \
    ip addr add 10.40.0.9/24 brd + dev dev0 && ip addr add 2001:db8:40::9/64 dev dev0";
const DOWN: &str = "ip link add dev0 address 02:00:00:00:dd:00 type veth peer name peer0 netns outside && \
    ip link set dev0 mtu 1400 && ip addr add 10.40.0.9/24 brd + dev dev0";

#[test]
fn add_fails_and_the_device_is_as_it_was() {
    assert_all_fail("host-device", &conf(), &failing());
}

#[test]
fn add_fails_and_a_device_that_was_down_is_down() {
    for_ours("host-device", |lab| {
        for case in failing() {
            lab.host.try_sh("ip link del dev0");
            assert_fails(lab, &conf(), &case.host(DOWN));
        }
    });
}

/// The device is already in the container, under the requested name.
#[test]
fn a_second_add_is_refused_and_the_first_one_goes_on() {
    for_each_peer("host-device", |lab| {
        device(lab);
        for base in [conf(), layer_two()] {
            let (container, attachment, result) = lab.added(&base);
            await_carrier(&container, "eth0");
            let case = Case::new("the second ADD", json!({}), 102, "eth0");
            assert_fails_at(lab, &container, &attachment, &case.reference_leaves_nothing());
            assert_is_inside(lab, &container, "dev0");
            attachment.check_and_del(&result);
            lab.host.sh("ip link set dev0 up");
        }
    });
}
