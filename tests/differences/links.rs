//! Deliberate differences of links, addresses and routes from the reference.

use super::{differ, network};

/// The kernel has no route to the network of a /32. DEL finds the host's end by its alias. No other host can have the
/// addresses of a link that was just created, so they are usable when ADD returns. Two addresses of a subnet share a gateway.
const ROWS: &str = r#"
looks in CHECK for a route to a /32 | {"isGateway": null, "ipam": {"type": "static", "subnet": null, "addresses": [{"address": "10.10.0.7/32"}]}} | add; check | 0 | 1
looks in CHECK for every route in the main table | {"ipam": {"routes": [{"dst": "10.99.0.0/16", "table": 100}]}} | add; check | 0 | 1
looks in CHECK for every route in the main table | {"type": "ptp", "ipam": {"routes": [{"dst": "10.99.0.0/16", "table": 100}]}} | add; check | 0 | 1
sets a queue length of zero on the host's end, by a field that is never set | {} | add; ip link show $(end)|grep -o 'qlen [0-9]*' | qlen 1000
sets a queue length of zero on the host's end, by a field that is never set | {"type": "ptp"} | add; ip link show $(end)|grep -o 'qlen [0-9]*' | qlen 1000
sets no alias | {} | add; ip link show $(end)|grep -c 'net: net1, if: eth0, id: container-1$' | 1 | 0
sets no alias | {"type": "ptp"} | add; ip link show $(end)|grep -c 'net: net1, if: eth0, id: container-1$' | 1 | 0
lets the kernel run duplicate address detection on its bridge | {"ipam": {DUAL}} | add; ip -6 -o addr show dev br0 scope global|grep -c nodad | 1 | 0
lets the kernel run duplicate address detection in a container of ptp | {"type": "ptp", "ipam": {DUAL}} | add; inside ip -6 -o addr show dev eth0 scope global|grep -c nodad | 1 | 0
has mtu and advmss of a route in the result alone | {"ipam": {"routes": [{"dst": "10.99.0.0/16", "mtu": 1300, "advmss": 1200}]}} | add; inside ip route show 10.99.0.0/16|grep -oE '(mtu|advmss) [0-9]+' | mtu 1300 advmss 1200
has code 999 for an MTU that no veth accepts | {"mtu": 100000} | code ADD; here br0 | 7 none | 999 none
ignores a negative MTU | {"mtu": -1} | try ADD | 1 | 0
ignores a negative MTU | {"type": "ptp", "mtu": -1} | try ADD | 1 | 0
lets the kernel add a route of ptp to the whole subnet, and then removes it | {"type": "ptp"} | add; inside ip -4 -o addr show dev eth0|grep -c noprefixroute | 1 | 0
does not announce a reused address of ptp | {"type": "ptp"} | add; inside cat /proc/sys/net/ipv4/conf/eth0/arp_notify | 1 | 0
adds a gateway of ptp for each address: "file exists" | {"type": "ptp", "ipam": {"type": "static", "subnet": null, "addresses": [{"address": "10.10.0.7/24", "gateway": "10.10.0.1"}, {"address": "10.10.0.8/24", "gateway": "10.10.0.1"}]}} | try ADD | 0 | 1
adds the routes of ptp before the route to the gateway of a /32 | {"type": "ptp", "ipam": {"type": "static", "subnet": null, "addresses": [{"address": "10.10.0.7/32", "gateway": "10.10.0.1"}], "routes": [{"dst": "0.0.0.0/0"}]}} | try ADD || exit 0; pings 10.10.0.1 198.51.100.1; check | 0 10.10.0.1 198.51.100.1 0 | 1
"#;

#[test]
fn links_differ_where_the_table_says_so() {
    differ("bridge", ROWS, network);
}
