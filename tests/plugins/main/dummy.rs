//! dummy: an interface without a wire, for addresses; the tests need a kernel that supports it.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, interface, ips, with};
use crate::support::broken::{Break, assert_check_finds_each, breaks};
use crate::support::call::Peer;
use crate::support::contract::{
    MainPlugin, assert_del_leaves_nothing, assert_dns_of_network_or_ipam,
    assert_result_of_one_link, assert_shown,
};
use crate::support::failed_add::rows;
use crate::support::failed_add::{Case, assert_fails};
use crate::support::netns::Namespace;
use crate::support::networks::bridge::{static_ipam, warm_up};
use crate::support::networks::dummy::{conf, makes_dummies};
use crate::support::snapshot::Watch;
use crate::support::traffic::{TcpServer, assert_pings, connect};

fn dual_stack() -> Value {
    let ranges = json!([[{"subnet": "10.60.0.0/24"}], [{"subnet": "2001:db8:60::/64"}]]);
    let routes = json!([{"dst": "10.99.0.0/16"}, {"dst": "2001:db8:99::/48"}]);
    with(&conf(), json!({"ipam": {"subnet": null, "ranges": ranges, "routes": routes}}))
}

fn plugin() -> MainPlugin {
    MainPlugin { name: "dummy", prepare: makes_dummies }
}

fn dummy(namespace: &Namespace) -> Value {
    namespace.link("eth0").expect("eth0 is in the container")
}

#[test]
fn container_answers_at_its_addresses_and_del_leaves_nothing() {
    let host_address = static_ipam(&conf(), json!([{"address": "10.60.0.7/32"}]), json!([]));
    plugin().for_each_peer(|lab| {
        for (at, conf) in [dual_stack(), host_address.clone()].into_iter().enumerate() {
            let conf = with(&conf, json!({"name": format!("net{at}")}));
            warm_up(lab, &conf);
            let container = lab.container();
            container.sh("ip link set lo up"); // packets to a local address go through lo
            let before = Watch::start(lab, &[&container]);
            let attachment = lab.attach(&container, &conf);
            let result = attachment.add();
            let link = dummy(&container);
            assert_eq!(link["linkinfo"]["info_kind"], "dummy");
            assert!(link["flags"].as_array().unwrap().contains(&json!("UP")));
            ips(&result).iter().for_each(|ip| assert_pings(&container, ip));
            if at == 0 {
                attachment.check(&result).ok(); // the reference's CHECK does not find /32: see tests/differences
            }
            assert_del_leaves_nothing(&attachment, &before);
        }
    });
}

/// The use case: a service address that is reached through another interface of the container.
#[test]
fn neighbours_reach_the_address_through_another_interface() {
    plugin().for_each_peer(|lab| {
        let container = lab.container();
        container.sh("ip link set lo up");
        let through = json!({"cniVersion": "1.0.0", "name": "way", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.10.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}});
        let on_the_way = lab.attach(&container, &through).ifname("net1").add();
        let service =
            ips(&lab.attach(&container, &with(&conf(), json!({"ipam": {"routes": null}}))).add());
        lab.host.sh(&format!(
            "ip route add {} via {} dev {}",
            service[0],
            ips(&on_the_way)[0],
            interface(&on_the_way, 0)
        ));
        let _server = TcpServer::start(&container, 80);
        assert_pings(&lab.host, &service[0]);
        assert_eq!(connect(&lab.host, &format!("{}:80", service[0])).as_deref(), Some("10.10.0.1"));
    });
}

#[test]
fn result_says_what_the_kernel_has() {
    let told = ["10.60.0.2/24", "10.60.0.1", "10.99.0.0/16"];
    plugin().for_each_peer(|lab| drop(assert_result_of_one_link(lab, &conf(), told)));
}

#[test]
fn result_has_gateways_and_routes_of_both_families() {
    let told = r#"
{} | result | /ips/1/gateway | "2001:db8:60::1"
{} | result | /ips/1/interface | 0
{} | result | /routes/1/dst | "2001:db8:99::/48"
"#;
    plugin().for_each_peer(|lab| assert_shown(lab, &dual_stack(), told));
}

/// The link is created in the container, so names on the host do not conflict.
#[test]
fn a_link_of_the_host_with_the_name_is_no_obstacle() {
    plugin().for_each_peer(|lab| {
        lab.host.sh("ip link add eth0 type veth peer name eth1");
        let container = lab.container();
        let attachment = lab.attach(&container, &conf());
        attachment.add();
        attachment.del();
        assert!(lab.host.link("eth0").is_some() && container.link("eth0").is_none());
    });
}

#[test]
fn dns_is_the_network_s_or_that_of_ipam() {
    // The reference reports only the DNS of IPAM: see tests/differences.
    let fixed = static_ipam(&conf(), json!([{"address": "10.60.0.7/24"}]), json!([]));
    plugin().for_ours(|lab| assert_dns_of_network_or_ipam(lab, &fixed));
}

#[test]
fn check_finds_what_has_changed() {
    let another = "ip link del eth0 && ip link add eth0 type veth peer name other && ip link set other up && \
        ip link set eth0 up && ip addr add 10.60.0.2/24 dev eth0 && ip addr add 2001:db8:60::2/64 dev eth0 nodad";
    let another = Break::new("another kind", another, "eth0");
    let own = vec![Break::mac_changed(), Break::link_renamed(), another];
    let cases = breaks(["10.60.0.2/24", "2001:db8:60::2/64"], own);
    plugin().for_each_peer(|lab| assert_check_finds_each(lab, &dual_stack(), &cases));
    // The reference's CHECK ignores routes: see tests/differences.
    let route = [Break::new("route removed", "ip route del 10.99.0.0/16", "10.99.0.0/16")];
    plugin().for_ours(|lab| assert_check_finds_each(lab, &conf(), &route));
}

#[test]
fn an_ipam_plugin_is_required() {
    for_each_peer("dummy", |lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        for ipam in [json!(null), json!({"type": null}), json!({"type": ""})] {
            let error =
                lab.attach(&container, &with(&conf(), json!({"ipam": ipam}))).try_add().err();
            assert!(
                error.text().contains("dummy interface requires an IPAM configuration"),
                "{error:?}"
            );
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, 7, "{error:?}");
                assert!(error.text().contains("ipam.type: "), "{error:?}");
            }
        }
        before.assert_unchanged("the refused ADDs");
    });
}

#[test]
fn add_fails_and_nothing_has_changed() {
    let cases = rows(
        r#"
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam
IPAM refuses | {"ipam": {"subnet": "10.60.0.0/31"}} | 7: 10.60.0.0/31
route unreachable | {"ipam": {"routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}} | 100: 10.88.0.1
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other
a dummy exists | {} | 102: eth0 | in: ip link add eth0 type dummy
a second name is taken | {} | 102: eth0 | in: ip link add other type veth peer name more && ip link property add dev other altname eth0
"#,
    );
    let cases: Vec<Case> = cases.into_iter().map(Case::reference_leaves_nothing).collect();
    plugin().for_each_peer(|lab| cases.iter().for_each(|case| assert_fails(lab, &conf(), case)));
}

/// IPAM has no address: ADD leaves nothing, while the reference leaves the interface (see
/// tests/differences).
#[test]
fn add_without_an_address_fails_and_nothing_has_changed() {
    plugin().for_ours(|lab| {
        let no_address = static_ipam(&conf(), json!([]), json!([]));
        assert_fails(
            lab,
            &no_address,
            &Case::new("IPAM has no address", json!({}), 101, "missing IP config"),
        );
    });
}
