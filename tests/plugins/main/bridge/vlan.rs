//! bridge with `vlan` and `vlanTrunk`, on a kernel with VLAN filtering: the VLANs of the port and
//! the frames it carries.

use serde_json::{Value, json};

use super::sends_back;
use crate::support::attachment::{for_each_peer, for_ours, interface, ips, skip, with};
use crate::support::call::Peer;
use crate::support::failed_add::{Case, assert_all_fail, fail};
use crate::support::netns::{Container, Lab};
use crate::support::networks::bridge::{conf, dual_stack, warm_up};
use crate::support::snapshot::Watch;
use crate::support::traffic::{
    assert_masqueraded, assert_no_ping, assert_not_masqueraded, assert_pings, assert_pings_with,
    hears_broadcasts, is_answered,
};

pub fn filters_vlans(lab: &Lab) -> bool {
    let made = lab
        .host
        .try_sh("ip link add probe type bridge vlan_filtering 1 && ip link del probe")
        .status
        .success();
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
        (first..=last)
            .map(move |vid| std::iter::once(json!(vid)).chain(flags.clone()).collect::<Value>())
            .collect::<Vec<_>>()
    };
    entries.flat_map(each).collect()
}

#[test]
fn ports_are_members_of_the_vlans_asked_for() {
    let cases = [
        (json!({"vlan": 100}), json!([[100, "PVID", "Egress Untagged"]])),
        (
            json!({"vlan": 100, "preserveDefaultVlan": true}),
            json!([[1, "Egress Untagged"], [100, "PVID", "Egress Untagged"]]),
        ),
        (
            json!({"vlanTrunk": [{"minID": 200, "maxID": 203}, {"id": 101}]}),
            json!([[1, "PVID", "Egress Untagged"], [101], [200], [201], [202], [203]]),
        ),
        (
            json!({"vlan": 100, "vlanTrunk": [{"id": 101}]}),
            json!([[100, "PVID", "Egress Untagged"], [101]]),
        ),
    ];
    for_each_peer_that_filters(|lab| {
        for (changes, expected) in &cases {
            let layer_two = with(&with(&conf(), json!({"ipam": null})), changes.clone());
            let attachment = lab.attach(&lab.container(), &layer_two);
            let result = attachment.add();
            assert_eq!(vlans(lab, &result), *expected, "{changes}");
            assert_eq!(lab.host.link("br0").unwrap()["linkinfo"]["info_data"]["vlan_filtering"], 1);
            attachment.del();
        }
    });
}

/// The network without IPAM; each case adds its own addresses.
fn layer_two(changes: Value) -> Value {
    with(&with(&conf(), json!({"ipam": null})), changes)
}

/// A new container on the network without IPAM.
fn switched(lab: &Lab, changes: Value) -> Container {
    let container = lab.container();
    lab.attach(&container, &layer_two(changes)).add();
    container
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

#[test]
fn only_members_of_one_vlan_hear_each_other() {
    for_each_peer_that_filters(|lab| {
        let member = |vlan: u16| {
            let container = lab.container();
            let result = lab
                .attach(&container, &with(&dual_stack(), json!({"isGateway": false, "vlan": vlan})))
                .add();
            (container, ips(&result))
        };
        let ((a, _), (_b, same), (_c, other)) = (member(100), member(100), member(200));
        same.iter().for_each(|address| assert_pings(&a, address));
        other.iter().for_each(|address| assert_no_ping(&a, address));
    });
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
            for (ours, others) in addresses(vlan, 1).iter().zip(addresses(vlan, 2)) {
                assert_pings(&access, &others); // so a missing answer below is meaningful
                if CARRIED.contains(&vlan) {
                    assert_pings(&access, ours);
                    assert_pings(&wide, ours);
                } else {
                    assert_no_ping(&access, ours);
                    assert_no_ping(&wide, ours);
                }
            }
        }
    });
}

/// The membership of a port decides the VLAN of its untagged frames (the native VLAN) and the VLANs
/// it receives untagged.
#[test]
fn untagged_frames_of_a_trunk_are_in_its_native_vlan() {
    struct Native {
        changes: Value,
        vlan: u16,
        hears_default: bool,
    }
    let trunk = json!({"vlanTrunk": [{"id": 200}]});
    let case = |changes: Value, vlan, hears_default| Native {
        changes: with(&trunk, changes),
        vlan,
        hears_default,
    };
    let cases = [
        case(json!({}), 1, true),
        case(json!({"preserveDefaultVlan": true}), 1, true),
        case(json!({"vlan": 100}), 100, false),
        case(json!({"vlan": 100, "preserveDefaultVlan": true}), 100, true),
    ];
    for_each_peer_that_filters(|lab| {
        // The first ADD creates the bridge with VLAN filtering.
        let tagged = switched(lab, json!({"vlan": 200}));
        give_addresses(&tagged, "eth0", 200, 2);
        let (default, access) = (switched(lab, json!({})), switched(lab, json!({"vlan": 100})));
        give_addresses(&default, "eth0", 1, 2);
        give_addresses(&access, "eth0", 1, 3);
        for Native { changes, vlan, hears_default } in &cases {
            let container = lab.container();
            let attachment = lab.attach(&container, &layer_two(changes.clone()));
            attachment.add();
            give_addresses(&container, "eth0", 1, 1);
            open_tags(&container, &[200], 1);
            let (inside, outside) = if *vlan == 100 { (3, 2) } else { (2, 3) };
            addresses(1, inside).iter().for_each(|address| assert_pings(&container, address));
            addresses(1, outside).iter().for_each(|address| assert_no_ping(&container, address));
            addresses(200, 2).iter().for_each(|address| assert_pings(&container, address));
            assert_eq!(
                hears_broadcasts(&container, &default, "10.30.1"),
                *hears_default,
                "{changes}"
            );
            attachment.del();
        }
    });
}

#[test]
fn isolated_ports_of_a_vlan_reach_its_gateway_but_no_other_port() {
    for_each_peer_that_filters(|lab| {
        let open = with(&dual_stack(), json!({"vlan": 100}));
        let isolated = with(&open, json!({"portIsolation": true}));
        let add = |conf: &Value| {
            let container = lab.container();
            let result = lab.attach(&container, conf).add();
            (container, ips(&result))
        };
        let ((a, own), (_b, isolated), (c, open)) = (add(&isolated), add(&isolated), add(&open));
        for family in 0..2 {
            assert_pings(&a, ["10.10.0.1", "2001:db8:10::1"][family]);
            assert_pings(&a, &open[family]);
            assert_pings(&c, &own[family]);
            assert_pings(&c, &isolated[family]); // it answers, so the next line is meaningful
            assert_no_ping(&a, &isolated[family]);
        }
    });
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

#[test]
fn the_gateway_of_a_vlan_has_an_interface_of_its_own() {
    for_each_peer_that_filters(|lab| {
        let container = lab.container();
        let tagged = with(&conf(), json!({"vlan": 100}));
        let attachment = lab.attach(&container, &tagged);
        let result = attachment.add();
        assert_eq!(interface(&result, 3), "br0.100");
        assert_eq!(lab.host.addresses("br0.100"), ["10.10.0.1/24"]);
        assert_eq!(lab.host.addresses("br0"), [""; 0]);
        assert_pings(&container, "10.10.0.1");
        attachment.check(&result).ok();
        attachment.del();
        // The gateway's interface stays for the next container, as the bridge does.
        lab.attach(&lab.container(), &tagged).add();
        assert_eq!(lab.host.addresses("br0.100"), ["10.10.0.1/24"]);
    });
}

/// If br_netfilter passes bridged frames to the IP rules, frames on their way to the gateway's
/// interface, which is behind a port, may be masqueraded before they are routed. The test covers
/// only routed packets.
const NO_BRIDGE_NETFILTER: &str = "for call in /proc/sys/net/bridge/bridge-nf-call-ip*tables; do [ ! -e $call ] || echo 0 >$call; done";

#[test]
fn the_gateways_route_between_vlans_and_to_the_outside() {
    let network = |vlan: u16, changes: Value| {
        let ranges = json!([[{"subnet": format!("10.{vlan}.0.0/24")}], [{"subnet": format!("2001:db8:{vlan}::/64")}]]);
        let own = json!({"name": format!("net{vlan}"), "vlan": vlan, "isDefaultGateway": true, "ipam": {"ranges": ranges}});
        with(&with(&dual_stack(), own), changes)
    };
    for_each_peer_that_filters(|lab| {
        lab.host.sh(NO_BRIDGE_NETFILTER);
        let add = |conf: &Value| {
            let container = lab.container();
            let result = lab.attach(&container, conf).add();
            (container, ips(&result))
        };
        let (a, own) = add(&network(100, json!({})));
        let (_b, other) = add(&network(200, json!({})));
        let (masqueraded, sources) = add(&network(150, json!({"ipMasq": true})));
        for family in 0..2 {
            assert_pings_with(&a, &other[family], "-t 2");
            assert!(
                !is_answered(&a, &other[family], "-t 1"),
                "there is a router between two VLANs"
            );
            assert_masqueraded(lab, &masqueraded, &sources[family]);
            assert_not_masqueraded(lab, &a, &own[family]);
        }
    });
}

/// A foreign bridge with another default VLAN and a port in VLANs of its own.
const BRIDGE_OF_OTHERS: &str = "ip link add br0 up type bridge vlan_filtering 1 vlan_default_pvid 7 && \
    ip link add port master br0 up type veth peer name other && ip link set other up && \
    bridge vlan add dev port vid 300-302 && bridge vlan add dev br0 vid 300 self";

#[test]
fn del_takes_the_vlans_away_and_leaves_the_bridge_as_it_was() {
    let trunk = json!([{"minID": 200, "maxID": 202}, {"id": 101}]);
    let cases = [
        (json!({"vlan": 100}), json!([[100, "PVID", "Egress Untagged"]])),
        (
            json!({"vlan": 100, "preserveDefaultVlan": true}),
            json!([[7, "Egress Untagged"], [100, "PVID", "Egress Untagged"]]),
        ),
        (
            json!({"vlanTrunk": trunk, "hairpinMode": true}),
            json!([[1, "PVID", "Egress Untagged"], [101], [200], [201], [202]]),
        ),
        (
            json!({"vlan": 100, "vlanTrunk": trunk, "portIsolation": true}),
            json!([[100, "PVID", "Egress Untagged"], [101], [200], [201], [202]]),
        ),
    ];
    for_each_peer_that_filters(|lab| {
        lab.host.sh(BRIDGE_OF_OTHERS);
        for (changes, expected) in &cases {
            let conf = with(&dual_stack(), changes.clone());
            warm_up(lab, &conf);
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            let attachment = lab.attach(&container, &conf);
            let result = attachment.add();
            assert_eq!(vlans(lab, &result), *expected, "{changes}");
            attachment.del();
            before.assert_unchanged("ADD");
        }
    });
}

#[test]
fn a_failed_add_in_a_vlan_leaves_the_bridge_as_it_was() {
    let in_vlans =
        |changes| with(&json!({"vlan": 100, "vlanTrunk": [{"minID": 200, "maxID": 210}]}), changes);
    let unreachable = || {
        in_vlans(
            json!({"ipMasq": true, "ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}}),
        )
    };
    let taken = "ip link add br0 up type bridge vlan_filtering 1 && \
        ip link add br0.100 type veth peer name gateway && ip link set gateway master br0 up && \
        ip link set br0.100 up && ip addr add 10.99.0.1/24 dev br0.100 && bridge vlan add dev gateway vid 100 pvid untagged";
    let cases = [
        Case::new("route unreachable", unreachable(), 100, "10.88.0.1"),
        Case::new("route unreachable, a bridge of others", unreachable(), 100, "10.88.0.1")
            .host(BRIDGE_OF_OTHERS),
        Case::new(
            "IPAM refuses",
            in_vlans(json!({"ipam": {"subnet": "10.10.0.0/31"}})),
            7,
            "10.10.0.0/31",
        )
        .host(BRIDGE_OF_OTHERS),
        Case::new(
            "another address on the gateway's interface",
            in_vlans(json!({})),
            102,
            "10.99.0.1",
        )
        .host(taken),
    ];
    // One probe decides for all cases: each case has labs of its own.
    if filters_vlans(&Lab::new(Peer::Ours)) {
        assert_all_fail("bridge", &conf(), &cases);
    }
}

/// The last step fails, after the gateway's interface was created.
#[test]
fn a_failed_add_takes_the_gateway_s_interface_away() {
    for host in ["true", BRIDGE_OF_OTHERS] {
        for_ours("bridge", |lab| {
            if !filters_vlans(lab) {
                return;
            }
            lab.host.sh("nft add table inet cni_multi_masquerade; nft add chain inet cni_multi_masquerade postrouting");
            let changes = json!({"vlan": 100, "ipMasq": true});
            let case = Case::new("masquerade", changes, 100, "masquerade").host(host);
            let (changes, error) = fail(lab, &conf(), &case);
            assert_eq!((changes.as_str(), error.code), ("", case.code), "{error:?}");
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
        lab.attach(&lab.container(), &conf).add();
        lab.host.sh("ip link set br0.100 down; ip link set $(ip -o link show br0.100 | sed 's/.*@\\([^:]*\\):.*/\\1/') nomaster");
        let container = lab.container();
        lab.attach(&container, &conf).add();
        assert_pings(&container, "10.10.0.1");
    });
}
