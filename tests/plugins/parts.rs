//! What ADD makes, CHECK compares and `net sync` makes again is one list of parts. Of each kind one is broken: CHECK
//! names it, a dry run names the change, the repair makes it, and DEL leaves nothing.

use std::collections::BTreeSet;

use cni_multi::plugin::part::NAMES;
use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::call::Outcome;
use crate::support::case;
use crate::support::netns::Lab;
use crate::support::networks::bandwidth::{both, can_limit};
use crate::support::networks::firewall::DROPPING;
use crate::support::networks::portmap::web;
use crate::support::networks::stacked::{IPVLAN, MACVLAN, VLAN};
use crate::support::networks::vrf::has_vrf;
use crate::support::networks::{bond, dummy, fastpath, ovs};
use crate::support::snapshot::{Change, Watch, last_of, lines};
use crate::support::synced::{Synced, attach};
use crate::support::table::cells;

/// What is broken, a line each: the kind of part; what breaks it, on the host with `$end` for the host's end, or after
/// `in:` in the container; of what CHECK says, empty where it does not compare the part; of the change that makes it
/// again, empty where a repair leaves it and says so.
const OF_PTP: &str = r#"
accept_ra | in: echo 2 >/proc/sys/net/ipv6/conf/eth0/accept_ra | accept_ra of "eth0" is 2
addresses and routes | in: ip addr del 10.47.0.2/24 dev eth0 | Failed to match addr 10.47.0.2/24
host end | ip link set $end down | the host's end "veth | set "veth
gateways | ip addr del 10.47.0.1 dev $end | Failed to find Gateway 10.47.0.1 | give 10.47.0.1, fd00:47::1 to "veth
host route | ip route del 10.47.0.2 dev $end |  | route 10.47.0.2 to "veth
host route | ip -6 route del fd00:47::2 dev $end |  | route fd00:47::2 to "veth
forwarding | echo 0 >/proc/sys/net/ipv4/ip_forward | ip_forward is off | forward what "veth
masquerade | nft flush table inet cni_multi_masquerade | masquerade | masquerade 10.47.0.2/24
masquerade | nft flush map inet cni_multi_masquerade masq4 | is not masqueraded | masquerade 10.47.0.2/24
"#;

const OF_HAIRPIN: &str =
    r#"port | bridge link set dev $end hairpin off | has hairpin false | connect "veth"#;

const OF_BRIDGE: &str = r#"
port | bridge link set dev $end isolated on | has isolated true | connect "veth
port | bridge link set dev $end hairpin on | has hairpin true | connect "veth
bridge | ip link del pods0 | Interface name pods0 not found | create bridge "pods0"
promiscuous mode | ip link set pods0 promisc off | configured Promisc Mode true | set bridge "pods0" promiscuous
forwarded groups | ip link set pods0 type bridge group_fwd_mask 0 | lacks bits 0x4000 | set bits 0x4000
bridge up | ip link set pods0 down | bridge "pods0" is down | set bridge "pods0" up
port | ip link set $end nomaster | is not a port of bridge "pods0" | connect "veth
port | ip link set $end down | the host's end "veth | connect "veth
accept_ra | in: echo 2 >/proc/sys/net/ipv6/conf/eth0/accept_ra | accept_ra of "eth0" is 2
spoof check | nft delete table bridge cni_multi_spoofcheck | macspoofchk of port | drop frames of other addresses
addresses and routes | in: ip route del default | Expected Route 0.0.0.0/0
gateways | ip addr del 10.47.0.1/24 dev pods0 | Failed to find Gateway 10.47.0.1 for interface eth0 | give 10.47.0.1/24, fd00:47::1/64 to "pods0"
gateways | ip -6 addr del fd00:47::1/64 dev pods0 | Failed to find Gateway fd00:47::1 for interface eth0 | give 10.47.0.1/24, fd00:47::1/64 to "pods0"
forwarding | echo 0 >/proc/sys/net/ipv4/ip_forward | ip_forward is off | forward what "pods0"
forwarding | echo 0 >/proc/sys/net/ipv4/conf/pods0/forwarding | pods0/forwarding is off | forward what "pods0"
masquerade | nft flush table inet cni_multi_masquerade | masquerade | masquerade 10.47.0.2/24
"#;

const OF_BANDWIDTH: &str = r#"
ingress limit | tc qdisc del dev $end root | Failed to find qdisc | limit ingress at "veth
egress limit | tc qdisc del dev $end ingress | filters of "veth | limit egress at "veth
egress limit | ip link del $ifb | ifb | limit egress at "veth
"#;

const OF_PORTMAP: &str = r#"
ports | nft flush table inet cni_multi_portmap | missing hostport rules | publish port 8080/tcp
ports | nft delete table inet cni_multi_portmap | missing hostport rules | publish port 8080/tcp
route_localnet | echo 0 >/proc/sys/net/ipv4/conf/pods0/route_localnet | route_localnet is off | route_localnet to 127
"#;

const OF_FIREWALL: &str = r#"
admission | iptables -F FORWARD | no rule | accept packets of 10.47.0.2 and fd00:47::2
admission | nft delete table inet cni_multi_firewall |  | accept packets of 10.47.0.2 and fd00:47::2
"#;

/// Links that are in the container with all that they have.
const OF_LINK: &str = r#"
accept_ra | in: echo 2 >/proc/sys/net/ipv6/conf/eth0/accept_ra | accept_ra of "eth0" is 2
addresses and routes | in: ip link set eth0 down | Interface eth0 is down
"#;

const OF_OVS: &str = r#"
accept_ra | in: echo 2 >/proc/sys/net/ipv6/conf/eth0/accept_ra | accept_ra of "eth0" is 2
ovs port | ip link set $end down | the host's end "veth | a port of bridge "ovs0"
ovs port | ovs-vsctl --no-wait del-port ovs0 $end | has no port "veth | a port of bridge "ovs0"
ovs port | ovs-vsctl --no-wait del-br ovs0 -- add-br ovs0 | has no port "veth | a port of bridge "ovs0"
ovs port | ovs-vsctl --no-wait set port $end tag=9 | has native-untagged, tag 9, trunks [20, 21, 22], expected | a port of bridge "ovs0"
addresses and routes | in: ip addr del 10.47.0.2/24 dev eth0 | Failed to match addr 10.47.0.2/24
"#;

const OF_ADDRESSES: &str = r#"
addresses and routes | in: ip addr del 10.47.0.2/24 dev eth0 | Failed to match addr 10.47.0.2/24
"#;

const OF_TUNING: &str = r#"
sysctl | in: echo 77 >/proc/sys/net/core/somaxconn | core/somaxconn is 517, current | somaxconn to 517
sysctl | in: echo 0 >/proc/sys/net/ipv4/conf/eth0/arp_filter | arp_filter is 1, current | eth0/arp_filter to 1
"#;

const OF_SBR: &str = r#"
source rule | in: ip rule del from 10.47.0.2 | no rule leads what 10.47.0.2 sends to a table | add rule from 10.47.0.2 to table 100
source table | in: ip route del 10.47.0.0/24 table 100 | has no route to 10.47.0.0/24 | add route 10.47.0.0/24 to table 100
source table | in: ip -6 route flush table 101 | no default route through fd00:47::9 | add default route by fd00:47::9 to table 101
main table | in: ip route add default via 10.47.0.1 dev eth0 | route 0.0.0.0/0 is in the main table
source hint | in: ip -6 route del fd00:47::/64 table main | no route to fd00:47::/64 by its address | add route fd00:47::/64 to the main
"#;

const OF_VRF: &str = r#"
vrf | in: ip link set eth0 nomaster | failed to find eth0 associated to vrf blue | put "eth0" into VRF "blue"
vrf | in: ip link del blue | VRF "blue" not found | put "eth0" into VRF "blue"
vrf up | in: ip link set blue down | VRF "blue" is down | set VRF "blue" up
vrf route | in: ip route del default table 1 | Expected Route 0.0.0.0/0 via 10.47.0.1 | add route 0.0.0.0/0 to table 1
"#;

const FAST_PATH: &str = r#"fast path | nft delete table inet cni_multi_fastpath | fastPath of "veth | add flows of "veth"#;

const PLUGINS: [(&str, &str); 17] = [
    ("ptp", OF_PTP),
    ("bridge", OF_BRIDGE),
    ("hairpin", OF_HAIRPIN),
    ("bandwidth", OF_BANDWIDTH),
    ("portmap", OF_PORTMAP),
    ("firewall", OF_FIREWALL),
    ("macvlan", OF_LINK),
    ("ipvlan", OF_LINK),
    ("vlan", OF_LINK),
    ("host-device", OF_LINK),
    ("bond", OF_LINK),
    ("dummy", OF_ADDRESSES),
    ("tap", OF_ADDRESSES),
    ("ovs", OF_OVS),
    ("tuning", OF_TUNING),
    ("sbr", OF_SBR),
    ("vrf", OF_VRF),
];

/// A line of such a table.
#[derive(Clone, Copy)]
struct Break {
    part: &'static str,
    script: &'static str,
    said: &'static str,
    made: &'static str,
}

fn breaks(table: &'static str) -> Vec<Break> {
    let row = |[part, script, said, made]: [&'static str; 4]| Break { part, script, said, made };
    cells(table).into_iter().map(row).collect()
}

/// A network with every part of the plugin, which follows bridge if it is chained.
fn network(plugin: &str) -> Vec<Value> {
    let link = |keys: Value| {
        let addresses = json!([{"address": "10.47.0.2/24"}]); // the kernel tries those of IPv6 for seconds
        let ipam = json!({"type": "static", "addresses": addresses});
        vec![with(&json!({"type": plugin, "acceptRA": false, "ipam": ipam}), keys)]
    };
    let bridge = || main("bridge", false);
    let after_bridge = |keys: Value| vec![bridge(), with(&json!({"type": plugin}), keys)];
    match plugin {
        "macvlan" | "ipvlan" | "vlan" => link(json!({"master": "uplink", "vlanId": 7})),
        "host-device" => link(json!({"device": "port0"})),
        "bond" => {
            let links = json!([{"name": "port0"}, {"name": "port1"}]);
            link(json!({"mode": "active-backup", "links": links}))
        }
        "dummy" | "tap" => link(json!({})),
        "ovs" => {
            let others = json!({"cniVersion": null, "name": null, "ipam": null});
            link(with(&ovs::every_key(), others))
        }
        "hairpin" => vec![with(&bridge(), json!({"promiscMode": false, "hairpinMode": true}))],
        "tuning" => after_bridge(json!({"sysctl": {
            "net.core.somaxconn": "517", "net.ipv4.conf.IFNAME.arp_filter": "1",
        }})),
        "bandwidth" => after_bridge(both()),
        "firewall" => after_bridge(json!({"backend": "nftables"})),
        "portmap" => after_bridge(json!({"runtimeConfig": {"portMappings": [web()]}})),
        "sbr" => after_bridge(json!({"addSourceHints": true, "gateways": ["fd00:47::9"]})),
        "vrf" => after_bridge(json!({"vrfname": "blue"})),
        _ => vec![main(plugin, false)],
    }
}

/// A host on which the plugin has something to do. False after a skip, if its kernel lacks that.
fn prepare(plugin: &str, lab: &Lab) -> bool {
    match plugin {
        "firewall" => drop(lab.host.sh(DROPPING)),
        "host-device" => bond::ports(lab),
        _ => {}
    }
    match plugin {
        "bandwidth" => can_limit(lab),
        "macvlan" => MACVLAN.is_in(lab),
        "ipvlan" => IPVLAN.is_in(lab),
        "vlan" => VLAN.is_in(lab),
        "bond" => bond::with_ports(lab),
        "dummy" => dummy::makes_dummies(lab),
        "ovs" => ovs::node(lab),
        "vrf" => has_vrf(&lab.container()),
        _ => true,
    }
}

fn main(plugin: &str, has_fast_path: bool) -> Value {
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let addresses = json!([{"address": "10.47.0.2/24", "gateway": "10.47.0.1"},
                           {"address": "fd00:47::2/64", "gateway": "fd00:47::1"}]);
    let ipam = json!({"type": "static", "addresses": addresses, "routes": routes});
    let both = json!({"type": plugin, "ipMasq": true, "ipMasqBackend": "nftables", "acceptRA": false,
                      "fastPath": has_fast_path, "ipam": ipam});
    let of_bridge = json!({"bridge": "pods0", "isGateway": true, "promiscMode": true, "macspoofchk": true,
                           "groupFwdMask": 0x4000});
    if plugin == "bridge" { with(&both, of_bridge) } else { both }
}

impl Break {
    /// One of several may find what it breaks gone already.
    fn happen(&self, synced: &Synced<'_>, is_alone: bool) {
        let (at, script) = match self.script.strip_prefix("in: ") {
            Some(script) => (&*synced.container, script.to_owned()),
            None => {
                let names = "end=$(ip -br link show type veth | grep -v uplink | cut -d@ -f1)
                    ifb=$(ip -br link show type ifb 2>/dev/null | cut -d' ' -f1)";
                (&synced.lab.host, format!("{names}; {}", self.script))
            }
        };
        let status = at.try_sh(&script).status;
        assert!(status.success() || !is_alone, "{script}");
    }
}

/// What is left of the container's side, in the words of `net sync`.
const LEFT: &str = " eth0: not repaired: ";

/// The changes that `net sync` prints.
fn changes(printed: &str) -> Vec<String> {
    let is_change = |line: &&str| line.contains(" eth0: ") && !line.contains(LEFT);
    printed.lines().filter(is_change).map(str::to_owned).collect()
}

/// Breaks parts of a new attachment, and has them repaired.
#[track_caller]
fn assert_agreed(lab: &Lab, plugins: &[Value], breaks: &[Break]) {
    let told: Vec<&str> = breaks.iter().map(|it| it.script).collect();
    eprintln!("{told:?}"); // shown when the case fails
    attach(lab, plugins, "").del(); // what stays on the host is there
    let before = Watch::start(lab, &[]);
    let synced = attach(lab, plugins, "");
    synced.check().ok();
    let made = Watch::start(lab, &[&synced.container]);
    let is_alone = breaks.len() == 1;
    breaks.iter().for_each(|it| it.happen(&synced, is_alone));
    let has_said = breaks.iter().any(|it| !it.said.is_empty());
    let has_made = breaks.iter().any(|it| !it.made.is_empty());
    if has_said {
        let check = synced.net(&format!("check pods {} -o json", synced.container.netns));
        assert!(check.status == 1 && check.stdout.contains("\"code\":103"), "{check:?}");
        assert!(!is_alone || synced.check().stderr.contains(breaks[0].said), "{check:?}");
    } else {
        synced.check().ok();
    }
    let look = synced.net("sync pods --dry-run");
    assert_eq!(look.status, if has_made { 3 } else { 0 }, "{look:?}");
    let repair = synced.net("sync pods");
    assert_eq!(repair.status, 0, "{repair:?}");
    let repaired = changes(&repair.stdout);
    assert_eq!(changes(&look.stdout), repaired, "a dry run names what the run makes");
    let again = synced.net("sync pods --dry-run");
    assert_eq!(again.status, 0, "one run is enough");
    if is_alone {
        let Break { said, made, .. } = breaks[0];
        assert_eq!(repaired.iter().any(|it| it.contains(made)), has_made, "{repair:?}");
        let says_so = |outcome: &&Outcome| {
            outcome.stdout.lines().any(|line| line.contains(LEFT) && line.contains(said))
        };
        assert!(has_made || [&look, &repair, &again].iter().all(says_so), "{repair:?}");
    }
    let stays = breaks.iter().any(|it| it.made.is_empty());
    assert_eq!(synced.check().status == 0, !stays, "the container's side stays as it is");
    if !stays {
        assert_as_before(&made, breaks, "the break");
        if plugins[0]["type"] != "ovs" {
            // there vswitchd, which does not run, would forward
            for address in ["10.47.0.2", "fd00:47::2"] {
                lab.host.sh(&format!("ping -c 1 -W 2 {address}"));
            }
        }
    }
    synced.del();
    assert_as_before(&before, breaks, "ADD");
}

/// A bridge, an ifb or a VRF that was made again has another number, and rules of firewall other handles. The kernel adds the
/// route of a subnet's anycast address again at most times, not at all.
#[track_caller]
fn assert_as_before(before: &Watch<'_>, breaks: &[Break], what: &str) {
    let mut new = vec!["\"anycast\""];
    for it in breaks {
        new.extend(match it.script.split_once(" del ") {
            Some(("ip link", "pods0")) => &["pods0", "ifindex"][..],
            Some(("in: ip link", "blue")) => &["\"ifname\":\"blue\"", "/run/cni/vrf/"],
            Some(("ip link", _)) => &["ifindex", "ifb"],
            _ if it.part == "admission" => &["accepts4", "accepts6", "0x0"],
            _ => &[],
        });
    }
    let left = last_of(std::time::Duration::from_millis(50), || {
        let mut all = before.each_change_now();
        all.retain(|change| {
            let (Change::Gone(fact) | Change::New(fact)) = change;
            !new.iter().any(|word| fact.contains(word))
        });
        all
    });
    assert!(left.is_empty(), "not as before {what}:\n{}", lines(&left));
}

fn with_each(sets: impl Fn(Vec<Break>) -> Vec<Vec<Break>>) {
    for (plugin, table) in PLUGINS {
        let program = if plugin == "hairpin" { "bridge" } else { plugin };
        for_ours(program, |lab| {
            if prepare(plugin, lab) {
                let sets = sets(breaks(table));
                let sets = sets.iter().filter(|set| !set.is_empty());
                sets.for_each(|set| assert_agreed(lab, &network(plugin), set));
            }
        });
    }
}

#[test]
fn each_kind_of_part_has_a_row() {
    let rows: BTreeSet<&str> = PLUGINS
        .map(|(_, table)| table)
        .into_iter()
        .chain([FAST_PATH])
        .flat_map(breaks)
        .map(|row| row.part)
        .collect();
    assert_eq!(rows, NAMES.iter().copied().collect());
}

#[test]
fn check_says_and_a_repair_makes_each_part() {
    with_each(|all| all.into_iter().map(|it| vec![it]).collect());
}

#[test]
fn a_fast_path_is_checked_and_made_again() {
    for plugin in ["ptp", "bridge"] {
        for_ours(plugin, |lab| {
            if fastpath::prepare(lab) {
                assert_agreed(lab, &[main(plugin, true)], &breaks(FAST_PATH));
            }
        });
    }
}

#[test]
fn two_parts_at_a_time_need_one_repair() {
    with_each(|all| {
        let numbers = (0..all.len()).flat_map(|one| (0..one).map(move |two| (one, two)));
        let pairs = case::in_turn(numbers, 7).into_iter();
        pairs.map(|(one, two)| vec![all[one], all[two]]).collect()
    });
}

#[test]
fn all_parts_at_once_need_one_repair() {
    with_each(|all| {
        let of_host = all.iter().copied().filter(|it| !it.made.is_empty()).collect();
        vec![of_host, all]
    });
}
