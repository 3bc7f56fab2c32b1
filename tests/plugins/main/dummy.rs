//! dummy: an interface without a wire, for addresses; the tests need a kernel that supports it.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, interface, ips, with};
use crate::support::contract::{
    MainPlugin, assert_del_leaves_nothing, assert_result_of_one_link, assert_shown,
};
use crate::support::failed_add::{Case, assert_fails, rows};
use crate::support::networks::bridge::{static_ipam, warm_up};
use crate::support::networks::dummy::{conf, makes_dummies};
use crate::support::networks::ptp;
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

#[test]
fn container_answers_at_its_addresses_and_del_leaves_nothing() {
    let host_address = static_ipam(&conf(), json!([{"address": "10.60.0.7/32"}]), json!([]));
    plugin().for_each_peer(|lab| {
        for (at, conf) in [&dual_stack(), &host_address].into_iter().enumerate() {
            let conf = with(conf, json!({"name": format!("net{at}")}));
            warm_up(lab, &conf);
            let container = lab.container();
            container.sh("ip link set lo up"); // packets to a local address go through lo
            let before = Watch::start(lab, &[&container]);
            let attachment = lab.attach(&container, &conf);
            let result = attachment.add();
            let link = container.link("eth0").unwrap();
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
    let through = with(&ptp::conf(), json!({"name": "way"}));
    plugin().for_each_peer(|lab| {
        let container = lab.container();
        container.sh("ip link set lo up");
        let way = lab.attach(&container, &through).ifname("net1").add();
        let conf = with(&conf(), json!({"ipam": {"routes": null}}));
        let service = &ips(&lab.attach(&container, &conf).add())[0];
        let (via, dev) = (&ips(&way)[0], interface(&way, 0));
        lab.host.sh(&format!("ip route add {service} via {via} dev {dev}"));
        let _server = TcpServer::start(&container, 80);
        assert_pings(&lab.host, service);
        assert_eq!(connect(&lab.host, &format!("{service}:80")).as_deref(), Some("10.10.0.1"));
    });
}

#[test]
fn result_says_what_the_kernel_has() {
    let told = ["10.60.0.2/24", "10.60.0.1", "10.99.0.0/16"];
    let of_both_families = r#"
{} | result | /ips/1/gateway | "2001:db8:60::1"
{} | result | /ips/1/interface | 0
{} | result | /routes/1/dst | "2001:db8:99::/48"
"#;
    plugin().for_each_peer(|lab| {
        assert_result_of_one_link(lab, &conf(), told);
        assert_shown(lab, &dual_stack(), of_both_families);
    });
}

/// The link is created in the container, so names on the host do not conflict.
#[test]
fn a_link_of_the_host_with_the_name_is_no_obstacle() {
    plugin().for_each_peer(|lab| {
        lab.host.sh("ip link add eth0 type veth peer name eth1");
        let (container, attachment, _) = lab.added(&conf());
        attachment.del();
        assert!(lab.host.link("eth0").is_some() && container.link("eth0").is_none());
    });
}

#[test]
fn an_ipam_plugin_is_required() {
    for_each_peer("dummy", |lab| {
        for ipam in [json!(null), json!({"type": null}), json!({"type": ""})] {
            let case = Case::new("the refused ADD", json!({"ipam": ipam}), 7, "ipam.type: ");
            assert_fails(lab, &conf(), &case.reference_leaves_nothing());
            let refused = lab.attach(&lab.container(), &with(&conf(), json!({"ipam": ipam})));
            let text = refused.try_add().err().text();
            assert!(text.contains("dummy interface requires an IPAM configuration"), "{text}");
        }
    });
}

/// Where IPAM has no address, the reference leaves the interface (see tests/differences).
#[test]
fn add_fails_and_nothing_has_changed() {
    let cases = rows(
        r#"
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam | both
IPAM refuses | {"ipam": {"subnet": "10.60.0.0/31"}} | 7: 10.60.0.0/31 | both
IPAM has no address | {"ipam": {"type": "static", "subnet": null, "addresses": [], "routes": null}} | 101: missing IP config
route unreachable | {"ipam": {"routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}} | 100: 10.88.0.1 | both
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other | both
a dummy exists | {} | 102: eth0 | in: ip link add eth0 type dummy | both
a second name is taken | {} | 102: eth0 | in: ip link add other type veth peer name more && ip link property add dev other altname eth0 | both
"#,
    );
    plugin().for_each_peer(|lab| cases.iter().for_each(|case| assert_fails(lab, &conf(), case)));
}
