//! Faults of a host, each made by hand: `doctor CONTAINER` names the cause first, with the packets that it
//! follows or without.

use std::time::Instant;

use serde_json::{Value, json};

use super::site::{Site, bridge};
use crate::support::attachment::skip;
use crate::support::call::binary;
use crate::support::netns::Container;
use crate::support::patience;
use crate::support::traffic::{TcpServer, UdpServer};

/// What is broken, on the host or, after `in:`, in the container; the code that must come first; of its
/// evidence, one of what `~` separates; and what mends it, which is empty where the printed fix does.
/// `$end` is the host's end of the container.
const FAULTS: &str = r#"
ip route del default | D290 | the host has no IPv4 route to other networks | ip route add default via 198.51.100.2
ip -6 route del default | D290 | the host has no IPv6 route to other networks | ip -6 route add default via 2001:db8:ffff::2
ip rule add from 10.97.1.2 blackhole pref 9 | D291 | dropped: a blackhole | ip rule del pref 9
ip -6 rule add from fd00:97::2 prohibit pref 9 | D291 | are prohibited | ip -6 rule del pref 9
ip route add unreachable 198.0.0.0/8 | D291 | are unreachable | ip route del 198.0.0.0/8
ip route add 10.97.1.2 dev uplink | D292 | packets to 10.97.1.2 leave by "uplink" in place of "pods0" | ip route del 10.97.1.2
ip -6 route add fd00:97::2 dev uplink | D292 | packets to fd00:97::2 leave by "uplink" | ip -6 route del fd00:97::2
echo 1 >/proc/sys/net/ipv4/conf/pods0/rp_filter; ip route add 10.97.1.2 dev uplink | D291 | rp_filter is strict | ip route del 10.97.1.2; echo 0 >/proc/sys/net/ipv4/conf/pods0/rp_filter
ip -n outside link set uplink down; sleep 0.2 | D293 | "uplink", the link to other networks, has no carrier | ip -n outside link set uplink up; ip -n outside -6 addr add 2001:db8:ffff::2/64 dev uplink nodad
in: ip rule add from 10.97.1.2 blackhole pref 9 | D294 | to other networks are dropped | in: ip rule del pref 9
in: ip -6 rule add from fd00:97::2 prohibit pref 9 | D294 | to other networks are prohibited | in: ip -6 rule del pref 9
ip route add blackhole 198.51.100.2 | D540 | to the host's gateway | ip route del blackhole 198.51.100.2
ip link add wrong0 up type bridge; ip addr add 192.0.2.1/24 dev wrong0; ip neigh add 192.0.2.254 dev wrong0 lladdr 02:00:00:00:00:01; ip route prepend default via 192.0.2.254 | D540 | a packet to the host's gateway, 192.0.2.254, is dropped | ip link del wrong0
nft 'add table ip t; add chain ip t c { type filter hook prerouting priority raw; }; add rule ip t c ip saddr 10.97.1.2 notrack' | D545 | leaves from 10.97.1.2, its own: no rule masquerades it | nft delete table ip t
nft 'add table ip t; add chain ip t c { type nat hook postrouting priority 90; }; add rule ip t c ip saddr 10.97.1.2 snat to 192.0.2.77' | D545 | leaves from 192.0.2.77 | nft delete table ip t
ip link add wrong0 type veth peer name wrong1 netns outside; ip link set wrong0 up; ip -n outside link set wrong1 up; ip -n outside neigh add 198.51.100.1 dev wrong1 lladdr $(cat /sys/class/net/wrong0/address); ip -n outside route add 198.51.100.1 dev wrong1; echo 1 >/proc/sys/net/ipv4/conf/wrong0/rp_filter | D540 | the check of source addresses | ip link del wrong0
nft 'add table inet t; add chain inet t c { type filter hook forward priority 0; policy drop; }' | D540 | the policy of a chain: inet t c | nft delete table inet t
nft 'add table inet t; add chain inet t c { type filter hook forward priority 0; ip saddr 10.97.1.2 drop; }' | D540 | a rule: inet t c, handle | nft delete table inet t
nft 'add table inet t; add chain inet t c { type filter hook forward priority 0; iifname "pods0" counter reject; }' | D540 | a rule: inet t c, handle | nft delete table inet t
nft 'add table inet t; add chain inet t d; add rule inet t d ip daddr 10.97.1.2 drop; add chain inet t c { type filter hook forward priority 0; jump d; }' | D540 | a rule: inet t d, handle | nft delete table inet t
nft 'add table ip t; add chain ip t c { type filter hook prerouting priority 0; ip daddr 198.51.100.2 drop; }' | D540 | a rule: ip t c, handle | nft delete table ip t
nft 'add table ip t; add chain ip t c { type filter hook postrouting priority 0; ip saddr 10.97.1.2 drop; }' | D540 | a rule: ip t c, handle | nft delete table ip t
nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; ct state new meta l4proto { tcp, udp } drop; }' | D540 | a connection to port 443 of the host's gateway | nft delete table ip t
nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; udp dport 53 drop; }' | D540 | a DNS query to 198.51.100.2 is dropped by a rule: ip t c | nft delete table ip t
nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; udp sport 53 reject; }' | D540 | a DNS query to 198.51.100.2 is dropped by a rule: ip t c | nft delete table ip t
nft 'add table ip6 t; add chain ip6 t c { type filter hook forward priority 0; ip6 daddr fd00:97::2 drop; }' | D540 | a packet to the host's gateway, 2001:db8:ffff::2, is dropped by a rule: ip6 t c | nft delete table ip6 t
iptables-nft -A FORWARD -s 10.97.1.0/24 -j REJECT | D540 | a rule: ip filter FORWARD, handle | iptables-nft -F FORWARD
iptables-nft -P FORWARD DROP | D540 | the policy of a chain: ip filter FORWARD | iptables-nft -P FORWARD ACCEPT
iptables-legacy -A FORWARD -s 10.97.1.2 ! -d 10.97.1.0/24 -j DROP | D540 | rule 1 of FORWARD in filter of iptables-legacy | iptables-legacy -F FORWARD
iptables-legacy -P FORWARD DROP | D540 | the policy of FORWARD in filter of iptables-legacy | iptables-legacy -P FORWARD ACCEPT
ip6tables-legacy -t raw -A PREROUTING -s fd00:97::2 -d 2001:db8:ffff::2 -j DROP | D540 | rule 1 of PREROUTING in raw of ip6tables-legacy | ip6tables-legacy -t raw -F
nft 'add table bridge t; add chain bridge t c { type filter hook prerouting priority 0; ip saddr 10.97.1.2 drop; }' | D540 | a rule: bridge t c, handle | nft delete table bridge t
nft 'add table bridge t; add chain bridge t c { type filter hook postrouting priority 0; ip daddr 10.97.1.2 drop; }' | D540 | a rule: bridge t c, handle | nft delete table bridge t
nft 'add table bridge t; add chain bridge t c { type filter hook prerouting priority 0; ip daddr 10.97.1.3 drop; }' | D543 | a rule: bridge t c, handle | nft delete table bridge t
nft 'add table netdev t; add chain netdev t c { type filter hook ingress device "uplink" priority 0; policy drop; }' | D540 | of a table netdev | nft delete table netdev t
nft 'add table inet t; add chain inet t c { type filter hook output priority 0; oifname "pods0" ct state new drop; }' | D542 | a packet from the host to 10.97.1.2 is dropped by a rule: inet t c | nft delete table inet t
nft 'add table inet t; add chain inet t c { type filter hook input priority 0; iifname "pods0" icmp type echo-reply drop; }' | D542 | a packet from the host to 10.97.1.2 is dropped by a rule: inet t c | nft delete table inet t
ip link set uplink mtu 600; nft 'add table inet t; add chain inet t c { type filter hook output priority 0; icmp type destination-unreachable drop; }' | D540 | a link with a smaller MTU~a rule: inet t c | ip link set uplink mtu 1500; nft delete table inet t; ip -6 route replace default via 2001:db8:ffff::2
bridge link set dev $end state 0 | D540 | a port of the bridge: its state | bridge link set dev $end state 3
bridge link set dev $end isolated on; bridge link set dev $peer isolated on | D330 | has isolated true, expected false | 
ip neigh replace 10.97.1.2 lladdr 02:00:00:00:00:99 dev pods0 nud permanent | D540 | seen by | ip neigh del 10.97.1.2 dev pods0
in: ip neigh replace 10.97.1.1 lladdr 02:00:00:00:00:99 nud permanent dev eth0 | D533 | permanently sends to 02:00:00:00:00:99 | 
in: ip neigh replace fd00:97::1 lladdr 02:00:00:00:00:99 nud permanent dev eth0 | D533 | permanently sends to 02:00:00:00:00:99 | 
in: nft 'add table ip t; add chain ip t c { type filter hook input priority 0; policy drop; }' | D540 | a rule of the container | in: nft delete table ip t
in: nft 'add table ip t; add chain ip t c { type filter hook output priority 0; ip daddr 198.51.100.2 drop; }' | D540 | is refused in the container | in: nft delete table ip t
nft 'add table arp t; add chain arp t c { type filter hook input priority 0; policy drop; }; add chain arp t o { type filter hook output priority 0; policy drop; }'; ip neigh flush dev pods0; ip -n c1 neigh flush dev eth0 | D530 | 10.97.1.1 does not answer ARP | nft delete table arp t
echo 8 >/proc/sys/net/ipv4/conf/pods0/arp_ignore; ip neigh flush dev pods0; ip -n c1 neigh flush dev eth0 | D530 | net/ipv4/conf/pods0/arp_ignore is 8 | 
ip link set pods0 arp off | D530 | "pods0" does not use ARP | 
nft 'add table ip6 t; add chain ip6 t c { type filter hook input priority 0; icmpv6 type nd-neighbor-solicit drop; }'; ip neigh flush dev pods0; ip -n c1 neigh flush dev eth0 | D530 | fd00:97::1 does not answer neighbour discovery | nft delete table ip6 t
nft 'add table ip t; add chain ip t c { type nat hook prerouting priority -150; tcp dport 8080 redirect to :9; }' | D546 | is refused, but not by the container | nft delete table ip t
nft 'add table ip t; add chain ip t c { type nat hook prerouting priority -150; tcp dport 8080 dnat to 10.97.1.3:80; }' | D546 | is refused, but not by the container | nft delete table ip t
nft 'add table ip t; add chain ip t c { type filter hook prerouting priority 0; iifname "uplink" tcp dport { 8080, 80 } drop; }' | D546 | a connection from outside to 198.51.100.1:8080 is dropped by a rule: ip t c | nft delete table ip t
nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; ct status dnat tcp dport 80 drop; }' | D546 | a connection from outside to 198.51.100.1:8080 is dropped by a rule: ip t c | nft delete table ip t
in: nft 'add table ip t; add chain ip t c { type filter hook input priority 0; tcp dport 80 drop; }' | D546 | a connection from outside to 198.51.100.1:8080 is dropped by a rule of the container | in: nft delete table ip t
echo 0 >/proc/sys/net/ipv4/ip_forward | D220 | sysctl net/ipv4/ip_forward is 0 | 
echo 0 >/proc/sys/net/ipv4/conf/pods0/forwarding | D220 | sysctl net/ipv4/conf/pods0/forwarding is 0 | 
echo 0 >/proc/sys/net/ipv4/conf/uplink/forwarding | D220 | sysctl net/ipv4/conf/uplink/forwarding is 0 | 
ip addr del 10.97.1.1/24 dev pods0 | D501 | 10.97.1.1 is not on "pods0" | 
in: ip addr del 10.97.1.2/24 dev eth0 | D502 | 10.97.1.2/24 is not on "eth0" | 
in: ip route del default | D504 | the record has a default route by 10.97.1.1 | 
in: ip route replace default via 10.97.1.77 | D505 | the default route is by 10.97.1.77, which no host has | 
nft delete table inet cni_multi_masquerade | D506 |  | 
in: ip link del eth0 | D310 | interface "eth0" is not in | 
ip link del pods0 | D301 | bridge "pods0" does not exist | 
in: ip link set eth0 down | D314 |  | 
echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables; nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; iifname "pods0" oifname "pods0" drop; }' | D543 | a rule: ip t c, handle | nft delete table ip t
ip link set $end down | D313 |  | 
ip link set pods0 down | D302 |  | 
ip link set $end nomaster | D311 |  | 
"#;

/// The same for faults that not every kernel can have.
const FAULTS_OF_MODULES: &str = r#"
tc qdisc add dev $end clsact; tc filter add dev $end ingress matchall action drop | D540 | a filter of tc | tc qdisc del dev $end clsact
tc qdisc add dev uplink root netem loss 100% | D540 | a queueing discipline | tc qdisc del dev uplink root
"#;

/// A host with two containers, of which the first has a published port and a name server.
struct Faulty {
    site: Site,
    red: Container,
    _beside: Container,
    /// At the published port.
    served: Option<TcpServer>,
    _names: UdpServer,
}

impl Faulty {
    fn new() -> Faulty {
        let site = Site::empty().with_own_etc();
        let mut plugin = bridge("pods0", "10.97.1.0/24");
        plugin["ipMasq"] = json!(true);
        plugin["ipam"]["ranges"] =
            json!([[{"subnet": "10.97.1.0/24"}], [{"subnet": "fd00:97::/64"}]]);
        plugin["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        let portmap =
            json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true});
        site.configure("pods", &json!([plugin, portmap]));
        let [red, beside] = [site.lab.container(), site.lab.container()];
        let added = site.run(&format!("net add pods {} -p 8080:80", red.netns));
        assert!(added.status.success(), "{added:?}");
        site.attach("pods", &beside, "eth0");
        let name = red.netns.rsplit('/').next().unwrap();
        let dir = format!("/etc/netns/{name}");
        site.lab
            .host
            .sh(&format!("mkdir -p {dir}; echo nameserver 198.51.100.2 >{dir}/resolv.conf"));
        let served = Some(TcpServer::start(&red, 80));
        let names = UdpServer::start(&site.lab.outside, 53);
        Faulty { site, red, _beside: beside, served, _names: names }
    }

    /// Whether the kernel's trace is there, which needs root of the machine.
    fn has_trace(&self) -> bool {
        let mount = "unshare -m mount -t tracefs t /sys/kernel/tracing";
        self.site.lab.host.try_sh(mount).status.success()
    }

    fn run(&self, script: &str) -> bool {
        let output = match script.strip_prefix("in: ") {
            Some(script) => self.red.try_sh(script),
            None => {
                let ends = "set -e -- $(ls /sys/class/net/pods0/brif); end=$1; peer=$2";
                self.site.lab.host.try_sh(&format!("{ends}; {script}"))
            }
        };
        output.status.success()
    }
}

/// Each third of the table has a host of its own.
const PARTS: usize = 3;

#[test]
fn the_first_third_of_faults_is_named() {
    assert_named(part(0));
}

#[test]
fn the_second_third_of_faults_is_named() {
    assert_named(part(1));
}

#[test]
fn the_last_third_of_faults_is_named() {
    assert_named(part(2));
}

#[test]
fn faults_of_modules_are_named() {
    assert_named(FAULTS_OF_MODULES.lines().collect());
}

fn part(number: usize) -> Vec<&'static str> {
    FAULTS.lines().skip(1 + number).step_by(PARTS).collect()
}

/// Before each fault there is no finding; after it exactly one, with its code and evidence.
fn assert_named(rows: Vec<&str>) {
    let faulty = Faulty::new();
    if !faulty.has_trace() {
        return skip("tracefs, and root");
    }
    let Faulty { site, red, .. } = &faulty;
    let mut wrong = vec![];
    for line in rows.iter().filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let begin = Instant::now();
        let before = site.findings(&red.netns);
        if !before.is_empty() {
            eprintln!("BEFORE {line}: {}", json!(before));
            wrong.push("before");
        }
        assert!(begin.elapsed() < patience(3), "{:?}", begin.elapsed());
        if !faulty.run(cells[0]) {
            skip(cells[0]);
            faulty.run(cells[3]);
            continue;
        }
        let found = site.findings(&red.netns);
        let first = found.first().cloned().unwrap_or_default();
        let text = |key: &str| first[key].as_str().unwrap_or_default().to_owned();
        let is_said = cells[2].split('~').any(|said| text("evidence").contains(said));
        if text("code") != cells[1] || !is_said || found.len() != 1 {
            eprintln!("WRONG {line}: {}", json!(found));
            wrong.push(cells[0]);
        }
        if cells[3].is_empty() && first.is_object() {
            site.fix(&first);
        } else {
            faulty.run(cells[3]);
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), rows.len());
}

/// Rules that drop something, as hosts have them: none drops what containers send.
const HEALTHY: [(&str, &str); 9] = [
    ("another subnet", "table inet f { chain forward { type filter hook forward priority 0;
        ip saddr 10.99.0.0/16 drop; iifname \"wlan0\" drop; ip daddr 169.254.169.254 drop; tcp dport 25 drop;
        ct state invalid drop; meta mark 7 drop } }"),
    ("a host that accepts ssh alone", "table inet filter { chain input { type filter hook input priority 0; policy drop;
        ct state established,related accept; iif lo accept; tcp dport 22 accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; reject } }"),
    ("docker", "table ip f { chain FORWARD { type filter hook forward priority 0; policy drop;
        jump DOCKER-USER; jump DOCKER-ISOLATION; oifname \"docker0\" ct state related,established accept;
        oifname \"docker0\" jump DOCKER; iifname \"docker0\" oifname != \"docker0\" accept;
        ip saddr 10.97.1.0/24 accept; ip daddr 10.97.1.0/24 accept }
        chain DOCKER { } chain DOCKER-USER { return; }
        chain DOCKER-ISOLATION { iifname \"docker0\" oifname != \"docker0\" jump DOCKER-ISOLATION-2; return; }
        chain DOCKER-ISOLATION-2 { oifname \"docker0\" drop; return; } }"),
    ("kubernetes", "table ip filter { chain FORWARD { type filter hook forward priority 0; policy accept;
        counter jump KUBE-FORWARD; ct state new jump KUBE-SERVICES }
        chain KUBE-FORWARD { ct state invalid drop; meta mark & 0x4000 == 0x4000 accept; ct state related,established accept }
        chain KUBE-SERVICES { ip daddr 10.96.0.10 tcp dport 53 reject }
        chain INPUT { type filter hook input priority 0; policy accept; jump KUBE-FIREWALL }
        chain KUBE-FIREWALL { ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 ct status dnat drop; meta mark & 0x8000 == 0x8000 drop } }"),
    ("firewalld", "table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; policy accept;
        ct state established,related accept; ct status dnat accept; iifname \"lo\" accept; ct state invalid drop;
        ip6 daddr { ::/96, 2002::/24 } reject with icmpv6 addr-unreachable; jump filter_FORWARD_ZONES;
        reject with icmpx admin-prohibited }
        chain filter_FORWARD_ZONES { ip6 saddr fd00:97::/64 goto filter_FWD_trusted;
          ip6 daddr fd00:97::/64 goto filter_FWD_trusted; ip saddr 10.97.1.0/24 goto filter_FWD_trusted;
          ip daddr 10.97.1.0/24 goto filter_FWD_trusted; goto filter_FWD_public }
        chain filter_FWD_trusted { accept } chain filter_FWD_public { reject } }"),
    ("a rule that is not decoded", "table ip f { chain forward { type filter hook forward priority 0; policy drop;
        limit rate 1000/second accept; drop } }"),
    ("ports of clients", "table ip f { chain c { type filter hook forward priority 0; policy drop; iifname pods0 oifname pods0 accept; icmp type echo-request drop;
        tcp sport 1024-65535 accept; tcp dport 1024-65535 accept; udp sport 53 accept; udp dport 53 accept; tcp dport 80 accept } }"),
    ("a mark of prerouting", "table ip f { chain p { type filter hook prerouting priority mangle; iifname pods0 meta mark set 7; }
        chain c { type filter hook forward priority 0; policy drop; ct state established accept; ct status dnat accept; meta mark 7 accept } }"),
    ("a drop behind the masquerade", "table ip f { chain c { type filter hook postrouting priority 200; oifname uplink ip saddr 10.97.1.2 drop } }"),
];

#[test]
fn healthy_rules_have_no_finding() {
    let faulty = Faulty::new();
    let Faulty { site, red, .. } = &faulty;
    for (name, rules) in HEALTHY {
        let rules = rules
            .replace("} }", "\n}\n}")
            .replace("} chain", "\n}\nchain")
            .replace(" }\n", "\n}\n");
        let table = rules.split(" {").next().unwrap().trim().to_owned();
        site.lab.host.sh(&format!("nft -f - <<'END'\n{rules}\nEND"));
        assert_eq!(site.findings(&red.netns), [Value::Null; 0], "{name}");
        site.lab.host.sh(&format!("nft delete {table}"));
    }
}

#[test]
fn a_published_port_that_nothing_listens_at_is_named() {
    let mut faulty = Faulty::new();
    if !faulty.has_trace() {
        return skip("tracefs, and root");
    }
    assert_eq!(faulty.site.findings(&faulty.red.netns), [Value::Null; 0]);
    faulty.served = None;
    assert_eq!(faulty.site.codes(&faulty.red.netns), ["D547"]);
}

#[test]
fn a_published_port_of_udp_is_followed() {
    let faulty = Faulty::new();
    if !faulty.has_trace() {
        return skip("tracefs, and root");
    }
    let Faulty { site, red, .. } = &faulty;
    let blue = site.lab.container();
    let added = site.run(&format!("net add pods {} -p 8081:4000/udp", blue.netns));
    assert!(added.status.success(), "{added:?}");
    let unserved = site.findings(&blue.netns);
    assert_eq!(unserved[0]["code"], "D547", "{unserved:#?}");
    let server = UdpServer::start(&blue, 4000);
    for netns in [&blue.netns, &red.netns] {
        assert_eq!(site.findings(netns), [Value::Null; 0]);
    }
    site.lab.host.sh("nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; udp dport 4000 drop; }'");
    let dropped = site.findings(&blue.netns);
    assert_eq!(dropped[0]["code"], "D546", "{dropped:#?}");
    let evidence = dropped[0]["evidence"].as_str().unwrap();
    assert!(evidence.starts_with("a datagram from outside to 198.51.100.1:8081"), "{evidence}");
    assert!(evidence.contains("a rule: ip t c, handle"), "{evidence}");
    assert_eq!(dropped[0]["seenBy"][0], "eth0", "{dropped:#?}");
    drop(server);
}

/// A host that knows no other machine needs no way there, whatever bridges it has.
#[test]
fn a_host_alone_needs_no_way_out() {
    let Faulty { site, red, .. } = &Faulty::new();
    site.lab.host.sh("ip addr flush dev uplink scope global; ip -6 route del default; ip link add idle0 type bridge
        ip addr add 172.31.0.1/16 dev idle0; ip link set idle0 up");
    for subject in ["", &format!("{} --no-packets", red.netns)] {
        assert_eq!(site.findings(subject), [Value::Null; 0], "{subject:?}");
    }
}

#[test]
fn traces_of_a_killed_run_and_names_of_processes_do_no_harm() {
    let faulty = Faulty::new();
    if !faulty.has_trace() {
        return skip("tracefs, and root");
    }
    let Faulty { site, red, .. } = &faulty;
    // A process of the container chooses its name, in any bytes.
    red.sh("cp $(command -v ping) \"$(printf '/run/\\377')\"
        \"$(printf '/run/\\377')\" -q -i 0.01 -c 300 10.97.1.1 >/dev/null & sleep 0.2");
    assert_eq!(site.findings(&red.netns), [Value::Null; 0]);
    let left = "nft list tables | grep doctor; ip -br link | grep cni-doctor";
    assert_eq!(site.lab.host.try_sh(left).stdout, b"", "the traces are gone");
    let rule = "add chain inet t c { type filter hook input priority 0; ip protocol icmp drop; }";
    site.lab.host.sh(&format!("nft 'add table inet t; {rule}'"));
    let killed = format!("{} doctor {} & pid=$!", binary().display(), red.netns);
    let until =
        "for _ in $(seq 200); do nft list tables | grep -q doctor && break; sleep 0.02; done";
    let id = site.lab.host.sh(&format!(
        "export NETCONFPATH=/run/net.d; {killed}; {until}; kill -9 $pid; wait; nft delete table inet t; echo $pid"
    ));
    site.lab.host.sh("[ -e /sys/kernel/tracing/trace ] || mount -t tracefs t /sys/kernel/tracing");
    let instance = format!("ls -d /sys/kernel/tracing/instances/cni-multi-{}-*", id.trim());
    assert!(site.lab.host.try_sh(&instance).status.success(), "it has left its trace");
    assert_eq!(site.findings(&red.netns), [Value::Null; 0]);
    assert_eq!(site.lab.host.try_sh(left).stdout, b"", "the next run has removed them");
    assert!(!site.lab.host.try_sh(&instance).status.success(), "the next run has removed it");
    let ended = format!("{killed}; {until}; kill -TERM $pid; wait $pid; echo $?");
    let status = site.lab.host.sh(&format!("export NETCONFPATH=/run/net.d; {ended}"));
    assert_eq!(status.trim(), "143", "a signal ends the walk");
    assert_eq!(site.lab.host.try_sh(left).stdout, b"", "and its traces");
}

#[test]
fn two_at_once_do_not_disturb_each_other() {
    let faulty = Faulty::new();
    let Faulty { site, red, .. } = &faulty;
    let run = format!("{} doctor {}", binary().display(), red.netns);
    let both = format!("{run} >/run/one & {run} >/run/two; wait $!; cat /run/one /run/two");
    let variables = format!("export NETCONFPATH=/run/net.d CNI_PATH={}", site.plugin_path);
    let said = site.lab.host.sh(&format!("{variables}; {both}"));
    assert_eq!(said.matches("no findings").count(), 2, "{said}");
    assert_eq!(said.matches("packets were sent").count(), 2, "{said}");
}
