//! The attacks with a CVE against plugins of this family and against Docker. docs/security-tests.md
//! names those that portmap's own tests cover.

use serde_json::{Value, json};

use super::bounded;
use crate::plugins::main::bridge::filters_vlans;
use crate::plugins::meta::firewall::firewalld::Firewalld;
use crate::support::attachment::{for_each_peer, for_ours, interface, with};
use crate::support::call::{Call, Peer};
use crate::support::chain::Chain;
use crate::support::dhcp::wait_until;
use crate::support::netns::{Container, Lab, Namespace, UPLINK};
use crate::support::networks::firewall::{self, firewall};
use crate::support::networks::{bandwidth, bridge, portmap, stacked, tuning};
use crate::support::patience;
use crate::support::table::cells;
use crate::support::traffic::{TcpServer, assert_pings, connect, is_answered};

// --- CVE-2020-10749 ---

/// A router advertisement to all nodes: a default route for half an hour, and the prefix
/// 2001:db8:bad::/64 for addresses. The kernel fills in the checksum.
const ADVERTISE: &str = r#"perl -MSocket=:all -e '
    my $index = shift;
    socket(my $s, AF_INET6, SOCK_RAW, 58) or die $!;
    setsockopt($s, 41, 18, pack("i", 255)) or die $!;
    setsockopt($s, 41, 17, pack("i", $index)) or die $!;
    my $prefix = pack("C4 N3", 3, 4, 64, 0xc0, 3600, 3600, 0) . inet_pton(AF_INET6, "2001:db8:bad::");
    my $advert = pack("C2 n C2 n N2", 134, 0, 0, 64, 0, 1800, 0, 0) . $prefix;
    send($s, $advert, 0, pack_sockaddr_in6(0, inet_pton(AF_INET6, "ff02::1"), $index)) or die $!;
' INDEX"#;

/// Sends three advertisements as soon as the container has a link-local address.
fn advertise(from: &Container) {
    let index = from.link("eth0").unwrap()["ifindex"].as_u64().unwrap();
    let one = ADVERTISE.replace("INDEX", &index.to_string());
    let ready = "until ip -6 addr show dev eth0 scope link | grep inet6 | grep -vq tentative; do sleep 0.05; done";
    from.sh(&format!("timeout 20 sh -c '{ready}'"));
    (0..3).for_each(|_| drop(from.sh(&one)));
}

/// Whether a namespace has accepted the advertisement.
fn believes(at: &Namespace) -> bool {
    // On a veth pair the kernel has processed a packet when `send` returns. An address may still be
    // tentative.
    let state = at.sh("ip -6 route; ip -6 addr");
    state.contains("2001:db8:bad:") || state.contains("proto ra")
}

#[track_caller]
fn assert_unbelieved(lab: &Lab, what: &str) {
    assert!(!believes(&lab.host), "{what}: {}", lab.host.sh("ip -6 route; ip -6 addr"));
}

/// Bridges whose host end has no address of the network's.
fn without_addresses() -> Value {
    with(&bridge::conf(), json!({"ipam": null, "isGateway": null}))
}

/// In networks where a container's packets reach a link of the host. None of them has IPv6.
#[test]
fn cve_2020_10749_a_container_is_no_router_to_the_host() {
    let changed = |keys| with(&bridge::conf(), keys);
    let (hidden, ptp) = (changed(json!({"isGateway": false})), changed(json!({"type": "ptp"})));
    for conf in [bridge::conf(), hidden, without_addresses(), ptp] {
        for_each_peer(conf["type"].as_str().unwrap(), |lab| {
            let container = lab.container();
            let result = lab.attach(&container, &conf).add();
            let forwarding = lab.host.sh("cat /proc/sys/net/ipv6/conf/all/forwarding");
            assert_eq!(forwarding.trim(), "0", "a router would believe nobody");
            advertise(&container);
            assert_unbelieved(lab, &conf.to_string());
            // The attack without our protection: a link that listens accepts the advertisement.
            let link = interface(&result, 0);
            lab.host.sh(&format!(
                "sysctl -qw net.ipv6.conf.{link}.accept_ra=1 net.ipv6.conf.{link}.disable_ipv6=0"
            ));
            let own = "grep inet6 | grep -vq tentative";
            lab.host.sh(&format!(
                "timeout 20 sh -c 'until ip -6 addr show dev {link} | {own}; do sleep 0.05; done'"
            ));
            advertise(&container);
            assert!(believes(&lab.host), "{conf}: the advertisement is none");
        });
    }
}

/// The host's link exists before the attachment and listens: always (2), or unless the host is a
/// router (1).
#[test]
fn cve_2020_10749_a_bridge_of_others_stops_listening() {
    for conf in [bridge::conf(), without_addresses()] {
        for setting in [1, 2] {
            for_each_peer("bridge", |lab| {
                lab.host.sh(&format!(
                    "ip link add br0 up type bridge && echo {setting} >/proc/sys/net/ipv6/conf/br0/accept_ra"
                ));
                let container = lab.container();
                lab.attach(&container, &conf).add();
                advertise(&container);
                assert_unbelieved(lab, &format!("{setting}"));
                // Every ADD sets it again: it may have changed since the last one.
                lab.host.sh(&format!("echo {setting} >/proc/sys/net/ipv6/conf/br0/accept_ra"));
                lab.attach(&lab.container(), &conf).add();
                advertise(&container);
                assert_unbelieved(lab, &format!("{setting}, second ADD"));
            });
        }
    }
}

/// The reference leaves the settings of a VLAN gateway's interface at the kernel's defaults.
#[test]
fn cve_2020_10749_a_gateway_in_a_vlan_stops_listening() {
    for_ours("bridge", |lab| {
        if !filters_vlans(lab) {
            return;
        }
        let tagged = with(&bridge::conf(), json!({"vlan": 100}));
        for prepare in ["true", "echo 2 >/proc/sys/net/ipv6/conf/br0.100/accept_ra", OTHERS_GATEWAY]
        {
            lab.host.sh(prepare);
            let container = lab.container();
            lab.attach(&container, &tagged).add();
            advertise(&container);
            std::thread::sleep(patience(1) / 5); // it crosses two pairs and a bridge
            assert_unbelieved(lab, prepare);
            lab.host.sh("echo 2 >/proc/sys/net/ipv6/conf/br0.100/accept_ra");
            advertise(&container);
            wait_until(&format!("{prepare}: the advertisement arrives"), 5, || believes(&lab.host));
            lab.host.sh("ip -6 route flush proto ra; ip -6 addr flush to 2001:db8:bad::/64; ip -6 route flush root 2001:db8:bad::/64");
        }
    });
}

/// A read-only /proc/sys, as in a container that runs the plugin. The reference prints no warning.
#[test]
fn cve_2020_10749_refused_setting_is_a_warning() {
    for_each_peer("bridge", |lab| {
        let container = lab.container();
        lab.host.sh(
            "ip link add br0 up type bridge && echo 2 >/proc/sys/net/ipv6/conf/br0/accept_ra &&
             mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys",
        );
        let outcome = lab.attach(&container, &without_addresses()).try_add();
        outcome.ok();
        let warns =
            outcome.stderr.contains("\"br0\" may accept router advertisements from containers");
        assert_eq!(warns, lab.peer == Peer::Ours, "{outcome:?}");
    });
}

/// A foreign `<bridge>.<vlan>` that is a VLAN interface on the bridge.
const OTHERS_GATEWAY: &str = "ip link del br0.100 && bridge vlan add dev br0 vid 100 self && \
    ip link add br0.100 up link br0 type vlan id 100 && echo 2 >/proc/sys/net/ipv6/conf/br0.100/accept_ra";

/// A port passes its packets to the bridge, and an ifb returns them to the link that they came
/// from, so their own settings have no effect.
#[test]
fn cve_2020_10749_ports_and_ifbs_do_not_listen() {
    for_ours("bandwidth", |lab| {
        let chain = lab.chain(&bridge::conf(), &bandwidth::both());
        chain.add();
        lab.host.sh(
            "for link in $(ip -o link show type ifb | cut -d: -f2) $(ip -o link show master br0 | cut -d: -f2 | cut -d@ -f1); do
                 echo 0 >/proc/sys/net/ipv6/conf/$link/disable_ipv6; echo 2 >/proc/sys/net/ipv6/conf/$link/accept_ra; done",
        );
        advertise(&chain.container);
        assert_unbelieved(lab, "ports and ifbs");
        lab.host.sh("echo 2 >/proc/sys/net/ipv6/conf/br0/accept_ra");
        advertise(&chain.container);
        assert!(believes(&lab.host), "the advertisement does not arrive");
    });
}

/// The master's settings belong to the administrator. A container's packets bypass the host's stack
/// on the way to the network.
#[test]
fn cve_2020_10749_a_master_passes_by_the_host() {
    for kind in [stacked::MACVLAN, stacked::IPVLAN, stacked::VLAN] {
        kind.for_ours(|lab| {
            for (at, link) in [(&lab.host, "uplink"), (&lab.outside, kind.peer_link)] {
                at.sh(&format!("echo 2 >/proc/sys/net/ipv6/conf/{link}/accept_ra"));
            }
            let container = lab.container();
            lab.attach(&container, &kind.conf()).add();
            advertise(&container);
            assert_unbelieved(lab, kind.plugin);
            assert!(believes(&lab.outside), "{}: the advertisement does not arrive", kind.plugin);
        });
    }
}

/// Containers on one bridge are neighbours, and a neighbour may be the network's router, so the
/// plugins allow this, as the reference does. Port isolation, `acceptRA` or tuning prevents it.
#[test]
fn cve_2020_10749_neighbours_can_be_kept_from_listening() {
    const CASES: &str = r#"
nothing | {} | {}
isolated ports | {"portIsolation": true} | {}
acceptRA | {"acceptRA": false} | {}
acceptRA without addresses | {"acceptRA": false, "ipam": null, "isGateway": null} | {}
tuning | {} | {"sysctl": {"net.ipv6.conf.IFNAME.accept_ra": "0"}}
"#;
    for [what, changes, tuned] in cells(CASES) {
        for_ours("bridge", |lab| {
            let [changes, tuned] = [changes, tuned].map(|keys| serde_json::from_str(keys).unwrap());
            let conf = with(&bridge::conf(), changes);
            let evil = lab.container();
            lab.attach(&evil, &conf).add();
            let neighbour = lab.chain(&conf, &tuning::tuning(tuned));
            neighbour.add();
            advertise(&evil);
            assert_eq!(believes(&neighbour.container), what == "nothing", "with {what}");
        });
    }
}

// --- CVE-2021-20206 ---

/// A program outside the plugin directory, and a subdirectory from which `..` leads to it.
fn evil_program(lab: &Lab) {
    lab.host.sh(
        "mkdir -p /run/plugins/sub /run/bin && printf '#!/bin/sh\\necho >/run/called\\n' >/run/bin/evil && chmod +x /run/bin/evil \
         && cp /run/bin/evil /run/plugins/sub/evil",
    );
}

/// Types, separated by spaces.
const TRAVERSALS: &str = "../bin/evil ../../run/bin/evil /run/bin/evil ./../bin/evil sub/evil sub/../../bin/evil \
    ../bin/evil\0 .. . ../../../../../../run/bin/evil";

fn was_called(lab: &Lab) -> bool {
    lab.host.try_sh("rm /run/called").status.success()
}

#[test]
fn cve_2021_20206_no_type_leads_out_of_the_plugins_directories() {
    for plugin in ["bridge", "ptp", "macvlan", "vlan", "ipvlan", "host-device", "tap", "dummy"] {
        for_each_peer(plugin, |lab| {
            evil_program(lab);
            assert!(
                lab.host.try_sh("/run/bin/evil").status.success() && was_called(lab),
                "the program works"
            );
            let container = lab.container();
            for kind in TRAVERSALS.split(' ') {
                let conf = json!({
                    "cniVersion": "1.1.0", "name": "net1", "type": plugin, "master": "uplink", "vlanId": 7, "device": "uplink",
                    "ipam": {"type": kind}, "cni.dev/valid-attachments": [],
                });
                let attachment = lab.attach(&container, &conf);
                for command in ["STATUS", "ADD", "CHECK", "DEL", "GC"] {
                    let call = attachment.call(command, Some(&json!({"cniVersion": "1.1.0"})));
                    let outcome = call.env("CNI_PATH", "/run/plugins").run();
                    assert!(!was_called(lab), "{plugin} {command} {kind}: {outcome:?}");
                }
            }
        });
    }
}

/// The runtime's side: network files with such a type, in every command of `net`, `cnitool` and
/// `validate` that reads them.
#[test]
fn cve_2021_20206_no_network_escapes_the_plugin_directories() {
    for_ours("bridge", |lab| {
        evil_program(lab);
        for kind in TRAVERSALS.split(' ') {
            for plugins in [
                json!([{"type": kind}]),
                json!([{"type": "static", "ipam": {"type": "static"}}, {"type": kind}]),
            ] {
                lab.configure(&json!({"cniVersion": "1.1.0", "name": "net1", "plugins": plugins}));
                for line in [
                    "net add net1 /run/x",
                    "net check net1 /run/x",
                    "net del net1 /run/x",
                    "net gc net1",
                    "net status net1",
                    "cnitool add net1 /run/x",
                    "cnitool del net1 /run/x",
                    "validate /run/net.d/net1.conflist",
                ] {
                    let call = Call::cni_multi(&lab.host.enter, line.split(' '))
                        .env("NETCONFPATH", "/run/net.d")
                        .env("CNI_PATH", "/run/plugins");
                    let outcome = bounded(call).run();
                    assert!(!was_called(lab), "{line} {kind}: {outcome:?}");
                }
            }
        }
    });
}

// --- CVE-2025-54410, CVE-2025-54388 ---

/// The effect of a firewalld reload without firewalld: all foreign tables are deleted.
const FLUSH: &str = "nft list tables | grep -v cni | while read table; do nft delete $table; done";

fn isolated_pair<'a>(lab: &'a Lab, backend: Option<&str>) -> [Chain<'a>; 2] {
    let isolating = with(&firewall(backend), json!({"ingressPolicy": "isolated"}));
    let ranges = json!([[{"subnet": "10.10.2.0/24"}], [{"subnet": "2001:db8:10:2::/64"}]]);
    let keys = json!({"name": "net2", "bridge": "br2", "ipam": {"ranges": ranges}});
    let other = with(&firewall::network(), keys);
    let pair = [lab.chain(&firewall::network(), &isolating), lab.chain(&other, &isolating)];
    pair.iter().for_each(|chain| drop(chain.add()));
    pair
}

#[track_caller]
fn assert_apart(pair: &[Chain<'_>; 2], when: &str) {
    for (from, to) in [(0, 1), (1, 0)] {
        for ip in pair[to].ips() {
            assert!(!is_answered(&pair[from].container, &ip, ""), "{when}: {ip} answers");
        }
        assert_pings(&pair[from].container, UPLINK[0]); // the network itself works
    }
}

#[test]
fn cve_2025_54410_bridges_stay_apart_when_firewalld_is_reloaded() {
    for_ours("firewall", |lab| {
        let Some(_firewalld) = Firewalld::start(lab) else { return };
        let pair = isolated_pair(lab, None);
        assert_apart(&pair, "before");
        lab.host.sh("firewall-cmd --reload");
        assert_apart(&pair, "after a reload");
        lab.host.sh("firewall-cmd --complete-reload");
        assert_apart(&pair, "after a complete reload");
        pair.iter().for_each(|chain| chain.del_all());
    });
}

#[test]
fn cve_2025_54410_bridges_stay_apart_when_foreign_tables_go() {
    for_ours("firewall", |lab| {
        lab.host.sh(firewall::DROPPING);
        let pair = isolated_pair(lab, None);
        lab.host.sh(&format!(
            "{FLUSH}; iptables-nft -P FORWARD ACCEPT; ip6tables-nft -P FORWARD ACCEPT"
        ));
        assert_apart(&pair, "after the flush");
        pair.iter().for_each(|chain| chain.del_all());
    });
}

/// With iptables the rules are in the host's own chains and disappear with them, as the reference's
/// do. CHECK reports it, and another ADD repairs it.
#[test]
fn cve_2025_54410_isolation_lost_with_iptables_is_reported() {
    for_ours("firewall", |lab| {
        let pair = isolated_pair(lab, Some("iptables"));
        assert_apart(&pair, "before");
        pair[0].check(&pair[0].result).ok();
        lab.host.sh("iptables -F; iptables -X; ip6tables -F; ip6tables -X");
        let error = pair[0].check(&pair[0].result).err();
        assert_eq!(error.code, 103, "{error:?}");
        pair.iter().for_each(|chain| drop(chain.add()));
        assert_apart(&pair, "after another ADD");
        pair.iter().for_each(|chain| chain.del_all());
    });
}

/// A port published at 127.0.0.1 stays closed to neighbours after any reload.
#[test]
fn cve_2025_54388_host_port_stays_local_after_firewalld_reload() {
    for_ours("portmap", |lab| {
        let Some(_firewalld) = Firewalld::start(lab) else { return };
        lab.host.sh("firewall-cmd --zone=trusted --change-interface=uplink; firewall-cmd --permanent --zone=trusted --change-interface=uplink");
        let mapping = with(&portmap::web(), json!({"hostIP": "127.0.0.1"}));
        let local = portmap::publish(lab, None, json!([mapping]));
        lab.outside.sh(
            "ip route add 127.0.0.1 via 198.51.100.1 table 7; ip rule add pref 1 to 127.0.0.1 table 7; ip rule del pref 0; \
             ip rule add pref 2 lookup local; echo 1 > /proc/sys/net/ipv4/conf/uplink/route_localnet",
        );
        let _server = TcpServer::start(&local.container, 80);
        for when in ["before", "after"] {
            assert!(connect(&lab.host, "127.0.0.1:8080").is_some(), "{when}");
            for to in ["127.0.0.1:8080", "198.51.100.1:8080"] {
                assert_eq!(connect(&lab.outside, to), None, "{when} the reload");
            }
            lab.host.sh("firewall-cmd --reload");
        }
        local.del_all();
    });
}
