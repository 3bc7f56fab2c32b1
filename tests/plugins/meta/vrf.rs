//! vrf: the interface in a VRF of the container. Needs a kernel with VRFs.

mod beside;
mod failed_add;
mod gone;

use std::collections::BTreeSet;

use super::*;
use crate::support::networks::vrf::{
    addresses, attach, container, for_ours_in_blue, in_blue, master, network,
};
use crate::support::traffic::Ear;

/// The table number of a VRF.
pub fn table(container: &Namespace, vrf: &str) -> u64 {
    let link = container.link(vrf).unwrap_or_else(|| panic!("no VRF {vrf}"));
    assert_eq!(link["linkinfo"]["info_kind"], "vrf");
    link["linkinfo"]["info_data"]["table"].as_u64().unwrap()
}

/// The routes of a table that leave by an interface, complete except for the table itself. The
/// kernel's own routes are left out.
fn routes(container: &Namespace, table: &str, ifname: &str) -> Vec<Value> {
    let list = |family: u8| {
        container
            .json(&format!("ip -{family} -j -d route show table {table} dev {ifname} type unicast"))
    };
    let all = [list(4), list(6)];
    let all = all.iter().flat_map(|routes| routes.as_array().unwrap());
    let mut all: Vec<Value> =
        all.map(|route| with(route, json!({"table": null, "flags": null}))).collect();
    all.retain(|route| route["dst"] != "ff00::/8");
    all.sort_by_key(Value::to_string);
    all
}

#[test]
fn addresses_and_routes_go_with_the_interface() {
    for_each_peer("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        let member = in_blue(lab, &container);
        let before = (addresses(&container, "net1"), routes(&container, "main", "net1"));
        assert_eq!(before.0.len(), 3, "v4, v6 and link-local: {:?}", before.0);
        assert_eq!(before.1.len(), 6, "{:?}", before.1);
        assert_eq!(member.add(), member.result, "the result is that of the plugin before");
        assert_eq!((table(&container, "blue"), master(&container, "net1")), (1, json!("blue")));
        assert_eq!((addresses(&container, "net1"), routes(&container, "1", "net1")), before);
        assert!(routes(&container, "main", "net1").is_empty());
        member.check(&member.result).ok();
        member.del();
        assert!(container.link("blue").is_none());
        assert_eq!(master(&container, "net1"), Value::Null);
    });
}

/// When a link changes its master the kernel drops IPv6 addresses and routes unless
/// `keep_addr_on_down` is set; it never keeps link-local addresses and routes of other tables.
#[test]
fn nothing_is_lost_on_the_way() {
    // The reference loses some of them; see tests/differences.
    for_ours("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        for keep in [0, 1] {
            let member = in_blue(lab, &container).changed(json!({"table": 300}));
            container.sh(&format!(
                "echo {keep} > /proc/sys/net/ipv6/conf/net1/keep_addr_on_down
                 ip addr add 2001:db8:20::7/64 dev net1 nodad noprefixroute metric 77
                 ip addr add fe80::7/64 dev net1 nodad
                 ip addr add 2001:db8:66::1 peer 2001:db8:66::2 dev net1 nodad
                 ip addr add 10.20.0.7/24 dev net1
                 ip route add 10.79.0.0/16 via 10.99.0.1 dev net1 onlink src 10.20.0.7 proto static
                 ip route add 10.80.0.0/16 dev net1 scope link metric 9
                 ip route append 10.80.0.0/16 via 10.20.0.9 dev net1 metric 9
                 ip route add 10.81.0.0/16 nexthop via 10.20.0.8 dev net1 weight 3 nexthop via 10.20.0.9 dev net1
                 ip route add 10.82.0.0/16 dev net1 table 77
                 ip -6 route add 2001:db8:81::/48 nexthop via 2001:db8:20::8 dev net1 nexthop via 2001:db8:20::9 dev net1
                 ip -6 route add 2001:db8:82::/48 via fe80::9 dev net1 src 2001:db8:20::7 pref high
                 ip -6 route add 2001:db8:83::/48 dev net1 table 77",
            ));
            let found = |table: &str| {
                let own = addresses(&container, "net1");
                (own, [table, "77"].map(|table| routes(&container, table, "net1")))
            };
            let before = found("main");
            assert_eq!(before.1[1].len(), 2);
            member.add();
            assert_eq!(found("300"), before, "keep_addr_on_down {keep}");
            member.check_and_del_all(&member.result);
        }
    });
}

/// The kernel prefers the IPv6 address that was added last, and lists it first.
#[test]
fn addresses_keep_their_order() {
    for_ours_in_blue(|_, container, member| {
        container.sh("echo 0 > /proc/sys/net/ipv6/conf/net1/keep_addr_on_down
             for n in 7 8 9; do ip addr add 2001:db8:20::$n/64 dev net1 nodad; done");
        let order = || container.sh("ip -6 -o addr show dev net1 | grep -o 'inet6 [^ ]*'");
        let source =
            || container.sh("ip -6 route get 2001:db8:20::99 oif net1 | grep -o 'src [^ ]*'");
        let before = (order(), source());
        assert!(before.1.starts_with("src 2001:db8:20::9"), "{before:?}");
        member.add();
        assert_eq!((order(), source()), before);
    });
}

/// The kernel merges the IPv6 routes of two interfaces to one destination into one route with two
/// hops.
#[test]
fn a_hop_of_a_route_of_two_interfaces_goes_with_its_interface() {
    // The reference leaves the hop behind, and the kernel then removes it.
    for_ours("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        let of_vrf =
            |vrf: &str| container.sh(&format!("ip -6 route show vrf {vrf} 2001:db8:77::/48"));
        let one = in_blue(lab, &container);
        let other = attach(lab, &container, &network(2, 2), "net2", "red");
        let shared = container.sh("ip -6 route show 2001:db8:77::/48");
        assert_eq!(shared.matches("via 2001:db8:20::1 dev net").count(), 2, "{shared}");
        one.add();
        other.add();
        assert!(of_vrf("blue").contains("via 2001:db8:20::1 dev net1"), "{}", of_vrf("blue"));
        assert!(of_vrf("red").contains("via 2001:db8:20::1 dev net2"), "{}", of_vrf("red"));
        assert_eq!(container.sh("ip -6 route show 2001:db8:77::/48"), "");
    });
}

#[test]
fn two_vrfs_have_the_same_addresses_and_other_neighbours() {
    for_each_peer("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        let (one, other) = (lab.container(), lab.container());
        lab.attach(&one, &network(1, 5)).add();
        lab.attach(&other, &network(2, 5)).add();
        in_blue(lab, &container).add();
        attach(lab, &container, &network(2, 2), "net2", "red").add();
        assert_ne!(table(&container, "blue"), table(&container, "red"));
        for to in ["10.20.0.5", "2001:db8:20::5"] {
            for (vrf, reached, unreached) in [("blue", &one, &other), ("red", &other, &one)] {
                let (ear, silence) = (Ear::listen(reached), Ear::listen(unreached));
                assert_pings_with(&container, to, &format!("-I {vrf}"));
                assert_eq!((ear.heard().len(), silence.heard().len()), (1, 0), "{to} in {vrf}");
            }
        }
    });
}

#[test]
fn a_vrf_goes_with_its_last_interface() {
    for_each_peer("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        let before = Watch::start(lab, &[&container]);
        let one = in_blue(lab, &container);
        one.add();
        let other = attach(lab, &container, &network(2, 3), "net2", "blue");
        other.add();
        for (member, ifname) in [(&one, "net1"), (&other, "net2")] {
            assert_eq!(master(&container, ifname), "blue");
            member.check(&member.result).ok();
        }
        one.del();
        let masters = ["net1", "net2"].map(|ifname| master(&container, ifname));
        assert_eq!(masters, [Value::Null, json!("blue")]);
        one.main.del();
        other.check(&other.result).ok();
        other.del();
        assert!(container.link("blue").is_none());
        other.main.del();
        lab.host.sh("ip link del br1; ip link del br2");
        before.assert_unchanged("ADD");
    });
}

#[test]
fn a_table_is_the_configured_one_or_free() {
    for_each_peer("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        container.sh("ip link add one type vrf table 1; ip link add three type vrf table 3");
        let add = |number: u8, vrf: &str, table: Value| {
            let ifname = format!("net{number}");
            let member = attach(lab, &container, &network(number, 2), &ifname, vrf);
            member.changed(json!({"table": table})).add();
        };
        add(1, "a", Value::Null);
        add(2, "b", json!(5000));
        add(3, "c", Value::Null);
        add(4, "b", json!(5000));
        add(5, "d", json!(5000));
        assert_eq!(["a", "b", "c", "d"].map(|vrf| table(&container, vrf)), [2, 5000, 4, 5000]);
    });
}

/// In the reference two ADDs may choose one table, or fail: it takes no lock.
#[test]
fn parallel_adds_share_a_vrf_or_get_separate_tables() {
    for_ours("vrf", |lab| {
        for (vrfs, tables) in [(["blue"; 6], 1), (["v1", "v2", "v3", "v4", "v5", "v6"], 6)] {
            let Some(container) = container(lab) else { return };
            let members: Vec<Chained<'_>> = (1..)
                .zip(vrfs)
                .map(|(number, vrf)| {
                    attach(lab, &container, &network(number, 2), &format!("net{number}"), vrf)
                })
                .collect();
            std::thread::scope(|scope| {
                members.iter().for_each(|member| drop(scope.spawn(|| member.add())))
            });
            members.iter().zip(vrfs).for_each(|(member, vrf)| {
                assert_eq!(master(&container, &member.ifname), vrf);
                member.check(&member.result).ok();
            });
            let found: BTreeSet<u64> = vrfs.iter().map(|vrf| table(&container, vrf)).collect();
            assert_eq!(found.len(), tables);
            std::thread::scope(|scope| {
                members.iter().for_each(|member| drop(scope.spawn(|| member.del())))
            });
            assert_eq!(container.sh("ip -br link show type vrf"), "");
            members.iter().for_each(|member| member.main.del());
        }
    });
}

/// This needs no VRF in the kernel. The supported versions are the reference's.
#[test]
fn versions_before_0_3_1_are_not_spoken() {
    for_each_peer("vrf", |lab| {
        for version in [None, Some("0.1.0"), Some("0.2.0"), Some("0.3.0")] {
            let blue = in_network(lab, &json!({"type": "vrf", "vrfname": "blue"}));
            let outcome = blue.conf(json!({"cniVersion": version})).try_add();
            outcome.fails(1, "incompatible CNI versions");
        }
    });
}

#[test]
fn check_finds_what_has_changed() {
    let cases = broken::rows(
        r#"
another VRF | ip link add red type vrf table 8; ip link set net1 master red | failed to find net1 associated to vrf
no VRF | ip link set net1 nomaster | failed to find net1 associated to vrf
VRF gone | ip link del blue | blue
VRF down | ip link set blue down | blue
VRF of another table | ip link del blue; ip link add blue up type vrf table 11; ip link set net1 master blue | 10
VRF is a bridge | ip link del blue; ip link add blue type bridge | blue
v6 address removed | ip addr del 2001:db8:20::2/64 dev net1 | 2001:db8:20::2
route removed | ip route del 10.77.0.0/16 vrf blue | 10.77.0.0/16
route in main only | ip route del 10.77.0.0/16 vrf blue; ip route add blackhole 10.77.0.0/16 | 10.77.0.0/16
hardware address | ip link set net1 address 02:00:00:00:00:07 | 02:00:00:00:00:07
interface gone | ip link del net1 | net1
"#,
    );
    // The reference checks only the VRF and the interface; see tests/differences.
    for_ours("vrf", |lab| {
        for case in &cases {
            let Some(container) = container(lab) else { return };
            let member = in_blue(lab, &container).changed(json!({"table": 10}));
            assert_check_finds(lab, &container, &member, case);
            member.main.del();
        }
    });
}

/// CHECK compares the sandbox path as given. It ignores the state of a VRF that ADD did not create:
/// that may be down.
#[test]
fn check_compares_the_sandbox_and_leaves_the_state_to_others() {
    for_ours("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        container.sh("ip link add blue type vrf table 10");
        let member = in_blue(lab, &container);
        let mut result = member.add();
        container.sh("ip link set blue down");
        member.check(&result).ok();
        for interface in result["interfaces"].as_array_mut().unwrap() {
            if interface["name"] == "net1" {
                interface["sandbox"] = json!("/run/netns/another");
            }
        }
        let error = member.check(&result).err();
        assert!(error.text().contains("/run/netns/another"), "{error:?}");
    });
}

#[test]
fn what_one_peer_attaches_the_other_detaches() {
    for_reference("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        let reference = lab.peer.clone();
        for (by, to) in [(&reference, &Peer::Ours), (&Peer::Ours, &reference)] {
            let member = in_blue(lab, &container);
            member.clone().by(by).add();
            member.clone().by(to).check(&member.result).ok();
            member.clone().by(to).del();
            assert!(container.link("blue").is_none(), "attached by {by:?}");
            member.main.del();
        }
    });
}

/// The kernel adds a rule with the first VRF of a namespace; STATUS must leave no such rule on the
/// host.
#[test]
fn status_says_whether_the_kernel_has_vrfs_and_changes_nothing() {
    for_ours("vrf", |lab| {
        let before = Watch::start(lab, &[]);
        let status = in_network(lab, &json!({"type": "vrf", "vrfname": "blue"})).status();
        let has = lab.container().try_sh("ip link add probe type vrf table 9").status.success();
        if has {
            status.ok();
        } else {
            status.fails(50, "modprobe vrf");
        }
        before.assert_unchanged("STATUS");
    });
}
