//! ptp: a container behind a link of its own, with the host as its gateway.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, for_ours, interface, ips, with};
use crate::support::contract::{assert_del_leaves_nothing, assert_shown};
use crate::support::failed_add::{Case, assert_all_fail, rows};
use crate::support::netns::Lab;
use crate::support::networks::bridge::warm_up;
use crate::support::networks::ptp::conf;
use crate::support::peers::each_case;
use crate::support::traffic::{
    Ear, assert_masqueraded, assert_mtu_passes, assert_not_masqueraded, assert_pings,
    assert_two_containers_talk,
};

fn dual_stack() -> Value {
    let ranges = json!([[{"subnet": "10.10.0.0/24"}], [{"subnet": "2001:db8:10::/64"}]]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    with(&conf(), json!({"ipam": {"subnet": null, "ranges": ranges, "routes": routes}}))
}

#[test]
fn container_reaches_its_gateways_and_del_leaves_nothing() {
    let v6 = json!({"ipam": {"subnet": "2001:db8:10::/64", "routes": [{"dst": "::/0"}]}});
    let gateways = ["10.10.0.1", "2001:db8:10::1"];
    let cases = [
        (conf(), &gateways[..1]),
        (with(&conf(), v6), &gateways[1..]),
        (dual_stack(), &gateways[..]),
    ];
    for_each_peer("ptp", |lab| {
        for (at, (conf, gateways)) in cases.iter().enumerate() {
            let conf = with(conf, json!({"name": format!("net{at}")}));
            warm_up(lab, &conf);
            let (container, attachment, before) = lab.watched(&conf);
            let result = attachment.add();
            gateways.iter().for_each(|gateway| assert_pings(&container, gateway));
            ips(&result).iter().for_each(|ip| assert_pings(&lab.host, ip));
            attachment.check(&result).ok();
            assert_del_leaves_nothing(&attachment, &before);
        }
    });
}

fn result_says_what_the_kernel_has(lab: &Lab) {
    let (container, _, result) = lab.added(&conf());
    let host = lab.host.link(&interface(&result, 0)).unwrap();
    let own = container.link("eth0").unwrap()["address"].clone();
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": host["ifname"], "mac": host["address"]},
            {"name": "eth0", "mac": own, "sandbox": container.netns},
        ],
        "ips": [{"address": "10.10.0.2/24", "gateway": "10.10.0.1", "interface": 1}],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    assert_eq!(result, expected);
    assert_eq!(lab.host.addresses(host["ifname"].as_str().unwrap()), ["10.10.0.1/32"]);
    assert_eq!(container.addresses("eth0"), ["10.10.0.2/24"]);
    let to_container = &lab.host.json("ip -j -d route show 10.10.0.2")[0];
    assert_eq!(to_container["dev"], host["ifname"]);
    assert_eq!(to_container["scope"], "host");
    // Neighbours are reached through the host.
    for [dst, key, expected] in [
        ["10.10.0.1", "scope", "link"],
        ["10.10.0.1", "prefsrc", "10.10.0.2"],
        ["10.10.0.0/24", "gateway", "10.10.0.1"],
        ["10.10.0.0/24", "prefsrc", "10.10.0.2"],
        ["default", "gateway", "10.10.0.1"],
    ] {
        let route = container.json(&format!("ip -j -d route show {dst}"));
        assert_eq!(route[0][key], expected, "{dst}: {key}");
    }
}

#[test]
fn two_containers_reach_each_other_through_the_host() {
    for_each_peer("ptp", |lab| assert_two_containers_talk(lab, &dual_stack()));
}

fn masquerade_hides_the_container_from_the_outside_only(lab: &Lab) {
    for backend in [None, Some("iptables"), Some("nftables")] {
        if backend == Some("nftables") {
            lab.hide_iptables();
        }
        let conf = with(&dual_stack(), json!({"ipMasq": true, "ipMasqBackend": backend}));
        warm_up(lab, &conf);
        let (container, attachment, before) = lab.watched(&conf);
        let (neighbour, other, of_neighbour) = lab.watched(&conf);
        let [own, to] = [&attachment, &other].map(|attachment| ips(&attachment.add()));
        own.iter().for_each(|ip| assert_masqueraded(lab, &container, ip));
        {
            let ear = Ear::listen(&neighbour);
            to.iter().for_each(|ip| assert_pings(&container, ip));
            assert_eq!(ear.heard(), own, "{backend:?}");
        }
        attachment.del();
        to.iter().for_each(|ip| assert_masqueraded(lab, &neighbour, ip));
        other.del();
        before.assert_unchanged(&format!("ADD with {backend:?}"));
        of_neighbour.assert_unchanged(&format!("ADD with {backend:?}"));
    }
    let (container, _, result) = lab.added(&dual_stack());
    ips(&result).iter().for_each(|ip| assert_not_masqueraded(lab, &container, ip));
}

fn mtu_is_that_of_both_ends_and_the_largest_packet_passes(lab: &Lab) {
    let (container, _, result) = lab.added(&with(&conf(), json!({"mtu": 5000})));
    assert_eq!(container.link("eth0").unwrap()["mtu"], 5000);
    assert_eq!(lab.host.link(&interface(&result, 0)).unwrap()["mtu"], 5000);
    assert_mtu_passes(&container, "10.10.0.1", 5000);
}

pub fn failing() -> Vec<Case> {
    rows(
        r#"
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam | both
mtu out of range | {"mtu": 100000} | 7: mtu: 100000 | both
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other | both
address without gateway | {"ipam": {"type": "static", "subnet": null, "addresses": [{"address": "10.10.0.7/24"}], "routes": null}} | 7: 10.10.0.7
route unreachable | {"ipMasq": true, "ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}} | 100: 10.88.0.1
"#,
    )
}

#[test]
fn add_fails_and_nothing_has_changed() {
    assert_all_fail("ptp", &conf(), &failing());
}

/// The reference accepts mtu and advmss and ignores them: see tests/differences.
#[test]
fn attributes_of_routes_are_in_the_container() {
    let route = r#"
{"ipam": {"routes": [{"dst": "10.91.0.0/16", "priority": 5}]}} | in: ip -j route show 10.91.0.0/16 | /0/metric | 5
{"ipam": {"routes": [{"dst": "10.91.0.0/16", "mtu": 1300}]}} | in: ip -j -d route show 10.91.0.0/16 | /0/metrics/0/mtu | 1300
{"ipam": {"routes": [{"dst": "10.91.0.0/16", "advmss": 1200}]}} | in: ip -j -d route show 10.91.0.0/16 | /0/metrics/0/advmss | 1200
"#;
    for_ours("ptp", |lab| assert_shown(lab, &conf(), route));
}

each_case! { |case| for_each_peer("ptp", case);
    result_says_what_the_kernel_has
    masquerade_hides_the_container_from_the_outside_only
    mtu_is_that_of_both_ends_and_the_largest_packet_passes
}
