//! bridge: the kernel's state after ADD and the packets that pass; masquerading, CHECK, DEL and
//! failures have modules of their own.

pub mod del;
pub mod failed_add;
mod gateways;
pub mod masquerade;
mod undo_race;
pub mod vlan;

pub use self::vlan::filters_vlans;

use cni_multi::cni::attachment::Key;
use serde_json::{Value, json};

use super::stacked::mac;
use crate::support::attachment::{for_each_peer, for_ours, interface, ips, with};
use crate::support::contract::{assert_del_leaves_nothing, assert_macs, assert_shown};
use crate::support::netns::{Container, Lab, UPLINK};
use crate::support::networks::bridge::{conf, dual_stack, static_ipam, warm_up};
use crate::support::peers::each_case;
use crate::support::table::cells;
use crate::support::traffic::{
    assert_carry_frames, assert_mtu_passes, assert_no_ping, assert_pings,
    assert_two_containers_talk, is_answered,
};

pub fn v6() -> Value {
    with(&conf(), json!({"ipam": {"subnet": "2001:db8:10::/64"}}))
}

/// The bridge port of an attachment, with its flags.
pub fn port(lab: &Lab, result: &Value) -> Value {
    lab.host.json(&format!("bridge -j -d link show dev {}", interface(result, 1)))[0].clone()
}

/// Whether the bridge sends frames back through the port they came from: two macvlan links in VEPA
/// mode on the container's link ping each other.
fn sends_back(lab: &Lab, container: &Container) -> bool {
    let ends = [lab.container(), lab.container()];
    for (at, end) in (1..).zip(&ends) {
        let netns = end.netns.rsplit('/').next().unwrap();
        container
            .sh(&format!("ip link add vepa{at} link eth0 netns {netns} type macvlan mode vepa"));
        end.sh(&format!("ip link set vepa{at} up && ip addr add 10.31.0.{at}/24 dev vepa{at}"));
    }
    let answered = (0..3).any(|_| is_answered(&ends[0], "10.31.0.2", ""));
    for (at, end) in (1..).zip(&ends) {
        end.sh(&format!("ip link del vepa{at}")); // the next case uses the same addresses
    }
    answered
}

fn hairpin_mode_sends_frames_back_where_they_came_from(lab: &Lab) {
    for hairpin in [true, false] {
        let (container, ..) = lab.added(&with(&conf(), json!({"hairpinMode": hairpin})));
        assert_eq!(sends_back(lab, &container), hairpin);
    }
}

#[test]
fn container_reaches_its_gateways_and_del_leaves_nothing() {
    let addresses = ["10.10.0.3/24", "2001:db8:10::3/64"];
    let gateways = ["10.10.0.1", "2001:db8:10::1"];
    let cases = [(conf(), 0..1), (v6(), 1..2), (dual_stack(), 0..2)];
    for_each_peer("bridge", |lab| {
        for (at, (conf, families)) in cases.iter().enumerate() {
            let conf = with(conf, json!({"bridge": format!("br{at}"), "name": format!("net{at}")}));
            warm_up(lab, &conf);
            let (container, attachment, before) = lab.watched(&conf);
            let result = attachment.add();
            assert_eq!(container.addresses("eth0"), addresses[families.clone()]);
            gateways[families.clone()].iter().for_each(|gateway| assert_pings(&container, gateway));
            assert_eq!(attachment.check(&result).ok(), Value::Null);
            assert_del_leaves_nothing(&attachment, &before);
            lab.host.sh(&format!("ip link del br{at}")); // the next case uses the same gateways
        }
    });
}

fn result_says_what_the_kernel_has(lab: &Lab) {
    let (container, _, result) = lab.added(&conf());
    let port = lab.host.link(&interface(&result, 1)).unwrap();
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": "br0", "mac": mac(&lab.host, "br0")},
            {"name": port["ifname"], "mac": port["address"]},
            {"name": "eth0", "mac": mac(&container, "eth0"), "sandbox": container.netns},
        ],
        "ips": [{"address": "10.10.0.2/24", "gateway": "10.10.0.1", "interface": 2}],
    });
    assert_eq!(result, expected);
    assert_eq!(port["master"], "br0");
    assert_eq!(port["linkinfo"]["info_kind"], "veth");
    assert_eq!(port["operstate"], "UP");
    let name = port["ifname"].as_str().unwrap();
    assert!(name.starts_with("veth"), "tools match the name: {port}");
    assert_eq!(lab.host.addresses("br0"), ["10.10.0.1/24"]);
}

#[test]
fn default_gateway_is_the_default_route_of_each_family() {
    let conf = with(&dual_stack(), json!({"isGateway": false, "isDefaultGateway": true}));
    let routes =
        json!([{"dst": "0.0.0.0/0", "gw": "10.10.0.1"}, {"dst": "::/0", "gw": "2001:db8:10::1"}]);
    for_each_peer("bridge", |lab| {
        let (container, _, result) = lab.added(&conf);
        assert_eq!(result["routes"], routes);
        for (at, family) in [4, 6].into_iter().enumerate() {
            let shown = container.json(&format!("ip -j -{family} route show default"));
            assert_eq!(shown[0]["gateway"], routes[at]["gw"]);
            assert_pings(&container, UPLINK[at]);
        }
    });
}

#[test]
fn containers_of_one_network_reach_each_other_by_tcp() {
    for_each_peer("bridge", |lab| assert_two_containers_talk(lab, &dual_stack()));
}

fn macs_of_container_and_bridge_stay_when_others_come_and_go(lab: &Lab) {
    lab.added(&conf());
    let bridge = mac(&lab.host, "br0");
    // Without an address of its own the bridge would take the MAC of this port, which is the
    // lowest.
    let (_, attachment, result) = lab.added(&conf());
    lab.host.sh(&format!("ip link set {} address 00:00:00:00:00:01", interface(&result, 1)));
    assert_eq!(mac(&lab.host, "br0"), bridge);
    attachment.del();
    assert_eq!(mac(&lab.host, "br0"), bridge);
}

/// As in the reference; `details` names the address in the way.
#[test]
fn force_address_replaces_what_conflicts() {
    let cases = r#"
10.10.0.0/24 | 10.20.0.0/24 | conflicts
2001:db8:10::/48 | 2001:db8:10:5::/64 | conflicts
2001:db8:10::/64 | 2001:db8:20::/64
"#;
    for_each_peer("bridge", |lab| {
        for (at, [first, second, conflicts]) in cells(cases).into_iter().enumerate() {
            let bridge = format!("br{at}");
            let on = |name: &str, subnet: &str| {
                let name = format!("{name}{at}");
                with(&conf(), json!({"name": name, "bridge": bridge, "ipam": {"subnet": subnet}}))
            };
            lab.added(&on("first", first));
            let before = lab.host.addresses(&bridge);
            let (_, plain) = lab.place(&on("second", second));
            let outcome = plain.try_add();
            if conflicts.is_empty() {
                outcome.ok();
                assert_eq!(lab.host.addresses(&bridge).len(), 2, "both kept");
                continue;
            }
            let error = outcome.err();
            assert!(error.text().contains(&bridge), "the error names the bridge: {error:?}");
            assert_eq!(lab.host.addresses(&bridge), before);
            lab.added(&with(&on("second", second), json!({"forceAddress": true})));
            assert_eq!(lab.host.addresses(&bridge).len(), 1, "replaced");
        }
    });
}

/// A warning is not an error if the runtime has closed its end of stderr.
fn a_warning_without_a_reader_is_no_error(lab: &Lab) {
    lab.host.sh("ip link add br0 type bridge");
    let (_, attachment) = lab.place(&with(&conf(), json!({"vlan": 100})));
    let mut call = attachment.call("ADD", None);
    let reader_is_gone = r#"exec 3>&1; { sleep 0.2; exec "$0"; } 2>&1 >&3 | :"#;
    call.wrapper.extend(["sh", "-c", reader_is_gone].map(str::to_owned));
    let outcome = call.run();
    assert_ne!(outcome.json()["code"], 106, "{outcome:?}");
}

fn mtu_is_that_of_both_ends_and_the_largest_packet_passes(lab: &Lab) {
    let (container, _, result) = lab.added(&with(&conf(), json!({"mtu": 1400})));
    let port = interface(&result, 1);
    for (at, link) in [(&*container, "eth0"), (&lab.host, &port), (&lab.host, "br0")] {
        assert_eq!(at.link(link).unwrap()["mtu"], 1400, "{link}");
    }
    assert_mtu_passes(&container, "10.10.0.1", 1400);
}

/// As [`assert_macs`] has them; libcni's JSON reader takes keys in any case, and configurations rely on it.
const MACS: &str = r#"
{} | IgnoreUnknown=1;MAC=02:00:00:00:00:01 | 02:00:00:00:00:01
{"args": {"cni": {"mac": "02:00:00:00:00:02"}}} | IgnoreUnknown=1;MAC=02:00:00:00:00:01 | 02:00:00:00:00:02
{"args": {"cni": {"mac": "02:00:00:00:00:02"}}, "runtimeConfig": {"mac": "02:00:00:00:00:03"}} | IgnoreUnknown=1;MAC=02:00:00:00:00:01 | 02:00:00:00:00:03
{"RuntimeConfig": {"mac": "02:00:00:00:00:04"}} | IgnoreUnknown=1;MAC=02:00:00:00:00:01 | 02:00:00:00:00:04
"#;

#[test]
fn the_mac_comes_from_the_most_specific_source() {
    for_each_peer("bridge", |lab| assert_macs(lab, &conf(), MACS, Some("10.10.0.1")));
}

fn isolated_ports_reach_the_gateway_but_not_each_other(lab: &Lab) {
    let isolated = with(&conf(), json!({"portIsolation": true}));
    let (a, _, result) = lab.added(&isolated);
    assert_eq!(port(lab, &result)["isolated"], true);
    let [(_, _, other), (_, _, open)] = [&isolated, &conf()].map(|conf| lab.added(conf));
    assert_pings(&a, "10.10.0.1");
    assert_pings(&a, &ips(&open)[0]);
    assert_no_ping(&a, &ips(&other)[0]);
}

/// What stays on the bridge comes late: `promiscMode`.
#[test]
fn the_kernel_has_what_the_configuration_says() {
    let of_another_gateway = r#"
{"isGateway": null} | ip -j addr show dev br0 scope global | /0/addr_info/0 | null
{"isGateway": null} | result | /ips/0/gateway | "10.10.0.1"
"#;
    let of_link = r#"
{} | in: cat /proc/sys/net/ipv4/conf/eth0/arp_notify |  | 1
{} | bridge -j -d link show dev $end | /0/hairpin | false
{"hairpinMode": true} | bridge -j -d link show dev $end | /0/hairpin | true
{"portIsolation": true} | bridge -j -d link show dev $end | /0/isolated | true
{"ipam": {"routes": [{"dst": "10.91.0.0/16"}]}} | in: ip -j route show 10.91.0.0/16 | /0/gateway | "10.10.0.1"
{"ipam": {"routes": [{"dst": "10.92.0.0/16", "gw": "10.10.0.9"}]}} | in: ip -j route show 10.92.0.0/16 | /0/gateway | "10.10.0.9"
{"ipam": {"routes": [{"dst": "10.93.0.0/16", "priority": 77}]}} | in: ip -j route show 10.93.0.0/16 | /0/metric | 77
{"ipam": {"routes": [{"dst": "10.94.0.0/16", "table": 500}]}} | in: ip -j route show table 500 | /0/gateway | "10.10.0.1"
{"ipam": {"routes": [{"dst": "10.94.0.0/16", "table": 500}]}} | in: ip -j route show 10.94.0.0/16 | /0 | null
{"ipam": {"routes": [{"dst": "10.95.0.0/16", "scope": 253, "gw": "0.0.0.0"}]}} | in: ip -j -d route show 10.95.0.0/16 | /0/scope | "link"
{"ipam": {"routes": [{"dst": "10.95.0.0/16", "scope": 253, "gw": "0.0.0.0"}]}} | in: ip -j -d route show 10.95.0.0/16 | /0/gateway | null
{"ipam": null, "disableContainerInterface": true} | in: ip -j addr show dev eth0 | /0/operstate | "DOWN"
{"ipam": null, "disableContainerInterface": true} | in: ip -j addr show dev eth0 | /0/addr_info | []
{} | ip -j -d link show dev br0 | /0/promiscuity | 0
{"promiscMode": true} | ip -j -d link show dev br0 | /0/promiscuity | 1
"#;
    let of_dad = r#"
{} | in: cat /proc/sys/net/ipv6/conf/eth0/accept_dad |  | 0
{"enabledad": true} | in: cat /proc/sys/net/ipv6/conf/eth0/accept_dad |  | 1
{"enabledad": true} | in: cat /proc/sys/net/ipv6/conf/eth0/enhanced_dad |  | 1
"#;
    // The reference cannot give an address to a bridge whose last port is gone: its MAC is 0.
    for_each_peer("bridge", |lab| assert_shown(lab, &conf(), of_another_gateway));
    for_each_peer("bridge", |lab| assert_shown(lab, &conf(), of_link));
    for_each_peer("bridge", |lab| assert_shown(lab, &v6(), of_dad));
}

fn add_ends_after_duplicate_address_detection(lab: &Lab) {
    let (container, ..) = lab.added(&with(&v6(), json!({"enabledad": true})));
    assert!(!container.sh("ip -6 addr show dev eth0").contains("tentative"));
    assert_pings(&container, "2001:db8:10::1");
}

#[test]
fn a_duplicate_ipv6_address_fails_add_when_dad_is_enabled() {
    let address = json!([{"address": "2001:db8:10::7/64", "gateway": "2001:db8:10::1"}]);
    let plain = with(&conf(), json!({"isGateway": null, "enabledad": true}));
    let taken = static_ipam(&plain, address, json!([]));
    for_each_peer("bridge", |lab| {
        lab.added(&taken);
        let error = lab.place(&taken).1.try_add().err();
        assert!(error.text().contains("2001:db8:10::7"), "{error:?}");
    });
}

fn layer_two_networks_carry_frames_without_ipam(lab: &Lab) {
    let layer_two = with(&conf(), json!({"ipam": null}));
    let [(a, _, result), (b, ..)] = [(), ()].map(|()| lab.added(&layer_two));
    assert_eq!(result.get("ips"), None);
    assert_carry_frames(&a, &b);
    assert_eq!(lab.host.addresses("br0"), [""; 0]);
}

fn an_existing_bridge_is_used_as_it_is(lab: &Lab) {
    lab.host.sh("ip link add br0 address 02:00:00:00:aa:aa type bridge forward_delay 200 && ip addr add 10.10.0.1/24 dev br0");
    let before = lab.host.link("br0").unwrap();
    let (container, ..) = lab.added(&with(&conf(), json!({"mtu": 1500})));
    let after = lab.host.link("br0").unwrap();
    for key in ["/ifindex", "/address", "/mtu", "/linkinfo/info_data/forward_delay"] {
        assert_eq!(after.pointer(key), before.pointer(key), "{key}");
    }
    assert_pings(&container, "10.10.0.1");
}

/// Ours only: the reference's names are random.
fn a_link_of_the_host_that_has_our_name_is_left_alone(lab: &Lab) {
    let (_, attachment) = lab.place(&conf());
    let key = Key::parse("net1", &attachment.container_id, "eth0").unwrap();
    let name = |attempt| cni_multi::steps::veth::host_name(&key, attempt);
    lab.host.sh(&format!("ip link add {} type veth peer name other", name(0)));
    assert_eq!(interface(&attachment.add(), 1), name(1));
    attachment.del();
    assert!(lab.host.link(&name(0)).is_some() && lab.host.link(&name(1)).is_none());
}

/// The reserved multicast addresses to which the bridge forwards frames: 16384 is for 01:80:c2:00:00:0e, of PTP and LLDP.
fn a_bridge_forwards_the_groups_of_each_of_its_networks(lab: &Lab) {
    let mask = || lab.host.link("br0").unwrap()["linkinfo"]["info_data"]["group_fwd_mask"].clone();
    let of = |bits: u32| with(&conf(), json!({"groupFwdMask": bits}));
    let (_, first, result) = lab.added(&of(16384));
    assert_eq!(mask(), "0x4000");
    lab.added(&of(8));
    lab.added(&conf());
    assert_eq!(mask(), "0x4008");
    first.check(&result).ok();
    lab.host.sh("ip link set br0 type bridge group_fwd_mask 8");
    let words = r#"bridge "br0" lacks bits 0x4000 of group_fwd_mask"#;
    first.check(&result).fails(103, words);
}

// --- a bridge of others, with an uplink or without ports, keeps its hardware address ---

/// Creates a bridge with an uplink that has this hardware address.
fn bridge_with_uplink(lab: &Lab, address: &str) {
    lab.host.sh(&format!(
        "ip link add wire0 up address {address} type veth peer name wire1 && ip link set wire1 up && \
         ip link add br0 up type bridge && ip link set wire0 master br0"
    ));
    assert_eq!(mac(&lab.host, "br0"), address);
}

/// Expects that two ADDs and their DELs keep the bridge's current address.
#[track_caller]
fn assert_keeps_mac(lab: &Lab, conf: &Value) {
    let before = mac(&lab.host, "br0");
    for round in 1..=2 {
        let (container, attachment, result) = lab.added(conf);
        assert_eq!(result["interfaces"][0]["mac"], *before, "the result of ADD {round}");
        assert_eq!(mac(&lab.host, "br0"), before, "after ADD {round}");
        if conf["isGateway"] == true {
            assert_pings(&container, "10.10.0.1");
        }
        attachment.del();
        assert_eq!(mac(&lab.host, "br0"), before, "after DEL {round}");
    }
}

/// The uplink's address is the highest, so the bridge would take the address of each new port.
#[test]
fn gateway_on_a_bridge_with_an_uplink_keeps_its_mac() {
    for_each_peer("bridge", |lab| {
        bridge_with_uplink(lab, "fe:ff:ff:ff:ff:ff");
        assert_keeps_mac(lab, &conf());
    });
}

#[test]
fn gateway_on_a_bridge_without_ports_keeps_its_mac() {
    for_each_peer("bridge", |lab| {
        lab.host.sh("ip link add br0 type bridge");
        assert_keeps_mac(lab, &conf());
    });
}

/// The address is not fixed on such a bridge: it is the lowest of its ports', and the addresses of
/// container ports are high. The reference's are random.
#[test]
fn switch_with_an_uplink_keeps_its_mac() {
    for_ours("bridge", |lab| {
        bridge_with_uplink(lab, "fc:ff:ff:ff:ff:ff");
        assert_keeps_mac(lab, &with(&conf(), json!({"ipam": null, "isGateway": null})));
        lab.host.sh("ip addr add 10.10.0.1/24 dev br0");
        // The bridge has the gateway's address already, so its MAC is not fixed here either.
        assert_keeps_mac(lab, &conf());
    });
}

/// A bridge that has lost its last port has no MAC. The reference's first ADD fails on it.
#[test]
fn gateway_on_a_bridge_without_a_mac_gets_one_that_stays() {
    for_ours("bridge", |lab| {
        lab.host.sh("ip link add br0 up type bridge && ip link add port master br0 type veth peer name other && ip link del port");
        assert_eq!(mac(&lab.host, "br0"), "00:00:00:00:00:00");
        warm_up(lab, &conf());
        assert_ne!(mac(&lab.host, "br0"), "00:00:00:00:00:00");
        assert_keeps_mac(lab, &conf());
    });
}

each_case! { |case| for_each_peer("bridge", case);
    hairpin_mode_sends_frames_back_where_they_came_from
    result_says_what_the_kernel_has
    macs_of_container_and_bridge_stay_when_others_come_and_go
    mtu_is_that_of_both_ends_and_the_largest_packet_passes
    isolated_ports_reach_the_gateway_but_not_each_other
    add_ends_after_duplicate_address_detection
    layer_two_networks_carry_frames_without_ipam
    an_existing_bridge_is_used_as_it_is
}

each_case! { |case| for_ours("bridge", case);
    a_warning_without_a_reader_is_no_error
    a_link_of_the_host_that_has_our_name_is_left_alone
    a_bridge_forwards_the_groups_of_each_of_its_networks
}
