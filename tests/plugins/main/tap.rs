//! tap: an interface that exchanges its frames with a program.

mod cable;
mod selinux;

use serde_json::{Value, json};

use self::cable::{Cable, open_as};
use crate::parallel::all_at_once;
use crate::support::attachment::{
    EVERY_VERSION, for_each_peer, for_ours, interface, ips, skip, with,
};
use crate::support::call::Peer;
use crate::support::contract::{MainPlugin, contract};
use crate::support::failed_add::{Case, fail};
use crate::support::netns::{Lab, Namespace};
use crate::support::networks::bridge::{static_ipam, warm_up};
use crate::support::networks::tap::{conf, layer_two, makes_taps};
use crate::support::snapshot::Watch;
use crate::support::traffic::{TcpServer, assert_pings, assert_pings_with, connect};

fn dual_stack() -> Value {
    let ranges = json!([[{"subnet": "10.50.0.0/24"}], [{"subnet": "2001:db8:50::/64"}]]);
    let routes = json!([{"dst": "10.99.0.0/16"}, {"dst": "2001:db8:99::/48"}]);
    with(&conf(), json!({"ipam": {"subnet": null, "ranges": ranges, "routes": routes}}))
}

fn for_each_peer_with_taps(case: impl Fn(&Lab)) {
    for_each_peer("tap", |lab| {
        if makes_taps(lab) {
            case(lab);
        }
    });
}

fn for_ours_with_taps(case: impl Fn(&Lab)) {
    for_ours("tap", |lab| {
        if makes_taps(lab) {
            case(lab);
        }
    });
}

fn tap(namespace: &Namespace) -> Value {
    namespace.link("eth0").expect("eth0 is in the container")
}

fn data(link: &Value) -> &Value {
    assert_eq!(link["linkinfo"]["info_kind"], "tun");
    &link["linkinfo"]["info_data"]
}

fn is_up(link: &Value) -> bool {
    link["flags"].as_array().unwrap().contains(&json!("UP"))
}

#[test]
fn the_contract_of_main_plugins_is_kept() {
    contract(&MainPlugin { name: "tap", conf: conf(), prepare: makes_taps });
}

#[test]
fn the_interface_is_a_lasting_tap_and_del_leaves_nothing() {
    for_each_peer_with_taps(|lab| {
        for (at, conf) in [conf(), dual_stack(), layer_two()].into_iter().enumerate() {
            let conf = with(&conf, json!({"name": format!("net{at}")}));
            warm_up(lab, &conf);
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            let attachment = lab.attach(&container, &conf);
            let result = attachment.add();
            let link = tap(&container);
            let expected =
                json!({"type": "tap", "pi": false, "multi_queue": false, "persist": true});
            assert_eq!(with(data(&link), json!({"vnet_hdr": null})), expected);
            assert!(is_up(&link));
            attachment.check(&result).ok();
            assert!(!before.changes_now().is_empty(), "the snapshot sees an attachment");
            attachment.del();
            before.assert_unchanged("ADD");
            attachment.del();
            before.assert_unchanged("the first DEL");
        }
    });
}

#[test]
fn programs_behind_two_taps_let_their_containers_talk() {
    for_each_peer_with_taps(|lab| {
        for (changes, queues) in [(json!({}), 1), (json!({"multiQueue": true}), 1 + 1)] {
            let conf = with(&dual_stack(), changes);
            let (a, b) = (lab.container(), lab.container_of_process());
            let attachments = [lab.attach(&a, &conf), lab.attach(&b, &conf)];
            let first = ips(&attachments[0].add());
            let second = ips(&attachments[1].add());
            let _cable = Cable::join(lab, &a, &b, queues);
            let _server = TcpServer::start(&b, 80);
            assert_pings(&a, &second[0]);
            assert_pings(&b, &first[1]);
            assert_eq!(connect(&a, &format!("{}:80", second[0])), Some(first[0].clone()));
            assert_eq!(connect(&a, &format!("[{}]:80", second[1])), Some(first[1].clone()));
            attachments.iter().for_each(|attachment| attachment.del());
        }
    });
}

#[test]
fn a_tap_of_several_queues_says_so() {
    for_each_peer_with_taps(|lab| {
        let (a, b) = (lab.container(), lab.container());
        let conf = with(&layer_two(), json!({"multiQueue": true}));
        lab.attach(&a, &conf).add();
        assert_eq!(data(&tap(&a))["multi_queue"], true);
        lab.attach(&b, &conf).add();
        let _cable = Cable::join(lab, &a, &b, 3);
        assert_eq!(data(&tap(&a))["numqueues"], 3);
    });
}

#[test]
fn result_says_what_the_kernel_has() {
    for_each_peer_with_taps(|lab| {
        let container = lab.container();
        let result = lab.attach(&container, &conf()).add();
        let interfaces = json!([{"name": "eth0", "mac": tap(&container)["address"], "sandbox": container.netns}]);
        let expected = json!({
            "cniVersion": "1.0.0",
            "interfaces": interfaces,
            "ips": [{"address": "10.50.0.2/24", "gateway": "10.50.0.1", "interface": 0}],
            "routes": [{"dst": "10.99.0.0/16"}],
        });
        assert_eq!(result, expected);
        assert_eq!(container.addresses("eth0"), ["10.50.0.2/24"]);
        assert_eq!(container.json("ip -j route show 10.99.0.0/16")[0]["gateway"], "10.50.0.1");
        assert_eq!(container.sh("cat /proc/sys/net/ipv4/conf/eth0/arp_notify").trim(), "1");
    });
}

#[test]
fn every_version_gets_a_result_of_its_shape() {
    for_each_peer_with_taps(|lab| {
        for version in EVERY_VERSION {
            let container = lab.container();
            let attachment =
                lab.attach(&container, &with(&dual_stack(), json!({"cniVersion": version})));
            let result = attachment.add();
            let shown = version.unwrap_or("0.1.0");
            assert_eq!(result["cniVersion"], shown);
            if shown < "0.3.0" {
                assert_eq!(result["ip4"]["gateway"], "10.50.0.1");
                assert_eq!(result["ip6"]["routes"], json!([{"dst": "2001:db8:99::/48"}]));
            } else {
                let mac = &tap(&container)["address"];
                let expected = json!([{"name": "eth0", "mac": mac, "sandbox": container.netns}]);
                assert_eq!(result["interfaces"], expected);
                assert_eq!(result["ips"][1]["gateway"], "2001:db8:50::1");
                assert_eq!(
                    result["ips"][1].get("version"),
                    (shown < "1.0.0").then_some(&json!("6")),
                    "{shown}"
                );
                assert_eq!(result["ips"][1]["interface"], 0);
                assert_eq!(result.get("dns"), (shown < "1.0.0").then_some(&json!({})), "{shown}");
            }
            attachment.assert_operations_of(shown, &result);
            attachment.del();
        }
    });
}

#[test]
fn layer_two_taps_carry_frames_without_ipam() {
    for_each_peer_with_taps(|lab| {
        for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let conf = with(&layer_two(), json!({"cniVersion": version}));
            let (a, b) = (lab.container(), lab.container());
            let attachment = lab.attach(&a, &conf);
            let result = attachment.add();
            assert_eq!(result.get("ips").filter(|ips| **ips != json!([])), None, "{version}");
            assert!(is_up(&tap(&a)));
            lab.attach(&b, &conf).add();
            a.sh("ip addr add 10.30.0.1/24 dev eth0");
            b.sh("ip addr add 10.30.0.2/24 dev eth0");
            let _cable = Cable::join(lab, &a, &b, 1);
            assert_pings(&a, "10.30.0.2");
            if version >= "0.4.0" {
                assert_eq!(attachment.check(&result).ok(), Value::Null);
            }
            attachment.del();
        }
    });
}

/// The bridge is in the container, as launchers of virtual machines set it up.
#[test]
fn a_tap_is_a_port_of_a_bridge_of_the_container() {
    for_each_peer_with_taps(|lab| {
        for base in [layer_two(), conf()] {
            let (a, b) = (lab.container(), lab.container());
            a.sh("ip link add br0 up type bridge && ip addr add 10.30.0.1/24 dev br0");
            let attachment = lab.attach(&a, &with(&base, json!({"bridge": "br0"})));
            let result = attachment.add();
            assert_eq!(tap(&a)["master"], "br0");
            lab.attach(&b, &layer_two()).add();
            b.sh("ip addr add 10.30.0.2/24 dev eth0");
            {
                let _cable = Cable::join(lab, &a, &b, 1);
                assert_pings(&b, "10.30.0.1");
            }
            attachment.check(&result).ok();
            attachment.del();
            assert!(a.link("eth0").is_none());
            assert_eq!(a.addresses("br0"), ["10.30.0.1/24"], "the bridge stays");
        }
    });
}

#[test]
fn mtu_is_that_of_the_interface_and_the_largest_packet_passes() {
    for_each_peer_with_taps(|lab| {
        let conf = with(&conf(), json!({"mtu": 5000}));
        let (a, b) = (lab.container(), lab.container());
        lab.attach(&a, &conf).add();
        let other = ips(&lab.attach(&b, &conf).add());
        assert_eq!(tap(&a)["mtu"], 5000);
        let _cable = Cable::join(lab, &a, &b, 1);
        assert_pings_with(&a, &other[0], "-M do -s 4972");
        assert!(!a.try_sh(&format!("ping -c1 -W1 -M do -s 4973 {}", other[0])).status.success());
    });
}

#[test]
fn the_mac_comes_from_the_most_specific_source() {
    const ARGS: &str = "IgnoreUnknown=1;MAC=02:00:00:00:00:02";
    let own = json!({"mac": "02:00:00:00:00:01"});
    let runtime =
        json!({"mac": "02:00:00:00:00:01", "runtimeConfig": {"mac": "02:00:00:00:00:03"}});
    let cases = [
        (own.clone(), "", "02:00:00:00:00:01"),
        (own, ARGS, "02:00:00:00:00:02"),
        (json!({}), ARGS, "02:00:00:00:00:02"),
        (runtime, ARGS, "02:00:00:00:00:03"),
        (json!({"RuntimeConfig": {"mac": "02:00:00:00:00:04"}}), ARGS, "02:00:00:00:00:04"),
    ];
    for_each_peer_with_taps(|lab| {
        for base in [conf(), layer_two()] {
            for (changes, args, expected) in &cases {
                let container = lab.container();
                let attachment = lab.attach(&container, &with(&base, changes.clone()));
                let attachment = if args.is_empty() { attachment } else { attachment.args(args) };
                let result = attachment.add();
                assert_eq!(tap(&container)["address"], *expected);
                assert_eq!(result["interfaces"][0]["mac"], *expected);
                attachment.check(&result).ok();
            }
        }
    });
}

/// The reference ignores mtu and mac if both owner and group are set: see tests/differences.
#[test]
fn owner_and_group_go_with_everything_else() {
    let all = json!({"mtu": 1400, "mac": "02:00:00:00:00:01", "multiQueue": true, "owner": 0, "group": 0});
    for_ours_with_taps(|lab| {
        for base in [conf(), layer_two()] {
            let container = lab.container();
            let attachment = lab.attach(&container, &with(&base, all.clone()));
            let result = attachment.add();
            let link = tap(&container);
            assert_eq!(
                (&link["mtu"], &link["address"]),
                (&json!(1400), &json!("02:00:00:00:00:01"))
            );
            let has = data(&link);
            assert_eq!(
                (&has["pi"], &has["multi_queue"], &has["persist"]),
                (&json!(false), &json!(true), &json!(true))
            );
            assert!(has.get("user").is_some() && has.get("group").is_some(), "{has}");
            attachment.check(&result).ok();
            attachment.del();
        }
    });
}

/// The owner and group can open the tap without privileges, and no other user can.
#[test]
fn owner_and_group_can_open_the_tap() {
    const EPERM: &str = "eth0: Operation not permitted";
    let cases = [
        (json!({"owner": 1000}), vec![(1000, 7)], vec![(1001, 7), (1001, 1000)]),
        (json!({"group": 2000}), vec![(7, 2000)], vec![(7, 2001), (2000, 7)]),
        (json!({"owner": 1000, "group": 2000}), vec![(1000, 2000)], vec![(1000, 7), (7, 2000)]),
    ];
    for_each_peer_with_taps(|lab| {
        if !lab
            .host
            .try_sh("setpriv --reuid=1000 --regid=2000 --clear-groups true")
            .status
            .success()
        {
            return skip("users beside root");
        }
        for (changes, may, may_not) in &cases {
            let container = lab.container();
            lab.attach(&container, &with(&layer_two(), changes.clone())).add();
            may_not.iter().for_each(|(user, group)| {
                assert_eq!(
                    open_as(lab, &container, *user, *group),
                    Err(EPERM.to_owned()),
                    "{changes}: {user}:{group}"
                );
            });
            may.iter().for_each(|(user, group)| {
                assert_eq!(
                    open_as(lab, &container, *user, *group),
                    Ok(()),
                    "{changes}: {user}:{group}"
                );
            });
        }
    });
}

#[test]
fn no_helper_program_is_needed() {
    let all = json!({"mtu": 1400, "mac": "02:00:00:00:00:01", "multiQueue": true, "bridge": "br0"});
    for_ours_with_taps(|lab| {
        for changes in [json!({}), json!({"owner": 0}), all.clone()] {
            let container = lab.container();
            container.sh("ip link add br0 type bridge");
            let attachment = lab.attach(&container, &with(&dual_stack(), changes));
            for command in ["ADD", "DEL"] {
                let mut call = attachment.call(command, None);
                call.wrapper.extend(["env", "PATH=/nonexistent"].map(str::to_owned));
                call.run().ok();
                assert_eq!(container.link("eth0").is_some(), command == "ADD");
            }
        }
    });
}

#[test]
fn containers_come_and_go_at_the_same_time() {
    for_each_peer_with_taps(|lab| {
        warm_up(lab, &conf());
        let containers: Vec<_> = (0..10).map(|_| lab.container()).collect();
        let before = Watch::start(lab, &[&containers[0], &containers[9]]);
        let attachments: Vec<_> =
            containers.iter().map(|container| lab.attach(container, &conf())).collect();
        let results: Vec<Value> =
            all_at_once(&attachments, "ADD").iter().map(|outcome| outcome.ok()).collect();
        for (container, result) in containers.iter().zip(&results) {
            assert_eq!(container.addresses("eth0"), [format!("{}/24", ips(result)[0])]);
        }
        all_at_once(&attachments, "DEL")
            .iter()
            .for_each(|outcome| assert_eq!(outcome.ok(), Value::Null));
        before.assert_unchanged("ten ADDs");
    });
}

#[test]
fn two_interfaces_of_a_container_are_two_attachments() {
    for_each_peer_with_taps(|lab| {
        let container = lab.container();
        let attachments =
            ["eth0", "net1"].map(|ifname| lab.attach(&container, &conf()).ifname(ifname));
        let results: Vec<Value> =
            all_at_once(&attachments, "ADD").iter().map(|outcome| outcome.ok()).collect();
        assert_eq!([interface(&results[0], 0), interface(&results[1], 0)], ["eth0", "net1"]);
        attachments[0].del();
        assert!(container.link("eth0").is_none());
        attachments[1].check(&results[1]).ok();
        attachments[1].del();
    });
}

#[test]
fn dns_is_the_network_s_or_that_of_ipam() {
    // The reference reports only the network's DNS: see tests/differences.
    let told = json!({"nameservers": ["192.0.2.53"], "domain": "ipam.example"});
    let cases = [
        (json!({"ipam": {"dns": told}}), told.clone()),
        (
            json!({"ipam": {"dns": told}, "dns": {"search": ["net.example"]}}),
            json!({"search": ["net.example"]}),
        ),
        (json!({"ipam": {"dns": told}, "dns": {"nameservers": []}}), json!({})),
        (json!({"ipam": null, "dns": {"domain": "net.example"}}), json!({"domain": "net.example"})),
    ];
    for_ours_with_taps(|lab| {
        for (changes, expected) in &cases {
            let conf = with(&layer_two(), json!({"cniVersion": "0.4.0"}));
            let conf = static_ipam(&conf, json!([{"address": "10.50.0.7/24"}]), json!([]));
            let attachment = lab.attach(&lab.container(), &with(&conf, changes.clone()));
            assert_eq!(attachment.add()["dns"], *expected, "{changes}");
        }
    });
}

#[test]
fn check_finds_what_has_changed() {
    let breaks = [
        ("v4 address removed", "ip addr del 10.50.0.2/24 dev eth0", "10.50.0.2"),
        ("v6 address removed", "ip addr del 2001:db8:50::2/64 dev eth0", "2001:db8:50::2"),
        ("route removed", "ip route del 10.99.0.0/16", "10.99.0.0/16"),
        ("link down", "ip link set eth0 down", "eth0"),
        ("link renamed", "ip link set eth0 down; ip link set eth0 name eth9", "eth0"),
        ("link gone", "ip link del eth0", "eth0"),
    ];
    for_each_peer_with_taps(|lab| {
        for (at, (what, script, names)) in breaks.iter().enumerate() {
            let container = lab.container();
            let attachment =
                lab.attach(&container, &with(&dual_stack(), json!({"name": format!("net{at}")})));
            let result = attachment.add();
            attachment.check(&result).ok();
            container.sh(script);
            let error = attachment.check(&result).err();
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, 103, "{what}: {error:?}");
                assert!(error.text().contains(names), "{what}: {error:?}");
            }
            attachment.del();
        }
    });
}

/// The reference's CHECK looks only at addresses and routes: see tests/differences.
#[test]
fn check_looks_at_the_interface_itself() {
    let with_addresses = "ip link add eth0 address 02:00:00:00:00:01 type veth peer name other && \
        ip link set other up && ip link set eth0 up && ip addr add 10.50.0.2/24 dev eth0 && ip route add 10.99.0.0/16 via 10.50.0.1";
    let breaks = [
        (conf(), "mac changed", "ip link set eth0 address 02:00:00:00:00:77".to_owned()),
        (conf(), "another kind", format!("ip link del eth0 && {with_addresses}")),
        (
            conf(),
            "a tun",
            format!(
                "ip link del eth0 && {}",
                "ip tuntap add eth0 mode tun && ip link set eth0 up && \
            ip addr add 10.50.0.2/24 dev eth0 && ip route add 10.99.0.0/16 via 10.50.0.1"
            ),
        ),
        (layer_two(), "mac changed", "ip link set eth0 address 02:00:00:00:00:77".to_owned()),
        (layer_two(), "gone", "ip link del eth0".to_owned()),
        (layer_two(), "another kind", format!("ip link del eth0 && {with_addresses}")),
    ];
    for_ours_with_taps(|lab| {
        for (at, (base, what, script)) in breaks.iter().enumerate() {
            let container = lab.container();
            let changes = json!({"name": format!("net{at}"), "mac": "02:00:00:00:00:01"});
            let attachment = lab.attach(&container, &with(base, changes));
            let result = attachment.add();
            attachment.check(&result).ok();
            container.sh(script);
            let error = attachment.check(&result).err();
            assert_eq!(error.code, 103, "{what}: {error:?}");
            assert!(error.text().contains("eth0"), "{what}: {error:?}");
        }
    });
}

/// The reference deletes any link of that name: see tests/differences.
#[test]
fn del_spares_an_interface_of_another_kind() {
    for_ours_with_taps(|lab| {
        let container = lab.container();
        container.sh("ip link add eth0 type veth peer name other");
        let before = Watch::start(lab, &[&container]);
        lab.attach(&container, &conf()).del();
        before.assert_unchanged("DEL");
    });
}

#[test]
fn gc_frees_what_no_runtime_knows_any_more() {
    // The reference has no GC: see tests/differences.
    for_ours_with_taps(|lab| {
        let conf = with(&conf(), json!({"cniVersion": "1.1.0"}));
        let kept = lab.container();
        lab.attach(&kept, &conf).add();
        let before = Watch::start(lab, &[&kept]);
        let lost = lab.container();
        let forgotten = lab.attach(&lost, &conf);
        forgotten.add();
        lost.vanish();
        assert_eq!(forgotten.gc(&[(&kept.id, "eth0")]).ok(), Value::Null);
        before.assert_unchanged("the ADD that was forgotten");
    });
}

pub fn failing() -> Vec<Case> {
    let late = json!({"ipam": {"routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}});
    vec![
        Case::new(
            "IPAM plugin unknown",
            json!({"ipam": {"type": "no-such-ipam"}}),
            104,
            "no-such-ipam",
        ),
        Case::new("IPAM refuses", json!({"ipam": {"subnet": "10.50.0.0/31"}}), 7, "10.50.0.0/31"),
        Case::new("route unreachable", late, 100, "10.88.0.1"),
        Case::new("mtu out of range", json!({"mtu": 100_000}), 7, "mtu: 100000"),
        Case::new("mtu too small", json!({"mtu": 40}), 7, "mtu: 40"),
        Case::new("bad mac", json!({"mac": "02:00:00:00:00"}), 7, "mac: \"02:00:00:00:00\""),
        Case::new("mac of a group", json!({"mac": "03:00:00:00:00:01"}), 7, "03:00:00:00:00:01"),
        Case::new(
            "bad mac of the runtime",
            json!({"runtimeConfig": {"mac": "x"}}),
            7,
            "runtimeConfig.mac: \"x\"",
        ),
        Case::new("no such bridge", json!({"bridge": "br0"}), 7, "bridge: \"br0\""),
        Case::new("owner is a name", json!({"owner": "nobody"}), 6, "owner")
            .reference_leaves_nothing(),
        Case::new("group is negative", json!({"group": -1}), 7, "group").reference_leaves_nothing(),
        Case::new("owner beyond 32 bits", json!({"owner": 4_294_967_296u64}), 7, "owner")
            .reference_leaves_nothing(),
        Case::new("multiQueue is a number", json!({"multiQueue": 4}), 6, "multiQueue")
            .reference_leaves_nothing(),
    ]
}

#[test]
fn add_fails_and_nothing_has_changed() {
    for base in [conf(), layer_two()] {
        for case in failing() {
            if base.get("ipam").is_none() && case.changes.get("ipam").is_some() {
                continue;
            }
            for_each_peer_with_taps(|lab| {
                let (changes, error) = fail(lab, &base, &case);
                let ours = lab.peer == Peer::Ours;
                if ours || !case.reference_leaves_something {
                    assert_eq!(changes, "", "left after \"{}\"", case.what);
                }
                if ours {
                    assert_eq!(error.code, case.code, "{}: {error:?}", case.what);
                    assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
                }
            });
        }
    }
}

/// Failures that the reference does not detect: see tests/differences.
#[test]
fn add_that_the_kernel_cannot_serve_fails_and_leaves_nothing() {
    let bridge = "ip link add br0 type veth peer name other";
    let cases = [
        (
            Case::new("interface exists", json!({}), 102, "eth0")
                .container("ip link add eth0 type veth peer name other"),
            &[102][..],
        ),
        (
            Case::new("a second name is taken", json!({}), 102, "eth0")
                .container("ip link add other type veth peer name more && ip link property add dev other altname eth0"),
            &[102],
        ),
        (Case::new("a tap exists", json!({}), 102, "eth0").container("ip tuntap add eth0 mode tap"), &[102]),
        (Case::new("the bridge is none", json!({"bridge": "br0"}), 102, "br0").container(bridge), &[7, 102]),
        (Case::new("a user that nobody can be", json!({"owner": 4_294_967_295u32}), 7, "owner: 4294967295"), &[7]),
        (Case::new("a group that nobody can be", json!({"group": 4_294_967_295u32}), 7, "group: 4294967295"), &[7]),
    ];
    for base in [conf(), layer_two()] {
        for (case, codes) in &cases {
            for_ours_with_taps(|lab| {
                let (changes, error) = fail(lab, &base, case);
                assert_eq!(changes, "", "left after \"{}\"", case.what);
                assert!(codes.contains(&error.code), "{}: {error:?}", case.what);
                assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
            });
        }
    }
}

#[test]
fn a_context_of_selinux_needs_a_kernel_with_it() {
    for_ours_with_taps(|lab| {
        if lab.host.try_sh("grep -qw selinuxfs /proc/filesystems").status.success() {
            return; // a kernel with SELinux accepts the context
        }
        let context = json!({"selinuxContext": "system_u:system_r:container_t:s0"});
        let case = Case::new(
            "no SELinux",
            context,
            7,
            "selinuxContext: \"system_u:system_r:container_t:s0\"",
        );
        let (changes, error) = fail(lab, &conf(), &case);
        assert_eq!((changes.as_str(), error.code), ("", 7), "{error:?}");
        assert!(error.text().contains(case.names), "{error:?}");
    });
}

#[test]
fn a_host_without_the_tun_driver_gets_an_error_that_says_so() {
    // The reference's STATUS asks only the IPAM plugin.
    for_ours("tap", |lab| {
        lab.host.sh("mount -t tmpfs empty /dev/net");
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        for base in [conf(), layer_two()] {
            let attachment = lab.attach(&container, &with(&base, json!({"cniVersion": "1.1.0"})));
            let status = attachment.status().err();
            assert_eq!(status.code, 50, "{status:?}");
            assert!(status.msg.contains("/dev/net/tun"), "{status:?}");
            let error = attachment.try_add().err();
            assert!(error.text().contains("/dev/net/tun"), "{error:?}");
            attachment.del();
        }
        before.assert_unchanged("the refused ADDs");
    });
}

#[test]
fn status_is_that_of_ipam() {
    for_each_peer_with_taps(|lab| {
        let conf = |ipam| with(&conf(), json!({"cniVersion": "1.1.0", "ipam": {"type": ipam}}));
        lab.attach(&lab.container(), &conf("host-local")).status().ok();
        lab.attach(&lab.container(), &conf("no-such-ipam")).status().err();
    });
}

#[test]
fn without_addresses_old_versions_fail_and_nothing_is_made() {
    for_ours_with_taps(|lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        for version in [None, Some("0.1.0"), Some("0.2.0")] {
            let error = lab
                .attach(&container, &with(&layer_two(), json!({"cniVersion": version})))
                .try_add()
                .err();
            assert_eq!(error.code, 7, "{error:?}");
            assert_eq!(error.msg, "cannot convert: no valid IP addresses");
        }
        before.assert_unchanged("the refused ADDs");
    });
}

#[test]
fn unknown_cni_args_are_refused_unless_they_may_be() {
    for_each_peer_with_taps(|lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &layer_two());
        let error = attachment.clone().args("K8S_POD_NAME=x").try_add().err();
        assert!(error.text().contains("K8S_POD_NAME"), "{error:?}");
        assert!(container.link("eth0").is_none());
        attachment.args("K8S_POD_NAME=x;IgnoreUnknown=1").add();
    });
    for_ours_with_taps(|lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &layer_two());
        attachment.add();
        attachment.args("K8S_POD_NAME=x;MAC=y;;").del();
        assert!(container.link("eth0").is_none());
    });
}
