//! bond makes one interface of several links, the host's or the container's, and puts them back.

use serde_json::{Value, json};

use super::stacked::mac;
use crate::support::attachment::{for_ours, with};
use crate::support::contract::assert_del_leaves_nothing;
use crate::support::failed_add::{assert_fails, rows};
use crate::support::netns::{Lab, Namespace};
use crate::support::networks::bond::{
    conf, for_ours_with_ports, has_bonds, inside, layer_two, leased, ports,
};
use crate::support::networks::stacked::hasty_container;
use crate::support::peers::each_case;
use crate::support::snapshot::Watch;
use crate::support::table::cells;
use crate::support::traffic::assert_pings;

/// What `ip -d link` says of the bond, by its keys.
pub fn settings(container: &Namespace) -> Value {
    container.link("eth0").expect("the bond")["linkinfo"]["info_data"].clone()
}

/// Creates links in the container as earlier attachments would, all with one address.
pub fn dummies(container: &Namespace) {
    container.sh("ip -b - <<'END'
link add port0 address 02:00:00:00:dd:01 type dummy
link add port1 address 02:00:00:00:dd:01 type dummy
link set port0 up mtu 1400
link set port1 up
link set port1 down
END");
}

fn links_of_the_host_stand_in_for_each_other(lab: &Lab) {
    let (container, attachment, before) = lab.watched(&conf());
    let result = attachment.add();
    let address = "02:00:00:00:b0:00";
    let expected = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "mac": address, "sandbox": container.netns}],
        "ips": [{"address": "10.50.0.2/24", "gateway": "10.50.0.1", "interface": 0}],
        "routes": [{"dst": "10.99.0.0/16"}],
    });
    assert_eq!(result, expected);
    assert_eq!(settings(&container)["mode"], "active-backup");
    assert_eq!(settings(&container)["miimon"], 100);
    for port in ["port0", "port1"] {
        let link = container.link(port).expect("it came along");
        assert_eq!((&link["master"], &link["address"]), (&json!("eth0"), &json!(address)));
        assert!(lab.host.link(port).is_none(), "{port} left the host");
    }
    // The link that the bond uses goes down; the other one carries the traffic from then on.
    assert_pings(&container, "10.50.0.1");
    assert_eq!(settings(&container)["active_slave"], "port0");
    lab.outside.sh("ip link set far0 down");
    assert_pings(&container, "10.50.0.1");
    assert_eq!(settings(&container)["active_slave"], "port1");
    attachment.check(&result).ok();
    container.sh("ip link set port1 nomaster");
    attachment.check(&result).fails(103, "\"port1\" is not a port of \"eth0\"");
    lab.outside.sh("ip link set far0 up");
    assert_del_leaves_nothing(&attachment, &before);
    assert_pings(&lab.host, "10.51.0.9");
}

fn links_of_earlier_attachments_are_bonded_and_stay(lab: &Lab) {
    if !has_bonds(lab) {
        return;
    }
    lab.host.sh("ip link add lan up type bridge && ip addr add 10.50.0.1/24 dev lan");
    let container = hasty_container(lab);
    // Layer 2 attachments to the bridge, where the host has 10.50.0.1.
    let links = [1, 2].map(|number| {
        let conf = json!({"cniVersion": "1.1.0", "name": format!("lan{number}"), "type": "bridge", "bridge": "lan"});
        lab.attach(&container, &conf).ifname(&format!("net{number}"))
    });
    let results = links.each_ref().map(|link| link.add());
    let before = Watch::start(lab, &[&container]);
    let keys = json!({"linksInContainer": true, "links": [{"name": "net1"}, {"name": "net2"}],
        "failOverMac": 1, "primary": "net2", "miimon": null});
    let attachment = lab.attach(&container, &with(&conf(), keys));
    let result = attachment.add();
    assert_pings(&container, "10.50.0.1");
    let found = settings(&container);
    assert_eq!((&found["active_slave"], &found["primary"]), (&json!("net2"), &json!("net2")));
    assert_eq!((&found["fail_over_mac"], &found["miimon"]), (&json!("active"), &json!(100)));
    container.sh("ip link set net2 down");
    assert_pings(&container, "10.50.0.1");
    assert_eq!(mac(&container, "eth0"), mac(&container, "net1"), "the active link's address");
    attachment.check(&result).ok(); // the address may change, the mode may not
    let another = attachment.clone().conf(json!({"mode": "broadcast", "primary": null}));
    another.check(&result).fails(103, "mode active-backup, expected broadcast");
    assert_del_leaves_nothing(&attachment, &before);
    for (link, result) in links.iter().zip(&results) {
        link.check_and_del(result);
    }
    assert!(container.link("net1").is_none() && container.link("net2").is_none());
}

/// Every mode, with the settings that it takes.
const MODES: &str = r#"
{"mode": "balance-rr", "miimon": 0, "arpInterval": 200, "arpIpTargets": ["10.50.0.1", "10.50.0.7"]} | {"arp_interval": 200, "arp_ip_target": ["10.50.0.1", "10.50.0.7"], "miimon": 0}
{"mode": "active-backup", "failOverMac": 2, "allSlavesActive": 1} | {"fail_over_mac": "follow", "all_slaves_active": 1}
{"mode": "balance-xor", "xmitHashPolicy": "encap3+4", "miimon": 50} | {"xmit_hash_policy": "encap3+4", "miimon": 50}
{"mode": "broadcast", "mtu": 1300} | {}
{"mode": "802.3ad", "lacpRate": "fast", "adSelect": "count", "minLinks": 2} | {"ad_lacp_rate": "fast", "ad_select": "count", "min_links": 2}
{"mode": "balance-tlb", "tlbDynamicLb": 0} | {"tlb_dynamic_lb": 0}
{"mode": "balance-alb"} | {}
"#;

/// Two links have one hardware address: the second gets another one, and its own back. The original
/// refuses a link whose MTU is below 1500 without `mtu`, and lacks the keys `primary`, `lacpRate`,
/// `adSelect`, `minLinks`, `arpInterval` and `arpIpTargets`.
fn every_mode_bonds_links_of_the_same_address(lab: &Lab) {
    if !has_bonds(lab) {
        return;
    }
    let container = hasty_container(lab);
    dummies(&container);
    let before = Watch::start(lab, &[&container]);
    for row in cells(MODES) {
        let [changes, expected] = row.map(|cell| serde_json::from_str::<Value>(cell).unwrap());
        let attachment = lab.attach(&container, &inside(changes.clone()));
        let result = attachment.add();
        let found = settings(&container);
        assert_eq!(found["mode"], changes["mode"]);
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(found[key], *value, "{changes}: {key} in {found}");
        }
        assert_has_random_address(&container);
        let mtu = changes.get("mtu").unwrap_or(&json!(1400)).clone();
        assert_eq!(container.link("eth0").unwrap()["mtu"], mtu, "{changes}");
        attachment.check_and_del(&result);
    }
    before.assert_unchanged("every mode");
}

/// The address that the kernel gives back to the second port is one that we made.
fn assert_has_random_address(container: &Namespace) {
    let [first, second] = ["port0", "port1"].map(|port| {
        let link = container.link(port).unwrap();
        link["linkinfo"]["info_slave_data"]["perm_hwaddr"].as_str().unwrap().to_owned()
    });
    assert_eq!(first, "02:00:00:00:dd:01");
    let octet = u8::from_str_radix(&second[..2], 16).unwrap();
    assert_eq!(octet & 3, 2, "{second} is unicast and local");
    assert!(second != first && !second.starts_with("30:32:3a"), "{second}");
}

fn status_says_whether_the_kernel_has_bonds(lab: &Lab) {
    let status = lab.place(&layer_two()).1.status();
    if lab.host.try_sh("ip link add probe type bond && ip link del probe").status.success() {
        status.ok();
    } else {
        let error = status.fails(50, "the kernel has no links of type bond");
        assert!(error.details.contains("modprobe bonding"), "{error:?}");
    }
}

// --- refused configurations and links: nothing is changed, or everything is undone ---

/// Changes to the configuration, the message, and a part of the details.
const MISTAKES: &str = r#"
{"mode": null} | bonding mode () is not supported | mode: missing, expected "balance-rr",
{"mode": "lacp"} | bonding mode (lacp) is not supported | "802.3ad"
{"miimon": "fast"} | failed to convert bondMiimon value (fast) to an int, error: strconv.Atoi: parsing "fast": invalid syntax | miimon: "fast" is not a number, expected milliseconds
{"miimon": -1} | miimon: -1 is out of range, expected 0 to 2147483647
{"links": [{"name": "port0"}]} | bonding requires at least two links, we have 1 | links: 1 given
{"links": null} | bonding requires at least two links, we have 0 | two at least
{"links": [{"name": "port0"}, {"name": ""}]} | failed to find link name | links[1].name: missing
{"links": [{"name": "port0"}, {"name": "port0"}]} | links[1].name: "port0" is links[0], expected another link
{"mtu": 67} | invalid bond MTU value (67), should be 68 or bigger | mtu: 67 is out of range
{"failOverMac": 3} | FailOverMac mode should be 0, 1 or 2 actual: 3 | failOverMac: 3 is out of range
{"allSlavesActive": 2} | allSlavesActive should be 0 or 1, actual: 2 | expected 0 to 1
{"tlbDynamicLb": 1} | tlbDynamicLb is only supported in balance-tlb or balance-alb mode, actual: active-backup | expected mode balance-tlb or balance-alb, or no such key
{"mode": "balance-tlb", "tlbDynamicLb": 2} | tlbDynamicLb should be 0 or 1, actual: 2 | expected 0 to 1
{"xmitHashPolicy": "layer4"} | xmitHashPolicy is not supported, actual: layer4 | expected "layer2"
{"lacpRate": "fast"} | lacpRate: it has no effect in mode "active-backup", expected mode 802.3ad, or no such key
{"minLinks": 2} | minLinks: it has no effect in mode "active-backup", expected mode 802.3ad, or no such key
{"primary": "port7"} | primary: "port7" is not one of links, expected the name of one
{"arpInterval": 100, "arpIpTargets": ["10.0.0.1"]} | arpInterval and miimon are mutually exclusive
{"arpInterval": 100, "miimon": null} | arpIpTargets: missing, expected IPv4 addresses, beside arpInterval
{"arpInterval": 100, "miimon": null, "arpIpTargets": ["::1"]} | arpIpTargets[0]: "::1" is not an IPv4 address, expected one like 10.0.0.1
{"ipam": {"type": "bond"}} | bond is not a suitable IPAM type | ipam.type: "bond" allocates no addresses
"#;

fn a_mistake_is_named_with_its_place_and_what_was_expected(lab: &Lab) {
    let container = lab.container();
    let before = Watch::start(lab, &[&container]);
    for [changes, msg, details] in cells(MISTAKES) {
        let conf = with(&layer_two(), serde_json::from_str(changes).unwrap());
        let error = lab.attach(&container, &conf).try_add().fails(7, details);
        assert_eq!(error.msg, msg, "{changes}");
    }
    before.assert_unchanged("refused configurations");
}

/// Nothing of these needs a bond. The original moves a link out of its bridge, and compares the MTU
/// of a virtual function with that of the physical one.
#[test]
fn links_that_cannot_be_bonded_are_refused_before_any_change() {
    let cases = rows(
        r#"
the MTU is too large | {"mtu": 1501} | 7: invalid MTU (1501). The requested MTU for bond is bigger than that of the slave link (port1), slave MTU (1500)
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam
a name is taken in the container | {} | 102: the container has a veth of this name | in: ip link add port1 type veth
a port of a bridge | {} | 7: links[1].name: "port1" is a port of another link | host: ip link add lan type bridge; ip link set port1 master lan
one link by two names | {"links": [{"name": "port0"}, {"name": "first"}]} | 7: "first" is links[0] as well | host: ip link set port1 nomaster; ip link property add dev port0 altname first
no such link | {} | 7: failed to move the links ([map[name:port0] map[name:port1]]) in container network namespace, error: failed to lookup link interface "port1": Link not found | host: ip link del port1
not in the container | {"linksInContainer": true} | 7: failed to confirm that link (port0) exists, error: Link not found
"#,
    );
    for_ours("bond", |lab| {
        ports(lab);
        cases.iter().for_each(|case| assert_fails(lab, &conf(), case));
    });
}

/// The IPAM plugin refuses after ADD has moved the links and created the bond. The original leaves
/// the links in the container.
#[test]
fn what_fails_late_is_undone() {
    let full = rows(
        r#"
subnet full | {"ipam": {"subnet": "10.50.0.0/30"}} | 101: 10.50.0.1 | host: mkdir -p /var/lib/cni/networks/net1; printf 'other\neth0' >/var/lib/cni/networks/net1/10.50.0.2
"#,
    );
    for_ours_with_ports(|lab| assert_fails(lab, &leased(), &full[0]));
}

// --- the links come back as they were, whatever happened to the rest ---

fn records(lab: &Lab) -> String {
    lab.host.sh("find /run/cni/bond /run/cni/bond-links -type f 2>/dev/null; true")
}

/// The original leaves renamed links in the container.
fn links_return_without_the_configuration_under_any_name(lab: &Lab) {
    let (container, attachment, before) = lab.watched(&leased());
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
    attachment.conf(json!({"mode": "none", "links": null})).del();
    before.assert_unchanged("ADD");
    assert_eq!(records(lab), "");
}

/// CNI_NETNS leads to another container, which has a bond of its own by the same name.
fn path_of_another_container_gives_nothing_away(lab: &Lab) {
    let (one, first, _) = lab.added(&leased());
    lab.host.sh("ip link add port2 type veth peer name port3");
    let links = json!({"name": "net2", "links": [{"name": "port2"}, {"name": "port3"}]});
    let (other, second, result) = lab.added(&with(&layer_two(), links));
    first.netns(Some(&other.netns)).del();
    assert!(one.link("eth0").is_none() && lab.host.link("port0").is_some());
    second.check_and_del(&result);
    assert!(lab.host.link("port2").is_some() && lab.host.link("port3").is_some());
}

/// veth ends are deleted with their namespace, as all links without hardware.
fn gc_and_del_need_no_namespace(lab: &Lab) {
    let (lost, attachment, _) = lab.added(&leased());
    attachment.gc(&[(&lost.id, "eth0")]).ok();
    assert!(lost.link("eth0").is_some() && lab.host.link("port0").is_none(), "it is valid");
    attachment.gc(&[]).ok();
    assert!(lost.link("eth0").is_none() && mac(&lab.host, "port1") == "02:00:00:00:b0:01");
    attachment.add();
    lost.vanish();
    attachment.del();
    attachment.del();
    assert_eq!(records(lab), "");
    assert_eq!(lab.host.sh("ls /var/lib/cni/networks/net1 | grep ^10 || true"), "");
}

/// Makes the bond of the container as the original does, of these links.
fn make_bond(container: &Namespace, links: &str) {
    container.sh(&format!(
        "ip link add eth0 type bond mode active-backup miimon 100
         for link in {links}; do ip link set $link down; ip link set $link master eth0; done; ip link set eth0 up"
    ));
}

/// The original keeps no record. Its links come back if the configuration names them and the
/// container cannot have made them.
#[test]
fn del_takes_apart_what_the_original_made() {
    let old = json!({"cniVersion": "0.3.1"});
    for_ours_with_ports(|lab| {
        let (container, attachment) = lab.place(&with(&layer_two(), old.clone()));
        let path = &container.netns;
        lab.host.sh(&format!("for port in port0 port1; do ip link set $port netns {path}; done"));
        make_bond(&container, "port0 port1");
        attachment.del();
        assert!(container.link("eth0").is_none());
        for (port, address) in [("port0", "02:00:00:00:b0:00"), ("port1", "02:00:00:00:b0:01")] {
            assert_eq!(mac(&lab.host, port), address);
            assert!(container.link(port).is_none());
        }
        dummies(&container);
        make_bond(&container, "port0");
        lab.attach(&container, &inside(old.clone())).del();
        assert!(container.link("eth0").is_none() && container.link("port0").is_some());
    });
}

/// The record is of before a rollback to the original, which has attached the container again, with
/// another link.
fn del_takes_apart_what_the_original_made_after_a_rollback(lab: &Lab) {
    let (container, bond, _) = lab.added(&layer_two());
    let (host, path) = (lab.pid(), &container.netns);
    container.sh(&format!(
        "ip link del eth0; for port in port0 port1; do ip link set $port netns {host}; done"
    ));
    lab.host.sh(&format!(
        "ip link add port2 type veth peer name far2 netns outside
         for port in port0 port2; do ip link set $port netns {path}; done"
    ));
    make_bond(&container, "port0 port2");
    bond.conf(json!({"links": [{"name": "port0"}, {"name": "port2"}]})).del();
    assert!(container.link("eth0").is_none());
    for port in ["port0", "port1", "port2"] {
        assert!(lab.host.link(port).is_some(), "{port}");
    }
}

each_case! { |case| for_ours_with_ports(case);
    links_of_the_host_stand_in_for_each_other
    links_return_without_the_configuration_under_any_name
    path_of_another_container_gives_nothing_away
    gc_and_del_need_no_namespace
    del_takes_apart_what_the_original_made_after_a_rollback
}

each_case! { |case| for_ours("bond", case);
    links_of_earlier_attachments_are_bonded_and_stay
    every_mode_bonds_links_of_the_same_address
    status_says_whether_the_kernel_has_bonds
    a_mistake_is_named_with_its_place_and_what_was_expected
}
