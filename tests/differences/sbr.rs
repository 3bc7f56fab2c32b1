//! Deliberate differences of sbr from the reference.

use serde_json::json;

use super::{FAILED, OK, differs};
use crate::plugins::meta::sbr::routes;
use crate::support::netns::Lab;
use crate::support::networks::sbr;

/// The reference opens the namespace's path with O_CREAT.
#[test]
fn del_of_sbr_does_not_need_the_namespace() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        container.vanish();
        (sbr.try_del().status, lab.path(&container.netns).exists())
    };
    differs("sbr", observe, (OK, false), (FAILED, true));
}

/// The reference takes a table without rules for free, whatever routes it has.
#[test]
fn a_table_that_has_routes_is_in_use() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        container.sh("ip route add 192.0.2.0/24 dev eth0 table 100");
        sbr.add();
        sbr::rules(&container)[0].1.clone()
    };
    differs("sbr", observe, "101".to_owned(), "100".to_owned());
}

/// With a configured table the reference's second ADD adds the same rules again.
#[test]
fn a_second_add_of_sbr_is_refused() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({"table": 5000}));
        sbr.add();
        (sbr.try_add().status, sbr::rules(&container).len())
    };
    differs("sbr", observe, (FAILED, 2), (OK, 4));
}

/// The reference removes them from main.
#[test]
fn sbr_leaves_link_local_routes_in_main() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        routes(&container, 6, "main", "net1")
    };
    differs("sbr", observe, vec!["fe80::/64".to_owned()], vec![]);
}

/// The reference adds IPv6 routes to the table of an IPv4 address.
#[test]
fn a_table_of_sbr_has_routes_of_its_address_s_family() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        routes(&container, 6, "100", "net1").is_empty()
    };
    differs("sbr", observe, true, false);
}

/// A gateway outside the subnets of all addresses: the reference removes the route from main and
/// adds it nowhere.
#[test]
fn sbr_loses_no_route() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        container.sh("ip route add 192.0.2.1 dev net1 scope link src 10.10.0.2; ip route add 192.0.2.128/25 via 192.0.2.1 dev net1");
        sbr.add();
        let found = routes(&container, 4, "all", "net1");
        ["192.0.2.1", "192.0.2.128/25"].map(|dst| found.iter().any(|found| found == dst))
    };
    differs("sbr", observe, [true, true], [false, false]);
}

/// The reference's CHECK always succeeds.
#[test]
fn check_of_sbr_looks_at_rules_and_routes() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        container.sh("ip route flush table 100; ip rule del from 10.20.0.2");
        sbr.check(&sbr.result).status
    };
    differs("sbr", observe, FAILED, OK);
}

/// A rule to the main table has no effect.
#[test]
fn sbr_refuses_the_kernel_s_tables() {
    let observe = |lab: &Lab| sbr::two_uplinks(lab, json!({"table": 254})).1.try_add().status;
    differs("sbr", observe, FAILED, OK);
}

/// The reference leaves the tables' routes until the interface is deleted.
#[test]
fn del_of_sbr_removes_the_tables_routes() {
    let observe = |lab: &Lab| {
        let (container, sbr) = sbr::two_uplinks(lab, json!({}));
        sbr.add();
        sbr.del();
        routes(&container, 4, "100", "net1").len()
    };
    differs("sbr", observe, 0, 3);
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
    let observe = |lab: &Lab| rules_after_del(lab, "ip rule add from 10.20.0.2 fwmark 1 lookup 77");
    differs("sbr", observe, 1, 0);
}

/// The reference takes the addresses from the interface.
#[test]
fn del_of_sbr_finds_the_rules_of_an_interface_that_is_gone() {
    differs("sbr", |lab| rules_after_del(lab, "ip link del net1"), 0, 2);
}

/// Other plugins of the reference take such a prevResult for one of the configuration's version.
#[test]
fn sbr_takes_a_previous_result_without_a_version() {
    let observe = |lab: &Lab| {
        let (_container, sbr) = sbr::two_uplinks(lab, json!({"prevResult": {"cniVersion": null}}));
        sbr.try_add().status
    };
    differs("sbr", observe, OK, FAILED);
}
