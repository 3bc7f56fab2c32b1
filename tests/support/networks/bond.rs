//! Network configurations for bond.

use serde_json::{Value, json};

use super::bridge::static_ipam;
use super::host_device::await_carrier;
use crate::support::attachment::{for_ours, with};
use crate::support::kernel::has_link;
use crate::support::netns::Lab;

/// A network without addresses on two links of the host.
pub fn layer_two() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net1", "type": "bond", "mode": "active-backup",
        "miimon": "100", "links": [{"name": "port0"}, {"name": "port1"}]})
}

pub fn conf() -> Value {
    static_ipam(
        &layer_two(),
        json!([{"address": "10.50.0.2/24", "gateway": "10.50.0.1"}]),
        json!([{"dst": "10.99.0.0/16"}]),
    )
}

/// The same with addresses from host-local, which keeps its leases on the host.
pub fn leased() -> Value {
    with(&layer_two(), json!({"ipam": {"type": "host-local", "subnet": "10.50.0.0/24"}}))
}

/// The same with links of the container.
pub fn inside(changes: Value) -> Value {
    with(&with(&layer_two(), json!({"linksInContainer": true})), changes)
}

/// Whether this kernel supports bonds; skips the case if it does not.
pub fn has_bonds(lab: &Lab) -> bool {
    has_link(&lab.host, "bonding", "probe type bond")
}

/// Creates `port0` and `port1` on the host with an operator's configuration; their other ends
/// `far0` and `far1` are ports of a bridge outside that has 10.50.0.1.
pub fn ports(lab: &Lab) {
    lab.host.sh("ip -b - <<'END'
link add port0 address 02:00:00:00:b0:00 type veth peer name far0 netns outside
link add port1 address 02:00:00:00:b0:01 type veth peer name far1 netns outside
link set port0 up mtu 1600 alias uplink-of-rack-1
link set port1 up mtu 1500
addr add 10.51.0.9/24 brd + dev port0
END");
    lab.outside.sh("ip -b - <<'END'
link add wire address 02:00:00:00:b0:ff type bridge
link set wire up
link set far0 master wire up
link set far1 master wire up
addr add 10.50.0.1/24 dev wire
END");
    for port in ["port0", "port1"] {
        await_carrier(&lab.host, port);
    }
}

/// Whether the kernel has bonds; then the host has the links.
pub fn with_ports(lab: &Lab) -> bool {
    let has = has_bonds(lab);
    if has {
        ports(lab);
    }
    has
}

/// Runs a case of ours on a kernel with bonds, with the links on the host.
pub fn for_ours_with_ports(case: impl Fn(&Lab)) {
    for_ours("bond", |lab| {
        if with_ports(lab) {
            case(lab);
        }
    });
}
