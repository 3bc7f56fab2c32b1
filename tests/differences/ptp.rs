//! Deliberate differences of ptp from the reference.

use serde_json::json;

use super::{FAILED, OK, differs};
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::ptp;
use crate::support::traffic::assert_pings;

/// The reference lets the kernel add a route to the whole subnet and then removes it; in between a
/// packet can take it.
#[test]
fn ptp_never_has_its_subnet_on_the_link() {
    differs("ptp", true, false, |lab| {
        let container = lab.container();
        lab.attach(&container, &ptp::conf()).add();
        container.json("ip -j addr show dev eth0")[0]["addr_info"][0]["noprefixroute"] == true
    });
}

/// ptp announces a reused address, as bridge does. The reference's ptp does not.
#[test]
fn ptp_tells_neighbours_of_a_new_container() {
    differs("ptp", "1".to_owned(), "0".to_owned(), |lab| {
        let container = lab.container();
        lab.attach(&container, &ptp::conf()).add();
        container.sh("cat /proc/sys/net/ipv4/conf/eth0/arp_notify").trim().to_owned()
    });
}

/// Two addresses of a subnet share a gateway, which the reference adds twice: "file exists".
#[test]
fn ptp_takes_two_addresses_of_one_subnet() {
    let addresses = json!([{"address": "10.10.0.7/24", "gateway": "10.10.0.1"}, {"address": "10.10.0.8/24", "gateway": "10.10.0.1"}]);
    let conf = static_ipam(&ptp::conf(), addresses, json!([]));
    differs("ptp", OK, FAILED, |lab| lab.attach(&lab.container(), &conf).try_add().status);
}

/// With a /32 the reference adds IPAM's routes before the route to the gateway, and removes a
/// subnet route that does not exist.
#[test]
fn ptp_takes_a_host_address() {
    differs("ptp", OK, FAILED, |lab| {
        let container = lab.container();
        let alone = static_ipam(
            &ptp::conf(),
            json!([{"address": "10.10.0.7/32", "gateway": "10.10.0.1"}]),
            json!([{"dst": "0.0.0.0/0"}]),
        );
        let attachment = lab.attach(&container, &alone);
        let outcome = attachment.try_add();
        if outcome.status == OK {
            assert_pings(&container, "10.10.0.1");
            assert_pings(&container, crate::support::netns::UPLINK[0]);
            assert_eq!(attachment.check(&outcome.ok()).status, OK);
        }
        outcome.status
    });
}
