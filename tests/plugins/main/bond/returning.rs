//! The links of a bond come back as they were, whatever happened to the rest.

use serde_json::json;

use super::{dummies, mac};
use crate::support::attachment::with;
use crate::support::netns::Lab;
use crate::support::networks::bond::{for_ours_with_ports, inside, layer_two, leased};
use crate::support::snapshot::Watch;

fn records(lab: &Lab) -> String {
    lab.host.sh("find /run/cni/bond /run/cni/bond-links -type f 2>/dev/null; true")
}

/// The original leaves renamed links in the container.
#[test]
fn links_return_without_the_configuration_under_any_name() {
    for_ours_with_ports(|lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, &leased());
        attachment.add();
        assert!(records(lab).contains("/run/cni/bond-links/"), "{}", records(lab));
        container.sh("ip -b - <<'END'
link set port1 nomaster
link set port1 down
link set port1 name hidden
link set hidden mtu 1300 address 02:00:00:00:00:77 alias mine
link set eth0 down
link set eth0 name other
END");
        attachment.clone().conf(json!({"mode": "none", "links": null})).del();
        before.assert_unchanged("ADD");
        assert_eq!(records(lab), "");
    });
}

/// CNI_NETNS leads to another container, which has a bond of its own by the same name.
#[test]
fn path_of_another_container_gives_nothing_away() {
    for_ours_with_ports(|lab| {
        let (one, other) = (lab.container(), lab.container());
        let first = lab.attach(&one, &leased());
        first.add();
        lab.host.sh("ip link add port2 type veth peer name port3");
        let links = json!({"name": "net2", "links": [{"name": "port2"}, {"name": "port3"}]});
        let second = lab.attach(&other, &with(&layer_two(), links));
        let result = second.add();
        first.clone().netns(Some(&other.netns)).del();
        assert!(one.link("eth0").is_none() && lab.host.link("port0").is_some());
        second.check(&result).ok();
        second.del();
        assert!(lab.host.link("port2").is_some() && lab.host.link("port3").is_some());
    });
}

/// veth ends are deleted with their namespace, as all links without hardware.
#[test]
fn gc_and_del_need_no_namespace() {
    for_ours_with_ports(|lab| {
        let lost = lab.container();
        let attachment = lab.attach(&lost, &leased());
        attachment.add();
        assert!(attachment.gc(&[(&lost.id, "eth0")]).ok().is_null());
        assert!(lost.link("eth0").is_some() && lab.host.link("port0").is_none(), "it is valid");
        attachment.gc(&[]).ok();
        assert!(lost.link("eth0").is_none() && mac(&lab.host, "port1") == "02:00:00:00:b0:01");
        attachment.add();
        lost.vanish();
        attachment.del();
        attachment.del();
        assert_eq!(records(lab), "");
        assert_eq!(lab.host.sh("ls /var/lib/cni/networks/net1 | grep ^10 || true"), "");
    });
}

/// The original keeps no record. Its links come back if the configuration names them and the
/// container cannot have made them.
#[test]
fn del_takes_apart_what_the_original_made() {
    for_ours_with_ports(|lab| {
        let container = lab.container();
        let as_the_original = |links: &str| {
            format!(
                "ip -b - <<'END'\nlink add eth0 type bond mode active-backup miimon 100\n{links}\nlink set eth0 up\nEND"
            )
        };
        let path = &container.netns;
        lab.host.sh(&format!("for port in port0 port1; do ip link set $port netns {path}; done"));
        container.sh(&as_the_original("link set port0 master eth0\nlink set port1 master eth0"));
        lab.attach(&container, &with(&layer_two(), json!({"cniVersion": "0.3.1"}))).del();
        assert!(container.link("eth0").is_none());
        for (port, address) in [("port0", "02:00:00:00:b0:00"), ("port1", "02:00:00:00:b0:01")] {
            assert_eq!(mac(&lab.host, port), address);
            assert!(container.link(port).is_none());
        }
        dummies(&container);
        container.sh(&as_the_original("link set port0 down\nlink set port0 master eth0"));
        lab.attach(&container, &inside(json!({"cniVersion": "0.3.1"}))).del();
        assert!(container.link("eth0").is_none() && container.link("port0").is_some());
    });
}

/// The record is of before a rollback to the original, which has attached the container again, with
/// another link.
#[test]
fn del_takes_apart_what_the_original_made_after_a_rollback() {
    for_ours_with_ports(|lab| {
        let container = lab.container();
        let bond = lab.attach(&container, &layer_two());
        bond.add();
        let host = lab.pid();
        container.sh(&format!(
            "ip link del eth0; for port in port0 port1; do ip link set $port netns {host}; done"
        ));
        let path = &container.netns;
        lab.host.sh(&format!(
            "ip link add port2 type veth peer name far2 netns outside
             for port in port0 port2; do ip link set $port netns {path}; done"
        ));
        container.sh("ip -b - <<'END'
link add eth0 type bond mode active-backup miimon 100
link set port0 master eth0
link set port2 master eth0
link set eth0 up
END");
        bond.conf(json!({"links": [{"name": "port0"}, {"name": "port2"}]})).del();
        assert!(container.link("eth0").is_none());
        for port in ["port0", "port1", "port2"] {
            assert!(lab.host.link(port).is_some(), "{port}");
        }
    });
}
