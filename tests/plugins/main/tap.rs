//! tap: an interface that exchanges its frames with a program.

mod cable;
mod selinux;

use serde_json::{Value, json};

use self::cable::{Cable, open_as};
use crate::support::attachment::{for_ours, ips, skip, with};
use crate::support::broken::{Break, assert_check_finds_each, breaks};
use crate::support::contract::{
    MainPlugin, assert_del_leaves_nothing, assert_dns_of_network_or_ipam,
    assert_mac_is_that_of_the_most_specific_source, assert_result_of_one_link, assert_shown,
};
use crate::support::failed_add::rows;
use crate::support::failed_add::{Case, assert_fails};
use crate::support::netns::Namespace;
use crate::support::networks::bridge::{static_ipam, warm_up};
use crate::support::networks::tap::{conf, layer_two, makes_taps};
use crate::support::snapshot::Watch;
use crate::support::traffic::{TcpServer, assert_pings, assert_pings_with, connect};

fn dual_stack() -> Value {
    let ranges = json!([[{"subnet": "10.50.0.0/24"}], [{"subnet": "2001:db8:50::/64"}]]);
    let routes = json!([{"dst": "10.99.0.0/16"}, {"dst": "2001:db8:99::/48"}]);
    with(&conf(), json!({"ipam": {"subnet": null, "ranges": ranges, "routes": routes}}))
}

fn plugin() -> MainPlugin {
    MainPlugin { name: "tap", prepare: makes_taps }
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
fn the_interface_is_a_lasting_tap_and_del_leaves_nothing() {
    plugin().for_each_peer(|lab| {
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
            assert_del_leaves_nothing(&attachment, &before);
        }
    });
}

#[test]
fn programs_behind_two_taps_let_their_containers_talk() {
    plugin().for_each_peer(|lab| {
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
    plugin().for_each_peer(|lab| {
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
    let told = ["10.50.0.2/24", "10.50.0.1", "10.99.0.0/16"];
    plugin().for_each_peer(|lab| {
        assert_result_of_one_link(lab, &conf(), told);
        let notifies = r#"{} | in: cat /proc/sys/net/ipv4/conf/eth0/arp_notify |  | 1"#;
        assert_shown(lab, &conf(), notifies);
    });
}

#[test]
fn layer_two_taps_carry_frames_without_ipam() {
    plugin().for_each_peer(|lab| {
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
    plugin().for_each_peer(|lab| {
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
    plugin().for_each_peer(|lab| {
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
    plugin().for_each_peer(|lab| {
        for base in [conf(), layer_two()] {
            assert_mac_is_that_of_the_most_specific_source(lab, &base, None);
        }
    });
}

/// The reference ignores mtu and mac if both owner and group are set: see tests/differences.
#[test]
fn owner_and_group_go_with_everything_else() {
    let all = json!({"mtu": 1400, "mac": "02:00:00:00:00:01", "multiQueue": true, "owner": 0, "group": 0});
    plugin().for_ours(|lab| {
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
    plugin().for_each_peer(|lab| {
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
fn dns_is_the_network_s_or_that_of_ipam() {
    // The reference reports only the network's DNS: see tests/differences.
    let fixed = static_ipam(&conf(), json!([{"address": "10.50.0.7/24"}]), json!([]));
    let alone =
        with(&layer_two(), json!({"cniVersion": "0.4.0", "dns": {"domain": "net.example"}}));
    plugin().for_ours(|lab| {
        assert_dns_of_network_or_ipam(lab, &fixed);
        assert_eq!(lab.attach(&lab.container(), &alone).add()["dns"], alone["dns"]);
    });
}

#[test]
fn check_finds_what_has_changed() {
    let route = Break::new("route removed", "ip route del 10.99.0.0/16", "10.99.0.0/16");
    let own = vec![route, Break::link_renamed()];
    let cases = breaks(["10.50.0.2/24", "2001:db8:50::2/64"], own);
    plugin().for_each_peer(|lab| assert_check_finds_each(lab, &dual_stack(), &cases));
}

/// The reference's CHECK looks only at addresses and routes: see tests/differences.
#[test]
fn check_looks_at_the_interface_itself() {
    let another_kind = "ip link del eth0 && ip link add eth0 address 02:00:00:00:00:01 type veth peer name other && \
        ip link set other up && ip link set eth0 up && ip addr add 10.50.0.2/24 dev eth0 && ip route add 10.99.0.0/16 via 10.50.0.1";
    let tun = "ip link del eth0 && ip tuntap add eth0 mode tun && ip link set eth0 up && \
        ip addr add 10.50.0.2/24 dev eth0 && ip route add 10.99.0.0/16 via 10.50.0.1";
    let with_addresses = [
        Break::mac_changed(),
        Break::new("another kind", another_kind, "eth0"),
        Break::new("a tun", tun, "eth0"),
    ];
    let without = [
        Break::mac_changed(),
        Break::link_gone(),
        Break::new("another kind", another_kind, "eth0"),
    ];
    let of_mac = |base: &Value| with(base, json!({"mac": "02:00:00:00:00:01"}));
    plugin().for_ours(|lab| assert_check_finds_each(lab, &of_mac(&conf()), &with_addresses));
    plugin().for_ours(|lab| assert_check_finds_each(lab, &of_mac(&layer_two()), &without));
}

pub fn failing() -> Vec<Case> {
    rows(
        r#"
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam
IPAM refuses | {"ipam": {"subnet": "10.50.0.0/31"}} | 7: 10.50.0.0/31
route unreachable | {"ipam": {"routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}} | 100: 10.88.0.1
mtu out of range | {"mtu": 100000} | 7: mtu: 100000
mtu too small | {"mtu": 40} | 7: mtu: 40
bad mac | {"mac": "02:00:00:00:00"} | 7: mac: "02:00:00:00:00"
mac of a group | {"mac": "03:00:00:00:00:01"} | 7: 03:00:00:00:00:01
bad mac of the runtime | {"runtimeConfig": {"mac": "x"}} | 7: runtimeConfig.mac: "x"
no such bridge | {"bridge": "br0"} | 7: bridge: "br0"
owner is a name | {"owner": "nobody"} | 6: owner | both
group is negative | {"group": -1} | 7: group | both
owner beyond 32 bits | {"owner": 4294967296} | 7: owner | both
multiQueue is a number | {"multiQueue": 4} | 6: multiQueue | both
"#,
    )
}

#[test]
fn add_fails_and_nothing_has_changed() {
    for base in [conf(), layer_two()] {
        for case in failing() {
            if base.get("ipam").is_none() && case.changes.get("ipam").is_some() {
                continue;
            }
            plugin().for_each_peer(|lab| assert_fails(lab, &base, &case));
        }
    }
}

/// Failures that the reference does not detect: see tests/differences.
#[test]
fn add_that_the_kernel_cannot_serve_fails_and_leaves_nothing() {
    let cases = rows(
        r#"
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other
a second name is taken | {} | 102: eth0 | in: ip link add other type veth peer name more && ip link property add dev other altname eth0
a tap exists | {} | 102: eth0 | in: ip tuntap add eth0 mode tap
the bridge is none | {"bridge": "br0"} | 7: br0 | in: ip link add br0 type veth peer name other
a user that nobody can be | {"owner": 4294967295} | 7: owner: 4294967295
a group that nobody can be | {"group": 4294967295} | 7: group: 4294967295
"#,
    );
    for base in [conf(), layer_two()] {
        cases.iter().for_each(|case| plugin().for_ours(|lab| assert_fails(lab, &base, case)));
    }
}

#[test]
fn a_context_of_selinux_needs_a_kernel_with_it() {
    plugin().for_ours(|lab| {
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
        assert_fails(lab, &conf(), &case);
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
