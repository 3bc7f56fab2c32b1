//! vrf ADD that fails: the error names the cause, and host and container are unchanged.

use super::*;

/// Errors that ADD detects before it asks the kernel for a VRF.
fn mistakes() -> Vec<Case> {
    rows(
        r#"
no name | {"vrfname": null} | 7: vrfname: missing
empty name | {"vrfname": ""} | 7: vrfname: missing
name too long | {"vrfname": "a-name-of-16-byt"} | 7: vrfname: "a-name-of-16-byt"
name with a slash | {"vrfname": "a/b"} | 7: vrfname: "a/b"
name is a pattern | {"vrfname": "vrf%d"} | 7: vrfname: "vrf%d"
name is no string | {"vrfname": 5} | 6: vrfname
table too large | {"table": 4294967296} | 7: table: 4294967296 is out of range
table local | {"table": 255} | 7: table: 255 is a table of the kernel
not chained | {"prevResult": null} | 7: prevResult
no such interface | {} | 100: net1 | in: ip link set net1 down; ip link set net1 name other
has a master | {} | 102: interface net1 has already a master set: br0 | in: ip link add br0 type bridge; ip link set net1 master br0
name of a bridge | {} | 102: vrfname: "blue" is a bridge of the container | in: ip link add blue type bridge
name of the interface | {"vrfname": "net1"} | 102: vrfname: "net1" is a veth of the container
name of the loopback interface | {"vrfname": "lo"} | 102: vrfname: "lo" is a device
"#,
    )
}

fn refusals() -> Vec<Case> {
    vec![
        // The record, which holds the VRF's ifindex, cannot be written.
        Case::new("nothing can be kept", json!({}), 5, "/run/cni/vrf").host("mkdir -p /run/cni && : > /run/cni/vrf"),
        Case::new(
            "table of another VRF",
            json!({"table": 10}),
            102,
            "table: 10 is not that of VRF \"blue\", expected 20",
        )
        .container("ip link add blue type vrf table 20"),
        // The source address belongs to an interface outside the VRF, so the kernel refuses the
        // last route.
        Case::new("a route that no VRF can have", json!({"table": 10}), 100, "2001:db8:78::/48").container(
            "set -e; ip link add eth0 type veth peer name other; ip link set eth0 up; ip link set other up
                ip addr add 2001:db8:10::2/64 dev eth0 nodad
                ip -6 route add 2001:db8:78::/48 dev net1 src 2001:db8:10::2
                ip -6 route add 2001:db8:79::/48 via fe80::9 dev net1 pref high",
        ),
        // The rollback restores the order of the addresses too: the snapshot lists them as the
        // kernel does.
        Case::new("a route that no VRF can have, and addresses", json!({}), 100, "2001:db8:78::/48").container(
            "set -e; ip link add eth0 type veth peer name other; ip link set eth0 up; ip link set other up
                ip addr add 2001:db8:10::2/64 dev eth0 nodad
                echo 0 > /proc/sys/net/ipv6/conf/net1/keep_addr_on_down
                for n in 7 8 9; do ip addr add 2001:db8:20::$n/64 dev net1 nodad; done
                ip -6 route add 2001:db8:78::/48 dev net1 src 2001:db8:10::2",
        ),
        // The same with a hop of a route that another interface shares.
        Case::new("a route that no VRF can have, and a shared one", json!({}), 100, "2001:db8:78::/48").container(
            "set -e; ip link add eth0 type veth peer name other; ip link set eth0 up; ip link set other up
                ip addr add 2001:db8:10::2/64 dev eth0 nodad
                ip -6 route append 2001:db8:77::/48 via 2001:db8:10::1 dev eth0
                ip -6 route add 2001:db8:78::/48 dev net1 src 2001:db8:10::2",
        ),
        // In the VRF the gateway is a local address, and the kernel refuses the route.
        Case::new("a route that a VRF of others cannot have", json!({}), 100, "2001:db8:77::/48").container(
            "set -e; ip link add blue type vrf table 20; ip link set blue up
                ip link add eth0 type veth peer name other; ip link set other up
                ip link set eth0 master blue; ip link set eth0 up; ip addr add 2001:db8:20::1/128 dev eth0 nodad
                echo 0 > /proc/sys/net/ipv6/conf/net1/keep_addr_on_down",
        ),
    ]
}

fn assert_fails(lab: &Lab, container: &Container, case: &Case) {
    let member = in_blue(lab, container);
    assert_fails_at(lab, container, &member, case);
}

/// The reference leaves the VRF.
#[test]
fn add_fails_and_nothing_has_changed() {
    for case in mistakes() {
        for_ours("vrf", |lab| assert_fails(lab, &lab.container(), &case));
    }
    for case in refusals() {
        for_ours("vrf", |lab| {
            container(lab).iter().for_each(|container| assert_fails(lab, container, &case));
        });
    }
}

/// On a kernel without VRFs, ADD names the missing feature and leaves nothing either.
#[test]
fn a_kernel_without_vrfs_is_named() {
    for_ours("vrf", |lab| {
        let container = lab.container();
        let probe = "ip link add probe type vrf table 9 && ip link del probe";
        if !container.try_sh(probe).status.success() {
            let missing = Case::new("no VRF in the kernel", json!({}), 100, "modprobe vrf");
            assert_fails(lab, &container, &missing);
        }
    });
}
