//! bridge: the kernel's state after ADD and the packets that pass; masquerading, CHECK, DEL and
//! failures have modules of their own.

mod check;
pub mod del;
mod exempt;
pub mod failed_add;
pub mod masquerade;
mod next_hops;
mod of_others;
mod range_sets;
mod undo_race;
pub mod vlan;

pub use self::vlan::filters_vlans;

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, for_ours, interface, ips, with};
use crate::support::contract::{
    assert_del_leaves_nothing, assert_dns_of_network_or_ipam, assert_shown,
};
use crate::support::netns::{Container, Lab, Namespace};
use crate::support::networks::bridge::{conf, dual_stack, static_ipam, warm_up};
use crate::support::snapshot::Watch;
use crate::support::table::cells;
use crate::support::traffic::{
    assert_no_ping, assert_pings, assert_pings_with, assert_two_containers_talk, is_answered,
};

pub fn v6() -> Value {
    with(&conf(), json!({"ipam": {"subnet": "2001:db8:10::/64"}}))
}

/// The bridge port of an attachment, with its flags.
pub fn port(lab: &Lab, result: &Value) -> Value {
    lab.host.json(&format!("bridge -j -d link show dev {}", interface(result, 1)))[0].clone()
}

fn mac(namespace: &Namespace, link: &str) -> String {
    namespace.link(link).unwrap()["address"].as_str().unwrap().to_owned()
}

fn sysctl(namespace: &Namespace, key: &str) -> String {
    namespace.sh(&format!("cat /proc/sys/net/{key}")).trim().to_owned()
}

/// Whether the bridge sends frames back through the port they came from: two macvlan links in VEPA
/// mode on the container's link ping each other.
fn sends_back(lab: &Lab, container: &Container) -> bool {
    let ends = [lab.container(), lab.container()];
    for (at, end) in ends.iter().enumerate() {
        let netns = end.netns.rsplit('/').next().unwrap();
        container
            .sh(&format!("ip link add vepa{at} link eth0 netns {netns} type macvlan mode vepa"));
        end.sh(&format!(
            "ip link set vepa{at} up && ip addr add 10.31.0.{}/24 dev vepa{at}",
            at + 1
        ));
    }
    let answered = (0..3).any(|_| is_answered(&ends[0], "10.31.0.2", ""));
    for (at, end) in ends.iter().enumerate() {
        end.sh(&format!("ip link del vepa{at}")); // the next case uses the same addresses
    }
    answered
}

#[test]
fn hairpin_mode_sends_frames_back_where_they_came_from() {
    for_each_peer("bridge", |lab| {
        for hairpin in [true, false] {
            let container = lab.container();
            lab.attach(&container, &with(&conf(), json!({"hairpinMode": hairpin}))).add();
            assert_eq!(sends_back(lab, &container), hairpin);
        }
    });
}

#[test]
fn container_reaches_its_gateways_and_del_leaves_nothing() {
    let cases = [
        (conf(), vec!["10.10.0.3/24"], vec!["10.10.0.1"]),
        (v6(), vec!["2001:db8:10::3/64"], vec!["2001:db8:10::1"]),
        (
            dual_stack(),
            vec!["10.10.0.3/24", "2001:db8:10::3/64"],
            vec!["10.10.0.1", "2001:db8:10::1"],
        ),
    ];
    for_each_peer("bridge", |lab| {
        for (at, (conf, addresses, gateways)) in cases.iter().enumerate() {
            let conf = with(conf, json!({"bridge": format!("br{at}"), "name": format!("net{at}")}));
            warm_up(lab, &conf);
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            let attachment = lab.attach(&container, &conf);
            let result = attachment.add();
            assert_eq!(container.addresses("eth0"), *addresses);
            gateways.iter().for_each(|gateway| assert_pings(&container, gateway));
            assert_eq!(attachment.check(&result).ok(), Value::Null);
            assert_del_leaves_nothing(&attachment, &before);
            lab.host.sh(&format!("ip link del br{at}")); // the next case uses the same gateways
        }
    });
}

#[test]
fn result_says_what_the_kernel_has() {
    for_each_peer("bridge", |lab| {
        let container = lab.container();
        let result = lab.attach(&container, &conf()).add();
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
        assert!(
            port["ifname"].as_str().unwrap().starts_with("veth"),
            "tools match the name: {port}"
        );
        assert_eq!(lab.host.addresses("br0"), ["10.10.0.1/24"]);
    });
}

#[test]
fn default_gateway_is_the_default_route_of_each_family() {
    for_each_peer("bridge", |lab| {
        let container = lab.container();
        let result = lab
            .attach(
                &container,
                &with(&dual_stack(), json!({"isGateway": false, "isDefaultGateway": true})),
            )
            .add();
        assert_eq!(
            result["routes"],
            json!([{"dst": "0.0.0.0/0", "gw": "10.10.0.1"}, {"dst": "::/0", "gw": "2001:db8:10::1"}])
        );
        assert_eq!(container.json("ip -j route show default")[0]["gateway"], "10.10.0.1");
        assert_eq!(container.json("ip -j -6 route show default")[0]["gateway"], "2001:db8:10::1");
        assert_pings(&container, crate::support::netns::UPLINK[0]);
        assert_pings(&container, crate::support::netns::UPLINK[1]);
    });
}

#[test]
fn containers_of_one_network_reach_each_other_by_tcp() {
    for_each_peer("bridge", |lab| assert_two_containers_talk(lab, &dual_stack()));
}

#[test]
fn macs_of_container_and_bridge_stay_when_others_come_and_go() {
    for_each_peer("bridge", |lab| {
        let first = lab.container();
        lab.attach(&first, &conf()).add();
        let bridge = mac(&lab.host, "br0");
        // Without an address of its own the bridge would take the MAC of this port, which is the
        // lowest.
        let low = lab.container();
        let attachment = lab.attach(&low, &conf());
        let result = attachment.add();
        lab.host.sh(&format!("ip link set {} address 00:00:00:00:00:01", interface(&result, 1)));
        assert_eq!(mac(&lab.host, "br0"), bridge);
        attachment.del();
        assert_eq!(mac(&lab.host, "br0"), bridge);
    });
}

/// As in the reference; `details` names the address in the way.
#[test]
fn force_address_replaces_what_conflicts() {
    let cases = r#"
10.10.0.0/24 | 10.20.0.0/24 | true
2001:db8:10::/48 | 2001:db8:10:5::/64 | true
2001:db8:10::/64 | 2001:db8:20::/64 | false
"#;
    for_each_peer("bridge", |lab| {
        for (at, [first, second, conflict]) in cells(cases).into_iter().enumerate() {
            let on = |network: &str, subnet: &str| {
                with(
                    &conf(),
                    json!({"name": format!("{network}{at}"), "bridge": format!("br{at}"), "ipam": {"subnet": subnet}}),
                )
            };
            let bridge = format!("br{at}");
            lab.attach(&lab.container(), &on("first", first)).add();
            let before = lab.host.addresses(&bridge);
            let plain = lab.attach(&lab.container(), &on("second", second)).try_add();
            if conflict == "true" {
                let error = plain.err();
                assert!(error.text().contains(&bridge), "the error names the bridge: {error:?}");
                assert_eq!(lab.host.addresses(&bridge), before);
                lab.attach(
                    &lab.container(),
                    &with(&on("second", second), json!({"forceAddress": true})),
                )
                .add();
                assert_eq!(lab.host.addresses(&bridge).len(), 1, "replaced");
            } else {
                plain.ok();
                assert_eq!(lab.host.addresses(&bridge).len(), 2, "both kept");
            }
        }
    });
}

/// A warning is not an error if the runtime has closed its end of stderr.
#[test]
fn a_warning_without_a_reader_is_no_error() {
    for_ours("bridge", |lab| {
        lab.host.sh("ip link add br0 type bridge");
        let container = lab.container();
        let mut call =
            lab.attach(&container, &with(&conf(), json!({"vlan": 100}))).call("ADD", None);
        let reader_is_gone = r#"exec 3>&1; { sleep 0.2; exec "$0"; } 2>&1 >&3 | :"#;
        call.wrapper.extend(["sh", "-c", reader_is_gone].map(str::to_owned));
        let outcome = call.run();
        assert_ne!(outcome.json()["code"], 106, "{outcome:?}");
    });
}

#[test]
fn mtu_is_that_of_both_ends_and_the_largest_packet_passes() {
    for_each_peer("bridge", |lab| {
        let container = lab.container();
        let result = lab.attach(&container, &with(&conf(), json!({"mtu": 1400}))).add();
        assert_eq!(container.link("eth0").unwrap()["mtu"], 1400);
        assert_eq!(lab.host.link(&interface(&result, 1)).unwrap()["mtu"], 1400);
        assert_eq!(lab.host.link("br0").unwrap()["mtu"], 1400);
        assert_pings_with(&container, "10.10.0.1", "-M do -s 1372");
        let too_large = container.try_sh("ping -c1 -W1 -M do -s 1373 10.10.0.1");
        assert!(!too_large.status.success());
    });
}

/// Changes to the configuration, and the address that counts beside that of CNI_ARGS. libcni's JSON reader takes keys in
/// any case, and configurations rely on it.
const MACS: &str = r#"
{} | 02:00:00:00:00:01
{"args": {"cni": {"mac": "02:00:00:00:00:02"}}} | 02:00:00:00:00:02
{"args": {"cni": {"mac": "02:00:00:00:00:02"}}, "runtimeConfig": {"mac": "02:00:00:00:00:03"}} | 02:00:00:00:00:03
{"RuntimeConfig": {"mac": "02:00:00:00:00:04"}} | 02:00:00:00:00:04
"#;

#[test]
fn the_mac_comes_from_the_most_specific_source() {
    const ARGS: &str = "IgnoreUnknown=1;MAC=02:00:00:00:00:01";
    for_each_peer("bridge", |lab| {
        for [changes, expected] in cells(MACS) {
            let container = lab.container();
            let conf = with(&conf(), serde_json::from_str(changes).unwrap());
            let result = lab.attach(&container, &conf).args(ARGS).add();
            assert_eq!(mac(&container, "eth0"), expected);
            assert_eq!(result["interfaces"][2]["mac"], expected);
            assert_pings(&container, "10.10.0.1");
        }
    });
}

#[test]
fn isolated_ports_reach_the_gateway_but_not_each_other() {
    for_each_peer("bridge", |lab| {
        let isolated = with(&conf(), json!({"portIsolation": true}));
        let (a, b, open) = (lab.container(), lab.container(), lab.container());
        let result = lab.attach(&a, &isolated).add();
        assert_eq!(port(lab, &result)["isolated"], true);
        let other = ips(&lab.attach(&b, &isolated).add());
        let third = ips(&lab.attach(&open, &conf()).add());
        assert_pings(&a, "10.10.0.1");
        assert_pings(&a, &third[0]);
        assert_no_ping(&a, &other[0]);
    });
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

#[test]
fn add_ends_after_duplicate_address_detection() {
    for_each_peer("bridge", |lab| {
        let container = lab.container();
        lab.attach(&container, &with(&v6(), json!({"enabledad": true}))).add();
        assert!(!container.sh("ip -6 addr show dev eth0").contains("tentative"));
        assert_pings(&container, "2001:db8:10::1");
    });
}

#[test]
fn a_duplicate_ipv6_address_fails_add_when_dad_is_enabled() {
    for_each_peer("bridge", |lab| {
        let taken = static_ipam(
            &with(&conf(), json!({"isGateway": null, "enabledad": true})),
            json!([{"address": "2001:db8:10::7/64", "gateway": "2001:db8:10::1"}]),
            json!([]),
        );
        lab.attach(&lab.container(), &taken).add();
        let error = lab.attach(&lab.container(), &taken).try_add().err();
        assert!(error.text().contains("2001:db8:10::7"), "{error:?}");
    });
}

#[test]
fn a_disabled_container_interface_stays_down_without_addresses() {
    for_each_peer("bridge", |lab| {
        let container = lab.container();
        let disabled = with(&conf(), json!({"ipam": null, "disableContainerInterface": true}));
        lab.attach(&container, &disabled).add();
        assert!(
            !container.link("eth0").unwrap()["flags"].as_array().unwrap().contains(&json!("UP"))
        );
        assert_eq!(container.json("ip -j addr show dev eth0")[0]["addr_info"], json!([]));
    });
}

#[test]
fn dns_of_the_network_replaces_that_of_ipam_as_a_whole() {
    let base = with(&conf(), json!({"isGateway": null}));
    let fixed = static_ipam(&base, json!([{"address": "10.10.0.7/24"}]), json!([]));
    for_each_peer("bridge", |lab| assert_dns_of_network_or_ipam(lab, &fixed));
}

#[test]
fn layer_two_networks_carry_frames_without_ipam() {
    for_each_peer("bridge", |lab| {
        let layer_two = with(&conf(), json!({"ipam": null}));
        let (a, b) = (lab.container(), lab.container());
        let result = lab.attach(&a, &layer_two).add();
        assert_eq!(result.get("ips"), None);
        lab.attach(&b, &layer_two).add();
        a.sh("ip addr add 10.30.0.1/24 dev eth0");
        b.sh("ip addr add 10.30.0.2/24 dev eth0");
        assert_pings(&a, "10.30.0.2");
        assert_eq!(lab.host.addresses("br0"), [""; 0]);
    });
}

#[test]
fn an_existing_bridge_is_used_as_it_is() {
    for_each_peer("bridge", |lab| {
        lab.host.sh("ip link add br0 address 02:00:00:00:aa:aa type bridge forward_delay 200 && ip addr add 10.10.0.1/24 dev br0");
        let before = lab.host.link("br0").unwrap();
        let container = lab.container();
        lab.attach(&container, &with(&conf(), json!({"mtu": 1500}))).add();
        let after = lab.host.link("br0").unwrap();
        for key in ["ifindex", "address", "mtu"] {
            assert_eq!(after[key], before[key], "{key}");
        }
        assert_eq!(
            after["linkinfo"]["info_data"]["forward_delay"],
            before["linkinfo"]["info_data"]["forward_delay"]
        );
        assert_pings(&container, "10.10.0.1");
    });
}

/// Ours only: the reference's names are random.
#[test]
fn a_link_of_the_host_that_has_our_name_is_left_alone() {
    use cni_multi::cni::attachment::{ContainerId, IfName, Key, NetworkName};
    for_ours("bridge", |lab| {
        let key = Key {
            network: NetworkName::parse("net1").unwrap(),
            container_id: ContainerId::parse("container-1").unwrap(),
            ifname: IfName::parse("eth0").unwrap(),
        };
        let name = |attempt| cni_multi::steps::veth::host_name(&key, attempt);
        lab.host.sh(&format!("ip link add {} type veth peer name other", name(0)));
        let attachment = lab.attach(&lab.container(), &conf());
        assert_eq!(interface(&attachment.add(), 1), name(1));
        attachment.del();
        assert!(lab.host.link(&name(0)).is_some() && lab.host.link(&name(1)).is_none());
    });
}

/// The reserved multicast addresses to which the bridge forwards frames (`groupFwdMask`).
fn mask(lab: &Lab) -> Value {
    lab.host.json("ip -d -j link show br0")[0]["linkinfo"]["info_data"]["group_fwd_mask"].clone()
}

/// 16384 is for 01:80:c2:00:00:0e, of PTP and LLDP.
#[test]
fn a_bridge_forwards_the_groups_of_each_of_its_networks() {
    for_ours("bridge", |lab| {
        let of = |bits: u32| with(&conf(), json!({"groupFwdMask": bits}));
        let first = lab.attach(&lab.container(), &of(16384));
        let result = first.add();
        assert_eq!(mask(lab), "0x4000");
        lab.attach(&lab.container(), &of(8)).add();
        lab.attach(&lab.container(), &conf()).add();
        assert_eq!(mask(lab), "0x4008");
        first.check(&result).ok();
        lab.host.sh("ip link set br0 type bridge group_fwd_mask 8");
        let error = first.check(&result).err();
        let msg = r#"bridge "br0" lacks bits 0x4000 of group_fwd_mask"#;
        assert_eq!((error.code, error.msg.as_str()), (103, msg));
    });
}
