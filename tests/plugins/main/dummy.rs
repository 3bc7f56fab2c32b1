//! dummy: an interface without a wire, for addresses; the tests need a kernel that supports it.

use serde_json::{Value, json};

use crate::parallel::all_at_once;
use crate::support::attachment::{EVERY_VERSION, for_each_peer, for_ours, interface, ips, with};
use crate::support::call::Peer;
use crate::support::contract::{MainPlugin, contract};
use crate::support::failed_add::{Case, fail};
use crate::support::netns::{Lab, Namespace};
use crate::support::networks::bridge::{static_ipam, warm_up};
use crate::support::networks::dummy::{conf, makes_dummies};
use crate::support::snapshot::Watch;
use crate::support::traffic::{TcpServer, assert_pings, connect};

fn dual_stack() -> Value {
    let ranges = json!([[{"subnet": "10.60.0.0/24"}], [{"subnet": "2001:db8:60::/64"}]]);
    let routes = json!([{"dst": "10.99.0.0/16"}, {"dst": "2001:db8:99::/48"}]);
    with(&conf(), json!({"ipam": {"subnet": null, "ranges": ranges, "routes": routes}}))
}

fn for_each_peer_with_dummies(case: impl Fn(&Lab)) {
    for_each_peer("dummy", |lab| {
        if makes_dummies(lab) {
            case(lab);
        }
    });
}

fn for_ours_with_dummies(case: impl Fn(&Lab)) {
    for_ours("dummy", |lab| {
        if makes_dummies(lab) {
            case(lab);
        }
    });
}

fn dummy(namespace: &Namespace) -> Value {
    namespace.link("eth0").expect("eth0 is in the container")
}

#[test]
fn the_contract_of_main_plugins_is_kept() {
    contract(&MainPlugin { name: "dummy", conf: conf(), prepare: makes_dummies });
}

#[test]
fn container_answers_at_its_addresses_and_del_leaves_nothing() {
    let host_address = static_ipam(&conf(), json!([{"address": "10.60.0.7/32"}]), json!([]));
    for_each_peer_with_dummies(|lab| {
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
            assert!(!before.changes_now().is_empty(), "the snapshot sees an attachment");
            attachment.del();
            before.assert_unchanged("ADD");
            attachment.del();
            before.assert_unchanged("the first DEL");
        }
    });
}

/// The use case: a service address that is reached through another interface of the container.
#[test]
fn neighbours_reach_the_address_through_another_interface() {
    for_each_peer_with_dummies(|lab| {
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
    for_each_peer_with_dummies(|lab| {
        let container = lab.container();
        let result = lab.attach(&container, &conf()).add();
        let interfaces = json!([{"name": "eth0", "mac": dummy(&container)["address"], "sandbox": container.netns}]);
        let expected = json!({
            "cniVersion": "1.0.0",
            "interfaces": interfaces,
            "ips": [{"address": "10.60.0.2/24", "gateway": "10.60.0.1", "interface": 0}],
            "routes": [{"dst": "10.99.0.0/16"}],
        });
        assert_eq!(result, expected);
        assert_eq!(container.addresses("eth0"), ["10.60.0.2/24"]);
        assert_eq!(container.json("ip -j route show 10.99.0.0/16")[0]["gateway"], "10.60.0.1");
    });
}

#[test]
fn every_version_gets_a_result_of_its_shape() {
    for_each_peer_with_dummies(|lab| {
        for version in EVERY_VERSION {
            let container = lab.container();
            let attachment =
                lab.attach(&container, &with(&dual_stack(), json!({"cniVersion": version})));
            let result = attachment.add();
            let shown = version.unwrap_or("0.1.0");
            assert_eq!(result["cniVersion"], shown);
            if shown < "0.3.0" {
                assert_eq!(result["ip4"]["gateway"], "10.60.0.1");
                assert_eq!(result["ip6"]["routes"], json!([{"dst": "2001:db8:99::/48"}]));
            } else {
                let mac = &dummy(&container)["address"];
                let expected = json!([{"name": "eth0", "mac": mac, "sandbox": container.netns}]);
                assert_eq!(result["interfaces"], expected);
                assert_eq!(result["ips"][1]["gateway"], "2001:db8:60::1");
                assert_eq!(
                    result["ips"][1].get("version"),
                    (shown < "1.0.0").then_some(&json!("6")),
                    "{shown}"
                );
                assert_eq!(result["ips"][1]["interface"], 0);
                assert_eq!(result.get("dns"), (shown < "1.0.0").then_some(&json!({})), "{shown}");
            }
            attachment.assert_operations_of(shown, &result);
            attachment.del();
        }
    });
}

/// The link is created in the container, so names on the host do not conflict.
#[test]
fn a_link_of_the_host_with_the_name_is_no_obstacle() {
    for_each_peer_with_dummies(|lab| {
        lab.host.sh("ip link add eth0 type veth peer name eth1");
        let container = lab.container();
        let attachment = lab.attach(&container, &conf());
        attachment.add();
        attachment.del();
        assert!(lab.host.link("eth0").is_some() && container.link("eth0").is_none());
    });
}

#[test]
fn containers_come_and_go_at_the_same_time() {
    for_each_peer_with_dummies(|lab| {
        warm_up(lab, &conf());
        let containers: Vec<_> = (0..4).map(|_| lab.container()).collect();
        let before = Watch::start(lab, &[&containers[0], &containers[3]]);
        let attachments: Vec<_> = containers
            .iter()
            .flat_map(|container| {
                ["eth0", "net1"].map(|ifname| lab.attach(container, &conf()).ifname(ifname))
            })
            .collect();
        let results: Vec<Value> =
            all_at_once(&attachments, "ADD").iter().map(|outcome| outcome.ok()).collect();
        for (attachment, result) in attachments.iter().zip(&results) {
            attachment.check(result).ok();
        }
        all_at_once(&attachments, "DEL")
            .iter()
            .for_each(|outcome| assert_eq!(outcome.ok(), Value::Null));
        before.assert_unchanged("eight ADDs");
    });
}

#[test]
fn dns_is_the_network_s_or_that_of_ipam() {
    // The reference reports only the DNS of IPAM: see tests/differences.
    let told = json!({"nameservers": ["192.0.2.53"], "domain": "ipam.example"});
    let cases = [
        (json!({}), told.clone()),
        (json!({"dns": {"search": ["net.example"]}}), json!({"search": ["net.example"]})),
        (json!({"dns": {"options": ["ndots:5"]}}), json!({"options": ["ndots:5"]})),
        (json!({"dns": {"nameservers": []}}), json!({})),
    ];
    for_ours_with_dummies(|lab| {
        for (changes, expected) in &cases {
            let conf = with(&conf(), json!({"cniVersion": "0.4.0"}));
            let conf = static_ipam(&conf, json!([{"address": "10.60.0.7/24"}]), json!([]));
            let conf = with(&conf, json!({"ipam": {"dns": told}}));
            let attachment = lab.attach(&lab.container(), &with(&conf, changes.clone()));
            assert_eq!(attachment.add()["dns"], *expected, "{changes}");
        }
    });
}

#[test]
fn check_finds_what_has_changed() {
    let another = "ip link del eth0 && ip link add eth0 type veth peer name other && ip link set other up && \
        ip link set eth0 up && ip addr add 10.60.0.2/24 dev eth0 && ip addr add 2001:db8:60::2/64 dev eth0 nodad";
    let breaks = [
        ("v4 address removed", "ip addr del 10.60.0.2/24 dev eth0", "10.60.0.2"),
        ("v6 address removed", "ip addr del 2001:db8:60::2/64 dev eth0", "2001:db8:60::2"),
        ("link down", "ip link set eth0 down", "eth0"),
        ("mac changed", "ip link set eth0 address 02:00:00:00:00:01", "eth0"),
        ("link renamed", "ip link set eth0 down; ip link set eth0 name eth9", "eth0"),
        ("link gone", "ip link del eth0", "eth0"),
        ("another kind", another, "eth0"),
    ];
    for_each_peer_with_dummies(|lab| {
        for (at, (what, script, names)) in breaks.iter().enumerate() {
            let container = lab.container();
            let attachment =
                lab.attach(&container, &with(&dual_stack(), json!({"name": format!("net{at}")})));
            let result = attachment.add();
            attachment.check(&result).ok();
            container.sh(script);
            let error = attachment.check(&result).err();
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, 103, "{what}: {error:?}");
                assert!(error.text().contains(names), "{what}: {error:?}");
            }
            attachment.del();
        }
    });
    // The reference's CHECK ignores routes: see tests/differences.
    for_ours_with_dummies(|lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &conf());
        let result = attachment.add();
        container.sh("ip route del 10.99.0.0/16");
        let error = attachment.check(&result).err();
        assert_eq!(error.code, 103, "{error:?}");
        assert!(error.text().contains("10.99.0.0/16"), "{error:?}");
    });
}

/// The reference deletes any link of that name: see tests/differences.
#[test]
fn del_spares_an_interface_of_another_kind() {
    for_ours("dummy", |lab| {
        let container = lab.container();
        container.sh("ip link add eth0 type veth peer name other");
        let before = Watch::start(lab, &[&container]);
        lab.attach(&container, &conf()).del();
        before.assert_unchanged("DEL");
    });
}

#[test]
fn gc_frees_what_no_runtime_knows_any_more() {
    // The reference has no GC: see tests/differences.
    for_ours_with_dummies(|lab| {
        let conf = with(&conf(), json!({"cniVersion": "1.1.0"}));
        let kept = lab.container();
        lab.attach(&kept, &conf).add();
        let before = Watch::start(lab, &[&kept]);
        let lost = lab.container();
        let forgotten = lab.attach(&lost, &conf);
        forgotten.add();
        lost.vanish();
        assert_eq!(forgotten.gc(&[(&kept.id, "eth0")]).ok(), Value::Null);
        before.assert_unchanged("the ADD that was forgotten");
    });
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
    let late = json!({"ipam": {"routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}});
    let cases = [
        Case::new("IPAM plugin unknown", json!({"ipam": {"type": "no-such-ipam"}}), 104, "no-such-ipam"),
        Case::new("IPAM refuses", json!({"ipam": {"subnet": "10.60.0.0/31"}}), 7, "10.60.0.0/31"),
        Case::new("route unreachable", late, 100, "10.88.0.1"),
        Case::new("interface exists", json!({}), 102, "eth0").container("ip link add eth0 type veth peer name other"),
        Case::new("a dummy exists", json!({}), 102, "eth0").container("ip link add eth0 type dummy"),
        Case::new("a second name is taken", json!({}), 102, "eth0")
            .container("ip link add other type veth peer name more && ip link property add dev other altname eth0"),
    ];
    for_each_peer_with_dummies(|lab| {
        for case in &cases {
            let (changes, error) = fail(lab, &conf(), case);
            assert_eq!(changes, "", "left after \"{}\"", case.what);
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, case.code, "{}: {error:?}", case.what);
                assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
            }
        }
    });
}

/// IPAM has no address: ADD leaves nothing, while the reference leaves the interface (see
/// tests/differences).
#[test]
fn add_without_an_address_fails_and_nothing_has_changed() {
    for_ours_with_dummies(|lab| {
        let no_address = static_ipam(&conf(), json!([]), json!([]));
        let (changes, error) =
            fail(lab, &no_address, &Case::new("IPAM has no address", json!({}), 101, ""));
        assert_eq!((changes.as_str(), error.code), ("", 101), "{error:?}");
    });
}

#[test]
fn add_without_kernel_support_says_so_and_leaves_nothing() {
    for_each_peer("dummy", |lab| {
        let probe = lab.host.try_sh("ip link add probe type dummy");
        if probe.status.success() {
            return; // the other tests cover this kernel
        }
        let (changes, error) =
            fail(lab, &conf(), &Case::new("no such interfaces", json!({}), 100, "dummy"));
        assert_eq!(changes, "");
        assert!(error.text().contains("not supported"), "{error:?}");
        if lab.peer == Peer::Ours {
            assert_eq!(error.code, 100, "{error:?}");
            assert!(error.text().contains("dummy"), "{error:?}");
        }
    });
}

#[test]
fn status_is_that_of_ipam() {
    for_each_peer_with_dummies(|lab| {
        let conf = |ipam| with(&conf(), json!({"cniVersion": "1.1.0", "ipam": {"type": ipam}}));
        lab.attach(&lab.container(), &conf("host-local")).status().ok();
        lab.attach(&lab.container(), &conf("no-such-ipam")).status().err();
    });
}
