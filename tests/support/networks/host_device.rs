//! Network configurations for host-device.

use serde_json::{Value, json};

use super::bridge::static_ipam;
use crate::support::attachment::with;
use crate::support::netns::{Lab, Namespace};

/// A network without addresses.
pub fn layer_two() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net1", "type": "host-device", "device": "dev0"})
}

pub fn conf() -> Value {
    static_ipam(
        &layer_two(),
        json!([{"address": "10.40.0.2/24", "gateway": "10.40.0.1"}, {"address": "2001:db8:40::2/64"}]),
        json!([{"dst": "10.99.0.0/16"}]),
    )
}

/// The same with addresses from host-local, which keeps its leases on the host.
pub fn leased() -> Value {
    with(&layer_two(), json!({"ipam": {"type": "host-local", "subnet": "10.40.0.0/24"}}))
}

/// Creates `dev0` on the host with an operator's configuration; its other end is outside.
pub fn device(lab: &Lab) {
    named_device(lab, 0);
    lab.host.sh("ip link set dev0 mtu 1400 && ip link set dev0 up && \
         ip addr add 10.40.0.9/24 brd + dev dev0 && ip addr add 10.41.0.9/24 brd + dev dev0 && \
         ip addr add 2001:db8:40::9/64 dev dev0");
    await_carrier(&lab.host, "dev0");
}

/// Waits for the carrier: the kernel reports it up to a second late, and a snapshot must not be
/// taken before.
pub fn await_carrier(namespace: &Namespace, link: &str) {
    namespace.sh(&format!(
        "timeout 5 sh -c 'until ip -j link show dev {link} | grep -q \\\"operstate\\\":\\\"UP; do sleep 0.02; done'"
    ));
}

pub fn named_device(lab: &Lab, number: usize) {
    lab.host.sh(&format!(
        "ip link add dev{number} address 02:00:00:00:dd:0{number} type veth peer name peer{number} netns outside && \
         ip -n outside link set peer{number} up && ip -n outside addr add 10.4{number}.0.1/24 dev peer{number} && \
         ip -n outside addr add 2001:db8:4{number}::1/64 dev peer{number} nodad"
    ));
}

pub fn is_up(namespace: &Namespace, link: &str) -> bool {
    namespace.link(link).unwrap()["flags"].as_array().unwrap().contains(&json!("UP"))
}
