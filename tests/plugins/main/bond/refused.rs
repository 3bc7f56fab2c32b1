//! Configurations and links that ADD of bond refuses: nothing is changed, or everything is undone.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::failed_add::rows;
use crate::support::failed_add::{Case, assert_fails};
use crate::support::networks::bond::{conf, for_ours_with_ports, inside, layer_two, leased, ports};
use crate::support::snapshot::Watch;
use crate::support::table::cells;

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

#[test]
fn a_mistake_is_named_with_its_place_and_what_was_expected() {
    for_ours("bond", |lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        for [changes, msg, details] in cells(MISTAKES) {
            let changes: Value = serde_json::from_str(changes).unwrap();
            let error =
                lab.attach(&container, &with(&layer_two(), changes.clone())).try_add().err();
            assert_eq!((error.code, &*error.msg), (7, msg), "{changes}: {error:?}");
            assert!(error.details.contains(details), "{changes}: {error:?}");
        }
        before.assert_unchanged("refused configurations");
    });
}

/// A configuration that has become wrong, or is none, does not keep a container from ending. The
/// original's DEL fails.
#[test]
fn del_needs_no_valid_configuration() {
    for_ours("bond", |lab| {
        let container = lab.container();
        for changes in [json!({"mode": "none"}), json!({"links": "many"}), json!({"links": []})] {
            lab.attach(&container, &with(&layer_two(), changes)).del();
        }
    });
}

const MOVING: &str = "failed to move the links ([map[name:port0] map[name:port1]]) in container network namespace, error: ";

/// Nothing of these needs a bond. The original moves a link out of its bridge, and compares the MTU
/// of a virtual function with that of the physical one.
#[test]
fn links_that_cannot_be_bonded_are_refused_before_any_change() {
    for_ours("bond", |lab| {
        ports(lab);
        let missing = format!("{MOVING}failed to lookup link interface \"port1\": Link not found");
        let missing: &'static str = missing.leak();
        for case in rows(r#"
the MTU is too large | {"mtu": 1501} | 7: invalid MTU (1501). The requested MTU for bond is bigger than that of the slave link (port1), slave MTU (1500)
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam
a name is taken in the container | {} | 102: the container has a veth of this name | in: ip link add port1 type veth
a port of a bridge | {} | 7: links[1].name: "port1" is a port of another link | host: ip link add lan type bridge; ip link set port1 master lan
one link by two names | {"links": [{"name": "port0"}, {"name": "first"}]} | 7: "first" is links[0] as well | host: ip link set port1 nomaster; ip link property add dev port0 altname first
"#)
.into_iter()
.chain([Case::new("no such link", json!({}), 7, missing).host("ip link del port1")])
 {
            assert_fails(lab, &conf(), &case);
        }
        let absent = Case::new(
            "not in the container",
            json!({}),
            7,
            "failed to confirm that link (port0) exists, error: Link not found",
        );
        assert_fails(lab, &inside(json!({})), &absent);
    });
}

/// The IPAM plugin refuses after ADD has moved the links and created the bond. The original leaves
/// the links in the container.
#[test]
fn what_fails_late_is_undone() {
    for_ours_with_ports(|lab| {
        let full = Case::new(
            "no address is free",
            json!({"ipam": {"subnet": "10.50.0.0/30"}}),
            101,
            "10.50.0.1",
        );
        let taken = "mkdir -p /var/lib/cni/networks/net1; printf 'other\\neth0' >/var/lib/cni/networks/net1/10.50.0.2";
        assert_fails(lab, &leased(), &full.host(taken));
    });
}
