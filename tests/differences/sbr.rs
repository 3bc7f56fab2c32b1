//! Deliberate differences of sbr from the reference.

use serde_json::Value;

use super::differ;
use crate::support::attachment::Attachment;
use crate::support::netns::{Container, Lab};
use crate::support::networks::sbr;

/// A table that has routes is in use. A rule to the main table has no effect. Other plugins of the reference take a
/// previous result without a version for one of the configuration's.
const ROWS: &str = r#"
opens the namespace's path with O_CREAT in DEL | {} | add; vanish; try DEL; [ ! -e $netns ] || echo file | 0 | 1 file
takes a table without rules for free, whatever routes it has | {} | inside ip route add 192.0.2.0/24 dev eth0 table 100; add; inside ip rule|grep -v 'from all'|grep -o -m1 'lookup.*' | lookup 101 | lookup 100
adds the rules of a configured table again in a second ADD | {"table": 5000} | add; try ADD; rules | 1 2 | 0 4
removes link-local routes from main | {} | add; inside ip -6 route show table main dev net1|cut -d' ' -f1 | fe80::/64
adds IPv6 routes to the table of an IPv4 address | {} | add; inside ip -6 route show table 100 dev net1|grep -q . && echo some |  | some
loses a route by a gateway outside of all subnets | {} | inside ip route add 192.0.2.1 dev net1 scope link src 10.10.0.2; inside ip route add 192.0.2.128/25 via 192.0.2.1 dev net1; add; inside ip route show table all dev net1|grep -o '^192[^ ]*'|sort | 192.0.2.1 192.0.2.128/25
succeeds always in CHECK | {} | add; inside ip route flush table 100; inside ip rule del from 10.20.0.2; check | 1 | 0
takes one of the kernel's tables | {"table": 254} | try ADD | 1 | 0
leaves the tables' routes until the interface is deleted | {} | add; del; inside ip route show table 100 dev net1|wc -l | 0 | 3
removes every rule about an address of the interface, whatever else it matches | {} | add; inside ip rule add from 10.20.0.2 fwmark 1 lookup 77; del; rules | 1 | 0
takes the addresses from the interface in DEL | {} | add; inside ip link del net1; del; rules | 0 | 2
refuses a previous result without a version | {"prevResult": {"cniVersion": null}} | try ADD | 0 | 1
"#;

fn two_uplinks(lab: &Lab, changes: Value) -> (Container, Attachment<'_>) {
    let (container, second) = sbr::two_uplinks(lab, changes);
    (container, Attachment::clone(&second))
}

#[test]
fn sbr_differs_where_the_table_says_so() {
    differ("sbr", ROWS, two_uplinks);
}
