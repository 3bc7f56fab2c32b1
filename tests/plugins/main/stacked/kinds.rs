//! What macvlan, ipvlan and vlan have alone.

use crate::support::broken::{self, Break};
use crate::support::failed_add::{Case, rows};
use crate::support::networks::stacked::Stacked;

/// What CHECK finds in a link of this kind alone.
pub fn own_breaks(kind: &Stacked) -> Vec<Break> {
    match kind.plugin {
        "macvlan" => vec![
            Break::mac_changed(),
            Break::new("mode changed", "ip link set eth0 type macvlan mode private", "mode"),
        ],
        "ipvlan" => vec![
            Break::new("mode changed", "ip link set eth0 type ipvlan mode l3", "mode"),
            Break::new("mac changed", "true", "eth0")
                .host("ip link set uplink address 02:00:00:00:00:01"),
        ],
        _ => broken::rows(
            r#"
mac changed | ip link set eth0 address 02:00:00:00:00:99 | eth0
replaced by another VLAN | ip link del eth0 | 200 | ip link add link uplink name other type vlan id 200 && ip link set other netns $container name eth0 && ip -n $container link set eth0 up && ip -n $container addr add 10.10.0.2/24 dev eth0 && ip -n $container addr add 2001:db8:10::2/64 dev eth0 nodad && ip -n $container route add default via 10.10.0.1 && ip -n $container route add default via 2001:db8:10::1
"#,
        ),
    }
}

/// Failures of this kind alone.
pub fn own_failing(kind: &Stacked) -> Vec<Case> {
    match kind.plugin {
        "macvlan" => rows(
            r#"
no IPAM, interface exists | {"ipam": null} | 102: eth0 | in: ip link add eth0 type veth peer name other | both
no IPAM, master unknown | {"ipam": null, "master": "nonesuch"} | 7: master: "nonesuch" | both
mode unknown | {"mode": "nonsense"} | 7: mode: "nonsense" | both
mode of another plugin | {"mode": "l2"} | 7: mode: "l2" | both
mode of a wrong type | {"mode": 4} | 6: mode | both
mac is none | {"mac": "02:00:00:00:00"} | 7: mac: "02:00:00:00:00" | both
mac of the runtime is none | {"runtimeConfig": {"mac": "x"}} | 7: runtimeConfig.mac: "x" | both
bcqueuelen of a wrong type | {"bcqueuelen": "long"} | 6: bcqueuelen | both
passthru on a master in use | {"mode": "passthru"} | 100: uplink | host: ip link add link uplink name other type macvlan mode bridge | both
another way into a master in passthru mode | {} | 100: uplink | host: ip link add link uplink name other type macvlan mode passthru | both
the master is a port of a bridge | {"mode": "bridge"} | 100: uplink | host: ip link add br0 type bridge; ip link set uplink master br0 | both
"#,
        ),
        "ipvlan" => rows(
            r#"
mode unknown | {"mode": "nonsense"} | 7: mode: "nonsense" | both
mode of another plugin | {"mode": "bridge"} | 7: mode: "bridge" | both
mode of a wrong type | {"mode": 2} | 6: mode | both
a macvlan is on the master | {} | 100: uplink | host: ip link add link uplink name other type macvlan | both
the master is a port of a bridge | {} | 100: uplink | host: ip link add br0 type bridge; ip link set uplink master br0 | both
"#,
        ),
        _ => rows(
            r#"
no master | {"master": null} | 7: master: | both
no master, but a default route | {"master": null} | 7: master: | host: ip route add default via 198.51.100.2 | both
master empty | {"master": ""} | 7: master: | both
number too large | {"vlanId": 4095} | 7: vlanId: 4095 | both
number much too large | {"vlanId": 5000} | 7: vlanId: 5000 | both
number negative | {"vlanId": -1} | 7: vlanId: -1 | both
number of a wrong type | {"vlanId": "100"} | 6: vlanId | both
number taken on the host | {} | 102: vlanId: 100 | host: ip link add link uplink name taken type vlan id 100 | both
no IPAM | {"ipam": null} | 7: ipam.type:
"#,
        ),
    }
}
