//! Deliberate differences of bridge from the reference.

use serde_json::json;

use super::{differ, network};
use crate::support::attachment::{for_ours, interface, with};
use crate::support::netns::Lab;
use crate::support::networks::bridge;
use crate::support::traffic::assert_pings;

/// A port hands its frames to the bridge, and nobody can reach an address that it has.
const ROWS: &str = r#"
lets the kernel give the host's end a link-local address | {"ipam": {DUAL}} | add; ip -o addr show dev $(end)|wc -l | 0 | 1
calls an IPAM plugin without a name in CHECK of a network without IPAM | {"ipam": null} | add; check | 0 | 1
compares the promiscuity counter, which a packet capture raises | {} | add; ip link set br0 promisc on; check | 0 | 1
adds a second default route for isDefaultGateway: "file exists" | {"isDefaultGateway": true, "ipam": {DUAL, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}} | try ADD || exit 0; pings 198.51.100.1 2001:db8:ffff::1; inside ip route show default|wc -l; inside ip -6 route show default|wc -l | 0 198.51.100.1 2001:db8:ffff::1 1 1 | 1
reads the all-zero MAC of a bridge without ports before it adds its port, and then sets it | {} | ip link add br0 type bridge; ip link add port type veth peer name peer; ip link set port master br0; ip link del port; try ADD && pings 10.10.0.1 | 0 10.10.0.1 | 1
makes a bridge of the part of the name before a NUL, and never finds it | {"bridge": "br\u00000"} | try ADD; here br | 1 none | 0 br
refuses the gateway of a second subnet | {"ipam": {"subnet": null, "ranges": [[{"subnet": "10.10.0.0/24"}], [{"subnet": "10.20.0.0/24"}]]}} | run ADD; ip -o -4 addr show dev br0|grep -o '10[^ ]*/24' | 10.10.0.1/24 10.20.0.1/24 | 10.10.0.1/24
replaces the first gateway by the second with forceAddress | {"forceAddress": true, "ipam": {"subnet": null, "ranges": [[{"subnet": "10.10.0.0/24"}], [{"subnet": "10.20.0.0/24"}]]}} | run ADD; ip -o -4 addr show dev br0|grep -o '10[^ ]*/24' | 10.10.0.1/24 10.20.0.1/24 | 10.20.0.1/24
runs the nft program for macspoofchk | {"macspoofchk": true} | PATH=/nonexistent; try ADD | 0 | 1
"#;

#[test]
fn bridges_differ_where_the_table_says_so() {
    differ("bridge", ROWS, network);
}

/// IPv6 needs an MTU of 1280, so such a link refuses settings of IPv6.
#[test]
fn a_port_without_ipv6_is_made_like_any_other() {
    for_ours("bridge", |lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &with(&bridge::conf(), json!({"mtu": 1000})));
        let port = interface(&attachment.add(), 1);
        assert_eq!(addresses(lab, &port), 0);
        assert_pings(&container, "10.10.0.1");
        attachment.del();
    });
}

/// How many addresses a link of the host has.
pub fn addresses(lab: &Lab, link: &str) -> usize {
    let listed = lab.host.json(&format!("ip -j addr show dev {link}"));
    listed[0]["addr_info"].as_array().unwrap().len()
}
