//! Deliberate differences of sbr from the reference.

use serde_json::json;

use super::{FAILED, OK, differs};
use crate::plugins::meta::sbr::routes;
use crate::support::netns::Lab;
use crate::support::networks::sbr;

/// The reference opens the namespace's path with O_CREAT.
#[test]
fn del_of_sbr_does_not_need_the_namespace() {
    differs("sbr", (OK, false), (FAILED, true), |lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        container.vanish();
        (sbr.try_del().status, lab.path(&container.netns).exists())
    });
}

/// The reference takes a table without rules for free, whatever routes it has.
#[test]
fn a_table_that_has_routes_is_in_use() {
    differs("sbr", "101".to_owned(), "100".to_owned(), |lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        container.sh("ip route add 192.0.2.0/24 dev eth0 table 100");
        sbr.add();
        sbr::rules(&container)[0].1.clone()
    });
}

/// With a configured table the reference's second ADD adds the same rules again.
#[test]
fn a_second_add_of_sbr_is_refused() {
    differs("sbr", (FAILED, 2), (OK, 4), |lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({"table": 5000}));
        sbr.add();
        (sbr.try_add().status, sbr::rules(&container).len())
    });
}

/// The reference removes them from main.
#[test]
fn sbr_leaves_link_local_routes_in_main() {
    differs("sbr", vec!["fe80::/64".to_owned()], vec![], |lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        routes(&container, 6, "main", "net1")
    });
}

/// The reference adds IPv6 routes to the table of an IPv4 address.
#[test]
fn a_table_of_sbr_has_routes_of_its_address_s_family() {
    differs("sbr", true, false, |lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        routes(&container, 6, "100", "net1").is_empty()
    });
}

/// A gateway outside the subnets of all addresses: the reference removes the route from main and
/// adds it nowhere.
#[test]
fn sbr_loses_no_route() {
    differs("sbr", [true, true], [false, false], |lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        container.sh("ip route add 192.0.2.1 dev net1 scope link src 10.10.0.2; ip route add 192.0.2.128/25 via 192.0.2.1 dev net1");
        sbr.add();
        let found = routes(&container, 4, "all", "net1");
        ["192.0.2.1", "192.0.2.128/25"].map(|dst| found.iter().any(|found| found == dst))
    });
}

/// The reference's CHECK always succeeds.
#[test]
fn check_of_sbr_looks_at_rules_and_routes() {
    differs("sbr", FAILED, OK, |lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        container.sh("ip route flush table 100; ip rule del from 10.20.0.2");
        sbr.check(&sbr.result).status
    });
}

/// A rule to the main table has no effect.
#[test]
fn sbr_refuses_the_kernel_s_tables() {
    differs("sbr", FAILED, OK, |lab| {
        sbr::two_uplinks(lab, json!({"table": 254})).1.try_add().status
    });
}

/// The reference leaves the tables' routes until the interface is deleted.
#[test]
fn del_of_sbr_removes_the_tables_routes() {
    differs("sbr", 0, 3, |lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        sbr.del();
        routes(&container, 4, "100", "net1").len()
    });
}

/// The number of rules left after ADD, the script in the container, and DEL.
fn rules_after_del(lab: &Lab, script: &str) -> usize {
    let (container, sbr) = sbr::two_uplinks(lab, json!({}));
    sbr.add();
    container.sh(script);
    sbr.del();
    sbr::rules(&container).len()
}

/// The reference removes every rule about an address of the interface, whatever else it matches.
#[test]
fn del_of_sbr_leaves_rules_of_others() {
    differs("sbr", 1, 0, |lab| {
        rules_after_del(lab, "ip rule add from 10.20.0.2 fwmark 1 lookup 77")
    });
}

/// The reference takes the addresses from the interface.
#[test]
fn del_of_sbr_finds_the_rules_of_an_interface_that_is_gone() {
    differs("sbr", 0, 2, |lab| rules_after_del(lab, "ip link del net1"));
}

/// Other plugins of the reference take such a prevResult for one of the configuration's version.
#[test]
fn sbr_takes_a_previous_result_without_a_version() {
    differs("sbr", OK, FAILED, |lab| {
        let (_container, sbr) = sbr::two_uplinks(lab, json!({"prevResult": {"cniVersion": null}}));
        sbr.try_add().status
    });
}
