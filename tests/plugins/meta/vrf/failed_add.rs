//! vrf ADD that fails: an error that helps, and everything as it was.

use serde_json::{Value, json};

use super::{attach, container, network};
use crate::support::attachment::for_ours;
use crate::support::snapshot::Watch;

struct Case {
    what: &'static str,
    changes: Value,
    host: &'static str,
    container: &'static str,
    code: u64,
    names: &'static str,
}

fn case(what: &'static str, changes: Value, code: u64, names: &'static str) -> Case {
    Case { what, changes, host: "true", container: "true", code, names }
}

/// What is found before the kernel is asked for a VRF.
fn mistakes() -> Vec<Case> {
    vec![
        case("no name", json!({"vrfname": null}), 7, "vrfname: missing"),
        case("empty name", json!({"vrfname": ""}), 7, "vrfname: missing"),
        case("name too long", json!({"vrfname": "a-name-of-16-byt"}), 7, "vrfname: \"a-name-of-16-byt\""),
        case("name with a slash", json!({"vrfname": "a/b"}), 7, "vrfname: \"a/b\""),
        case("name is a pattern", json!({"vrfname": "vrf%d"}), 7, "vrfname: \"vrf%d\""),
        case("name is no string", json!({"vrfname": 5}), 6, "vrfname"),
        case("table negative", json!({"table": -1}), 7, "table: -1 is out of range"),
        case("table too large", json!({"table": 4294967296u64}), 7, "table: 4294967296 is out of range"),
        case("table main", json!({"table": 254}), 7, "table: 254 is a table of the kernel"),
        case("table local", json!({"table": 255}), 7, "table: 255 is a table of the kernel"),
        case("not chained", json!({"prevResult": null}), 7, "prevResult"),
        Case {
            container: "ip link set net1 down; ip link set net1 name other",
            ..case("no such interface", json!({}), 100, "net1")
        },
        Case {
            container: "ip link add br0 type bridge; ip link set net1 master br0",
            ..case("has a master", json!({}), 102, "interface \"net1\" has a master already: \"br0\"")
        },
        Case {
            container: "ip link add blue type bridge",
            ..case("name of a bridge", json!({}), 102, "vrfname: \"blue\" is a bridge of the container")
        },
        case("name of the interface", json!({"vrfname": "net1"}), 102, "vrfname: \"net1\" is a veth of the container"),
        case("name of the loopback interface", json!({"vrfname": "lo"}), 102, "vrfname: \"lo\" is a device"),
        Case {
            host: "mkdir -p /run/cni && : > /run/cni/vrf",
            ..case("nothing can be kept", json!({}), 5, "/run/cni/vrf")
        },
    ]
}

fn refusals() -> Vec<Case> {
    vec![
        Case {
            container: "ip link add blue type vrf table 20",
            ..case(
                "table of another VRF",
                json!({"table": 10}),
                102,
                "table: 10 is not that of VRF \"blue\", expected 20",
            )
        },
        // The source address is one of another interface: it is not in the VRF, and the kernel refuses the last route.
        Case {
            container: "set -e; ip link add eth0 type veth peer name other; ip link set eth0 up; ip link set other up
                ip addr add 2001:db8:10::2/64 dev eth0 nodad
                ip -6 route add 2001:db8:78::/48 dev net1 src 2001:db8:10::2
                ip -6 route add 2001:db8:79::/48 via fe80::9 dev net1 pref high",
            ..case("a route that no VRF can have", json!({"table": 10}), 100, "2001:db8:78::/48")
        },
        // The same with a hop of a route that another interface has too.
        Case {
            container: "set -e; ip link add eth0 type veth peer name other; ip link set eth0 up; ip link set other up
                ip addr add 2001:db8:10::2/64 dev eth0 nodad
                ip -6 route append 2001:db8:77::/48 via 2001:db8:10::1 dev eth0
                ip -6 route add 2001:db8:78::/48 dev net1 src 2001:db8:10::2",
            ..case("a route that no VRF can have, and a shared one", json!({}), 100, "2001:db8:78::/48")
        },
        // The gateway is this host's in the VRF.
        Case {
            container: "set -e; ip link add blue type vrf table 20; ip link set blue up
                ip link add eth0 type veth peer name other; ip link set other up
                ip link set eth0 master blue; ip link set eth0 up; ip addr add 2001:db8:20::1/128 dev eth0 nodad
                echo 0 > /proc/sys/net/ipv6/conf/net1/keep_addr_on_down",
            ..case("a route that a VRF of others cannot have", json!({}), 100, "2001:db8:77::/48")
        },
    ]
}

fn assert_fails(lab: &crate::support::netns::Lab, container: &crate::support::netns::Container, case: &Case) {
    let member = attach(lab, container, &network(1, 2), "net1", json!({"vrfname": "blue"}));
    let vrf = member.clone().conf(case.changes.clone());
    lab.host.sh(case.host);
    container.sh(case.container);
    let before = Watch::start(lab, &[container]);
    let error = vrf.try_add().err();
    assert_eq!(error.code, case.code, "{}: {error:?}", case.what);
    assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
    assert!(!error.details.contains("undo:"), "{}: {error:?}", case.what);
    before.assert_unchanged(case.what);
}

#[test]
fn mistakes_are_found_before_anything_is_done() {
    for case in mistakes() {
        for_ours("vrf", |lab| assert_fails(lab, &lab.container(), &case));
    }
}

#[test]
fn add_fails_and_nothing_has_changed() {
    for case in refusals() {
        for_ours("vrf", |lab| {
            if let Some(container) = container(lab) {
                assert_fails(lab, &container, &case);
            }
        });
    }
}

#[test]
fn a_second_add_is_refused_and_changes_nothing() {
    for_ours("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        let member = attach(lab, &container, &network(1, 2), "net1", json!({"vrfname": "blue"}));
        member.add();
        let before = Watch::start(lab, &[&container]);
        assert_eq!(member.try_add().err().code, 102);
        before.assert_unchanged("the second ADD");
        member.check(&member.result).ok();
    });
}

/// Nothing is left by a kernel that has no VRFs either.
#[test]
fn a_kernel_without_vrfs_is_named() {
    for_ours("vrf", |lab| {
        let container = lab.container();
        if container.try_sh("ip link add probe type vrf table 9 && ip link del probe").status.success() {
            return; // add_fails_and_nothing_has_changed
        }
        let missing = case("no VRF in the kernel", json!({}), 100, "does the kernel have vrf");
        assert_fails(lab, &container, &missing);
    });
}
