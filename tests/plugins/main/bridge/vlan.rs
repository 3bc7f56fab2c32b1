//! bridge with `vlan` and `vlanTrunk`, on a kernel with VLAN filtering: the VLANs of the port and
//! the frames it carries.

use serde_json::{Value, json};

use super::failed_add::MASQUERADE_REFUSED;
use super::sends_back;
use crate::support::attachment::{for_each_peer, for_ours, interface, ips, skip, with};
use crate::support::call::Peer;
use crate::support::failed_add::{Case, assert_all_fail, assert_refused};
use crate::support::netns::{Container, Lab};
use crate::support::networks::bridge::{conf, dual_stack, warm_up};
use crate::support::peers::each_case;
use crate::support::table::cells;
use crate::support::traffic::{
    assert_masqueraded, assert_no_ping, assert_not_masqueraded, assert_pings, assert_pings_with,
    hears_broadcasts, is_answered,
};

pub fn filters_vlans(lab: &Lab) -> bool {
    let probe = "ip link add probe type bridge vlan_filtering 1 && ip link del probe";
    let made = lab.host.try_sh(probe).status.success();
    if !made {
        skip("bridge vlan_filtering");
    }
    made
}

fn for_each_peer_that_filters(case: impl Fn(&Lab)) {
    for_each_peer("bridge", |lab| {
        if filters_vlans(lab) {
            case(lab);
        }
    });
}

/// The VLANs of a port, as `[vid, flags…]`.
fn vlans(lab: &Lab, result: &Value) -> Value {
    let port = lab.host.json(&format!("bridge -j vlan show dev {}", interface(result, 1)));
    let entries = port[0]["vlans"].as_array().into_iter().flatten();
    let each = |entry: &Value| {
        let first = entry["vlan"].as_u64().unwrap();
        let last = entry["vlanEnd"].as_u64().unwrap_or(first); // iproute2 may print a range
        let flags: Vec<Value> = entry["flags"].as_array().cloned().unwrap_or_default();
        let of = |vid| [vec![json!(vid)], flags.clone()].concat();
        (first..=last).map(of).collect::<Vec<_>>()
    };
    entries.flat_map(each).collect()
}

/// Changes to the configuration, and the VLANs of the port. On a bridge of others, whose default VLAN is 7, a port that
/// keeps the default is a member of that one.
const MEMBERS: &str = r#"
{"vlan": 100} | [[100, "PVID", "Egress Untagged"]]
{"vlan": 100, "preserveDefaultVlan": true} | [[1, "Egress Untagged"], [100, "PVID", "Egress Untagged"]]
{"vlanTrunk": [{"minID": 200, "maxID": 203}, {"id": 101}], "hairpinMode": true} | [[1, "PVID", "Egress Untagged"], [101], [200], [201], [202], [203]]
{"vlan": 100, "vlanTrunk": [{"id": 101}], "portIsolation": true} | [[100, "PVID", "Egress Untagged"], [101]]
"#;

fn members() -> Vec<(Value, Value)> {
    let json = |cell| serde_json::from_str(cell).unwrap();
    cells(MEMBERS).into_iter().map(|[changes, expected]| (json(changes), json(expected))).collect()
}

fn ports_are_members_of_the_vlans_asked_for(lab: &Lab) {
    for (changes, expected) in members() {
        let (_, attachment, result) = lab.added(&layer_two(changes.clone()));
        assert_eq!(vlans(lab, &result), expected, "{changes}");
        assert_eq!(lab.host.link("br0").unwrap()["linkinfo"]["info_data"]["vlan_filtering"], 1);
        attachment.del();
    }
    lab.host.sh(&format!("ip link del br0 && {BRIDGE_OF_OTHERS}"));
    for (changes, mut expected) in members() {
        if changes.get("preserveDefaultVlan").is_some() {
            expected[0][0] = json!(7);
        }
        let conf = with(&dual_stack(), changes.clone());
        warm_up(lab, &conf);
        let (_, attachment, before) = lab.watched(&conf);
        assert_eq!(vlans(lab, &attachment.add()), expected, "{changes}");
        attachment.del();
        before.assert_unchanged("ADD");
    }
}

/// The network without IPAM; each case adds its own addresses.
fn layer_two(changes: Value) -> Value {
    with(&with(&conf(), json!({"ipam": null})), changes)
}

/// A new container on the network without IPAM.
fn switched(lab: &Lab, changes: Value) -> Container {
    lab.added(&layer_two(changes)).0
}

/// Adds an address of each family to a link: host number `host` in network number `network`.
fn give_addresses(container: &Container, link: &str, network: u16, host: u16) {
    let [v4, v6] = addresses(network, host);
    container
        .sh(&format!("ip addr add {v4}/24 dev {link} && ip addr add {v6}/64 dev {link} nodad"));
}

fn addresses(network: u16, host: u16) -> [String; 2] {
    [format!("10.30.{network}.{host}"), format!("2001:db8:30:{network}::{host}")]
}

/// Adds an interface for the tagged frames of each VLAN; the VLAN ID is also the number of the
/// network.
fn open_tags(container: &Container, vlans: &[u16], host: u16) {
    for vlan in vlans {
        container.sh(&format!("ip link add link eth0 name eth0.{vlan} up type vlan id {vlan}"));
        give_addresses(container, &format!("eth0.{vlan}"), *vlan, host);
    }
}

fn only_members_of_one_vlan_hear_each_other(lab: &Lab) {
    let member =
        |vlan: u16| lab.added(&with(&dual_stack(), json!({"isGateway": false, "vlan": vlan})));
    let [(a, ..), (_, _, same), (_, _, other)] = [100, 100, 200].map(member);
    ips(&same).iter().for_each(|address| assert_pings(&a, address));
    ips(&other).iter().for_each(|address| assert_no_ping(&a, address));
}

#[test]
fn a_trunk_carries_its_vlans_and_no_other() {
    const CARRIED: [u16; 3] = [101, 200, 203];
    const DROPPED: [u16; 3] = [100, 199, 204];
    for_each_peer_that_filters(|lab| {
        let trunk =
            switched(lab, json!({"vlanTrunk": [{"minID": 200, "maxID": 203}, {"id": 101}]}));
        let wide = switched(lab, json!({"vlanTrunk": [{"minID": 100, "maxID": 204}]}));
        let all = [CARRIED, DROPPED].concat();
        open_tags(&trunk, &all, 1);
        open_tags(&wide, &all, 2);
        for vlan in all {
            let access = switched(lab, json!({"vlan": vlan}));
            give_addresses(&access, "eth0", vlan, 3);
            let answers = if CARRIED.contains(&vlan) { assert_pings } else { assert_no_ping };
            for (ours, others) in addresses(vlan, 1).iter().zip(addresses(vlan, 2)) {
                assert_pings(&access, &others); // so a missing answer below is meaningful
                answers(&access, ours);
                answers(&wide, ours);
            }
        }
    });
}

/// The membership of a port decides the VLAN of its untagged frames (the native VLAN) and the VLANs
/// it receives untagged.
#[test]
fn untagged_frames_of_a_trunk_are_in_its_native_vlan() {
    let cases = [
        (json!({}), 1, true),
        (json!({"preserveDefaultVlan": true}), 1, true),
        (json!({"vlan": 100}), 100, false),
        (json!({"vlan": 100, "preserveDefaultVlan": true}), 100, true),
    ];
    for_each_peer_that_filters(|lab| {
        // The first ADD creates the bridge with VLAN filtering.
        let tagged = switched(lab, json!({"vlan": 200}));
        give_addresses(&tagged, "eth0", 200, 2);
        let (default, access) = (switched(lab, json!({})), switched(lab, json!({"vlan": 100})));
        give_addresses(&default, "eth0", 1, 2);
        give_addresses(&access, "eth0", 1, 3);
        for (changes, vlan, hears_default) in &cases {
            let trunk = with(&json!({"vlanTrunk": [{"id": 200}]}), changes.clone());
            let (container, attachment, _) = lab.added(&layer_two(trunk));
            give_addresses(&container, "eth0", 1, 1);
            open_tags(&container, &[200], 1);
            let (inside, outside) = if *vlan == 100 { (3, 2) } else { (2, 3) };
            addresses(1, inside).iter().for_each(|address| assert_pings(&container, address));
            addresses(1, outside).iter().for_each(|address| assert_no_ping(&container, address));
            addresses(200, 2).iter().for_each(|address| assert_pings(&container, address));
            let hears = hears_broadcasts(&container, &default, "10.30.1");
            assert_eq!(hears, *hears_default, "{changes}");
            attachment.del();
        }
    });
}

fn isolated_ports_of_a_vlan_reach_its_gateway_but_no_other_port(lab: &Lab) {
    let open = with(&dual_stack(), json!({"vlan": 100}));
    let isolated = with(&open, json!({"portIsolation": true}));
    let [(a, own), (_, isolated), (c, open)] = [&isolated, &isolated, &open].map(|conf| {
        let (container, _, result) = lab.added(conf);
        (container, ips(&result))
    });
    for family in 0..2 {
        assert_pings(&a, ["10.10.0.1", "2001:db8:10::1"][family]);
        assert_pings(&a, &open[family]);
        assert_pings(&c, &own[family]);
        assert_pings(&c, &isolated[family]); // it answers, so the next line is meaningful
        assert_no_ping(&a, &isolated[family]);
    }
}

#[test]
fn hairpin_mode_sends_frames_back_in_their_vlan() {
    let cases = [
        json!({"vlan": 100}),
        json!({"vlan": 100, "vlanTrunk": [{"id": 200}]}),
        json!({"vlanTrunk": [{"id": 200}]}),
    ];
    for_each_peer_that_filters(|lab| {
        for changes in &cases {
            let hairpin = with(changes, json!({"hairpinMode": true}));
            assert!(sends_back(lab, &switched(lab, hairpin)), "{changes}");
            assert!(!sends_back(lab, &switched(lab, changes.clone())), "{changes}");
        }
    });
}

fn the_gateway_of_a_vlan_has_an_interface_of_its_own(lab: &Lab) {
    let tagged = with(&conf(), json!({"vlan": 100}));
    let (container, attachment, result) = lab.added(&tagged);
    assert_eq!(interface(&result, 3), "br0.100");
    assert_eq!(lab.host.addresses("br0.100"), ["10.10.0.1/24"]);
    assert_eq!(lab.host.addresses("br0"), [""; 0]);
    assert_pings(&container, "10.10.0.1");
    attachment.check_and_del(&result);
    // The gateway's interface stays for the next container, as the bridge does.
    lab.added(&tagged);
    assert_eq!(lab.host.addresses("br0.100"), ["10.10.0.1/24"]);
}

/// If br_netfilter passes bridged frames to the IP rules, frames on their way to the gateway's
/// interface, which is behind a port, may be masqueraded before they are routed. The test covers
/// only routed packets.
const NO_BRIDGE_NETFILTER: &str = "for call in /proc/sys/net/bridge/bridge-nf-call-ip*tables; do [ ! -e $call ] || echo 0 >$call; done";

#[test]
fn the_gateways_route_between_vlans_and_to_the_outside() {
    let network = |vlan: u16, has_masquerade: bool| {
        let ranges = json!([[{"subnet": format!("10.{vlan}.0.0/24")}], [{"subnet": format!("2001:db8:{vlan}::/64")}]]);
        let own = json!({"name": format!("net{vlan}"), "vlan": vlan, "isDefaultGateway": true,
            "ipMasq": has_masquerade, "ipam": {"ranges": ranges}});
        with(&dual_stack(), own)
    };
    for_each_peer_that_filters(|lab| {
        lab.host.sh(NO_BRIDGE_NETFILTER);
        let (a, _, own) = lab.added(&network(100, false));
        let (_, _, other) = lab.added(&network(200, false));
        let (masqueraded, _, hidden) = lab.added(&network(150, true));
        for family in 0..2 {
            let other = &ips(&other)[family];
            assert_pings_with(&a, other, "-t 2");
            assert!(!is_answered(&a, other, "-t 1"), "there is a router between two VLANs");
            assert_masqueraded(lab, &masqueraded, &ips(&hidden)[family]);
            assert_not_masqueraded(lab, &a, &ips(&own)[family]);
        }
    });
}

/// A foreign bridge with another default VLAN and a port in VLANs of its own.
const BRIDGE_OF_OTHERS: &str = "ip link add br0 up type bridge vlan_filtering 1 vlan_default_pvid 7 && \
    ip link add port master br0 up type veth peer name other && ip link set other up && \
    bridge vlan add dev port vid 300-302 && bridge vlan add dev br0 vid 300 self";

#[test]
fn a_failed_add_in_a_vlan_leaves_the_bridge_as_it_was() {
    let taken = "ip link add br0 up type bridge vlan_filtering 1 && \
        ip link add br0.100 type veth peer name gateway && ip link set gateway master br0 up && \
        ip link set br0.100 up && ip addr add 10.99.0.1/24 dev br0.100 && bridge vlan add dev gateway vid 100 pvid untagged";
    let late = || json!({"ipMasq": true, "ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}});
    let refused = json!({"ipam": {"subnet": "10.10.0.0/31"}});
    let cases = [
        Case::new("route unreachable", late(), 100, "10.88.0.1"),
        Case::new("the same on a bridge of others", late(), 100, "10.88.0.1")
            .host(BRIDGE_OF_OTHERS),
        Case::new("IPAM refuses", refused, 7, "10.10.0.0/31").host(BRIDGE_OF_OTHERS),
        Case::new("another address on the gateway's interface", json!({}), 102, "10.99.0.1")
            .host(taken),
    ];
    let in_vlans = json!({"vlan": 100, "vlanTrunk": [{"minID": 200, "maxID": 210}]});
    // One probe decides for all cases: each case has labs of its own.
    if filters_vlans(&Lab::new(Peer::Ours)) {
        assert_all_fail("bridge", &with(&conf(), in_vlans), &cases);
    }
}

/// The last step fails, after the gateway's interface was created.
#[test]
fn a_failed_add_takes_the_gateway_s_interface_away() {
    let conf = with(&conf(), json!({"vlan": 100, "ipMasq": true}));
    for host in ["true", BRIDGE_OF_OTHERS] {
        for_ours("bridge", |lab| {
            if filters_vlans(lab) {
                lab.host.sh(host);
                lab.host.sh(MASQUERADE_REFUSED);
                assert_refused(lab, &conf, 100, "masquerade");
            }
        });
    }
}

/// An ADD killed between creating and connecting the gateway's interface leaves it incomplete, and
/// a concurrent ADD shows the same state.
#[test]
fn a_gateway_interface_that_is_half_made_is_completed() {
    for_ours("bridge", |lab| {
        if !filters_vlans(lab) {
            return;
        }
        let conf = with(&conf(), json!({"vlan": 100}));
        lab.added(&conf);
        lab.host.sh("ip link set br0.100 down; ip link set $(ip -o link show br0.100 | sed 's/.*@\\([^:]*\\):.*/\\1/') nomaster");
        let (container, ..) = lab.added(&conf);
        assert_pings(&container, "10.10.0.1");
    });
}

each_case! { |case| for_each_peer_that_filters(case);
    ports_are_members_of_the_vlans_asked_for
    only_members_of_one_vlan_hear_each_other
    isolated_ports_of_a_vlan_reach_its_gateway_but_no_other_port
    the_gateway_of_a_vlan_has_an_interface_of_its_own
}
