//! bandwidth: limits that `net sync` sets again.

use super::*;
use crate::support::synced::Synced;

/// The link of the host that leads to the container.
pub fn end(synced: &Synced<'_>) -> String {
    let index = &synced.container.link("eth0").unwrap()["link_index"];
    let links = synced.lab.host.json("ip -j link show type veth");
    let found = links.as_array().unwrap().iter().find(|link| link["ifindex"] == *index).unwrap();
    found["ifname"].as_str().unwrap().to_owned()
}

/// The limit of the runtime, which only the record has.
#[test]
fn a_limit_of_the_runtime_is_set_again() {
    for_able_ours(|lab| {
        let capable = bandwidth(json!({"capabilities": {"bandwidth": true}}));
        let synced = attach(lab, &[network(), capable], "--bandwidth ingress=20M");
        let end = end(&synced);
        let fault = format!("tc qdisc del dev {end} root");
        synced.assert_repaired(&fault, &[&format!("limit ingress at {end:?} to 20000000 bit/s")]);
    });
}

#[test]
fn a_qdisc_of_an_administrator_stays() {
    for_able_ours(|lab| {
        let synced = attach(lab, &[bridge::dual_stack(), both()], "");
        let end = end(&synced);
        lab.host.sh(&format!("tc qdisc replace dev {end} root handle 7: pfifo limit 9"));
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(format!("{outcome:?}").contains("has another qdisc"), "{outcome:?}");
        assert!(lab.host.sh(&format!("tc qdisc show dev {end}")).contains("pfifo 7:"));
    });
}
