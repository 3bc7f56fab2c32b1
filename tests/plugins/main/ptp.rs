//! ptp: a container behind a link of its own, with the host as its gateway.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, for_ours, interface, ips, with};
use crate::support::broken::{Break, assert_check_finds_each, breaks};
use crate::support::contract::{
    assert_del_leaves_nothing, assert_dns_of_network_or_ipam, assert_shown,
};
use crate::support::failed_add::rows;
use crate::support::failed_add::{Case, assert_all_fail};
use crate::support::networks::bridge::{static_ipam, warm_up};
use crate::support::networks::ptp::conf;
use crate::support::snapshot::Watch;
use crate::support::traffic::{
    assert_masqueraded, assert_not_masqueraded, assert_pings, assert_pings_with,
    assert_two_containers_talk,
};

fn dual_stack() -> Value {
    with(
        &conf(),
        json!({"ipam": {
            "subnet": null,
            "ranges": [[{"subnet": "10.10.0.0/24"}], [{"subnet": "2001:db8:10::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        }}),
    )
}

#[test]
fn container_reaches_its_gateways_and_del_leaves_nothing() {
    let v6 =
        with(&conf(), json!({"ipam": {"subnet": "2001:db8:10::/64", "routes": [{"dst": "::/0"}]}}));
    let cases = [
        (conf(), vec!["10.10.0.1"]),
        (v6, vec!["2001:db8:10::1"]),
        (dual_stack(), vec!["10.10.0.1", "2001:db8:10::1"]),
    ];
    for_each_peer("ptp", |lab| {
        for (at, (conf, gateways)) in cases.iter().enumerate() {
            let conf = with(conf, json!({"name": format!("net{at}")}));
            warm_up(lab, &conf);
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            let attachment = lab.attach(&container, &conf);
            let result = attachment.add();
            gateways.iter().for_each(|gateway| assert_pings(&container, gateway));
            ips(&result).iter().for_each(|ip| assert_pings(&lab.host, ip));
            attachment.check(&result).ok();
            assert_del_leaves_nothing(&attachment, &before);
        }
    });
}

#[test]
fn result_says_what_the_kernel_has() {
    for_each_peer("ptp", |lab| {
        let container = lab.container();
        let result = lab.attach(&container, &conf()).add();
        let host = lab.host.link(&interface(&result, 0)).unwrap();
        let expected = json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                {"name": host["ifname"], "mac": host["address"]},
                {"name": "eth0", "mac": container.link("eth0").unwrap()["address"], "sandbox": container.netns},
            ],
            "ips": [{"address": "10.10.0.2/24", "gateway": "10.10.0.1", "interface": 1}],
            "routes": [{"dst": "0.0.0.0/0"}],
        });
        assert_eq!(result, expected);
        let veth = host["ifname"].as_str().unwrap();
        assert_eq!(lab.host.addresses(veth), ["10.10.0.1/32"]);
        assert_eq!(container.addresses("eth0"), ["10.10.0.2/24"]);
        let route = |namespace: &crate::support::netns::Namespace, dst: &str| {
            namespace.json(&format!("ip -j -d route show {dst}"))[0].clone()
        };
        let to_container = route(&lab.host, "10.10.0.2");
        assert_eq!(
            (&to_container["dev"], &to_container["scope"]),
            (&host["ifname"], &json!("host"))
        );
        let gateway = route(&container, "10.10.0.1");
        assert_eq!((&gateway["scope"], &gateway["prefsrc"]), (&json!("link"), &json!("10.10.0.2")));
        let subnet = route(&container, "10.10.0.0/24");
        assert_eq!(
            (&subnet["gateway"], &subnet["prefsrc"]),
            (&json!("10.10.0.1"), &json!("10.10.0.2")),
            "neighbours are reached through the host"
        );
        assert_eq!(route(&container, "default")["gateway"], "10.10.0.1");
    });
}

#[test]
fn two_containers_reach_each_other_through_the_host() {
    for_each_peer("ptp", |lab| assert_two_containers_talk(lab, &dual_stack()));
}

#[test]
fn masquerade_hides_the_container_from_the_outside_only() {
    for_each_peer("ptp", |lab| {
        for backend in [None, Some("iptables"), Some("nftables")] {
            if backend == Some("nftables") {
                lab.hide_iptables();
            }
            let masqueraded =
                with(&dual_stack(), json!({"ipMasq": true, "ipMasqBackend": backend}));
            warm_up(lab, &masqueraded);
            let (container, neighbour) = (lab.container(), lab.container());
            let before = Watch::start(lab, &[&container, &neighbour]);
            let (attachment, other) =
                (lab.attach(&container, &masqueraded), lab.attach(&neighbour, &masqueraded));
            let own = ips(&attachment.add());
            let to = ips(&other.add());
            own.iter().for_each(|ip| assert_masqueraded(lab, &container, ip));
            {
                let ear = crate::support::traffic::Ear::listen(&neighbour);
                to.iter().for_each(|ip| assert_pings(&container, ip));
                assert_eq!(ear.heard(), own, "{backend:?}");
            }
            attachment.del();
            to.iter().for_each(|ip| assert_masqueraded(lab, &neighbour, ip));
            other.del();
            before.assert_unchanged(&format!("ADD with {backend:?}"));
        }
        let container = lab.container();
        let own = ips(&lab.attach(&container, &dual_stack()).add());
        own.iter().for_each(|ip| assert_not_masqueraded(lab, &container, ip));
    });
}

#[test]
fn mtu_is_that_of_both_ends_and_the_largest_packet_passes() {
    for_each_peer("ptp", |lab| {
        let container = lab.container();
        let result = lab.attach(&container, &with(&conf(), json!({"mtu": 5000}))).add();
        assert_eq!(container.link("eth0").unwrap()["mtu"], 5000);
        assert_eq!(lab.host.link(&interface(&result, 0)).unwrap()["mtu"], 5000);
        assert_pings_with(&container, "10.10.0.1", "-M do -s 4972");
    });
}

#[test]
fn dns_of_the_network_replaces_that_of_ipam_as_a_whole() {
    let address = json!([{"address": "10.10.0.7/24", "gateway": "10.10.0.1"}]);
    let fixed = static_ipam(&conf(), address, json!([]));
    for_each_peer("ptp", |lab| assert_dns_of_network_or_ipam(lab, &fixed));
}

/// The reference compares neither the host's end nor masquerading.
#[test]
fn check_finds_what_has_changed() {
    let route = Break::new("default route removed", "ip route del default", "0.0.0.0/0");
    let own = vec![route, Break::mac_changed()];
    let cases = breaks(["10.10.0.2/24", "2001:db8:10::2/64"], own);
    for_each_peer("ptp", |lab| assert_check_finds_each(lab, &dual_stack(), &cases));
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
