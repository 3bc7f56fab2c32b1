//! Faults of a host with one container: before each there is no finding, after it exactly one, and none
//! after that is mended.

use serde_json::Value;

use super::site::Site;
use crate::support::attachment::skip;
use crate::support::call::binary;

/// A bridge with addresses of both families.
const BRIDGE: &str = r#"{"type": "bridge", "bridge": "pods0", "isGateway": true, "ipam": {"type": "host-local",
    "ranges": [[{"subnet": "10.96.1.0/24"}], [{"subnet": "fd00:96:1::/64"}]],
    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}"#;

/// What is done on the host or, after `in:`, in the container; the code; of the evidence; and what
/// mends it, empty if the finding's fix does. `$end` is the host's end, `$ip` the container's address.
const ROWS: &str = r#"
ip link set pods0 down | D302 | bridge "pods0" is down |
ip link set $end nomaster | D311 | is not a port of the bridge |
ip link set $end down | D313 | is down |
ip link del pods0 | D301 | bridge "pods0" does not exist |
ip link set pods0 mtu 1400 | D321 | has MTU 1400 |
ip netns add aside; ip link set $end netns aside | D312 | the other end of "eth0" is not on the host |
in: ip link set eth0 mtu 4000 | D320 | eth0 has MTU 4000 |
in: ip link set eth0 address 02:00:00:00:00:99 | D316 | has 02:00:00:00:00:99, the record has |
in: ip link del eth0 | D310 | interface "eth0" is not in |
in: ip link set eth0 down | D314 | interface "eth0" of the container is down |
in: ip link set lo down | D315 | interface "lo" of the container is down |
bridge link set dev $end isolated on | D330 | isolated true |
ip addr del 10.96.1.1/24 dev pods0 | D501 | 10.96.1.1 is not on "pods0" |
in: ip addr del $ip dev eth0 | D502 | is not on "eth0" |
in: ip -4 route del default | D504 | default route by 10.96.1.1 |
in: ip route replace default via 10.96.1.99 | D505 | by 10.96.1.99, which no host has |
in: ip addr add 10.96.1.77/24 dev eth0 | D507 | "eth0" has 10.96.1.77/24, which no plugin gave | in: ip addr del 10.96.1.77/24 dev eth0
in: ip addr add 192.0.2.8/32 dev eth0; ip addr add 192.0.2.9/32 dev eth0 | D507 | has 192.0.2.8/32 and 1 more, which | in: ip addr del 192.0.2.8/32 dev eth0; ip addr del 192.0.2.9/32 dev eth0
in: ip addr add fd00:96:1::77/64 dev eth0 nodad | D507 | fd00:96:1::77/64 | in: ip addr del fd00:96:1::77/64 dev eth0
in: ip route prepend default via 10.96.1.250 | D508 | by 10.96.1.250 goes before the recorded one by 10.96.1.1 |
in: ip route prepend default dev eth0 | D508 | without a gateway goes before the recorded one by 10.96.1.1 |
ip addr add 169.254.7.7/16 dev $end scope link | D509 | has 169.254.7.7/16, which no plugin gave |
ip addr add 192.0.2.5/24 dev $end valid_lft 600 preferred_lft 600 | D509 | 192.0.2.5/24 |
ip addr add 192.0.2.5/24 dev $end; ip route prepend default via 192.0.2.1 dev $end | D510 | has the default route and 192.0.2.5/24 |
rm /var/lib/cni/networks/pods/10.* | D524 | is free in the ranges of "pods" |
ip link add vpn0 type bridge; ip link set vpn0 up; ip addr add 10.96.1.200/26 dev vpn0 | D525 | 10.96.1.200/26 | ip link del vpn0
ip route add 10.96.1.128/25 via 198.51.100.2 | D525 | 10.96.1.128/25 | ip route del 10.96.1.128/25
echo 0 >/proc/sys/net/ipv4/ip_forward | D220 | 1 attachment needs it |
echo 0 >/proc/sys/net/ipv6/conf/all/forwarding | D221 | 1 attachment needs it |
mount -o remount,ro /var/lib/cni 2>&- || mount -o remount,ro /var/lib | D231 | read-only |
chmod 777 /var/lib/cni/networks | D232 | mode 0777 |
chmod g+w /var/lib/cni/results | D232 | /var/lib/cni/results |
"#;

/// The same of a directory of plugins.
const OF_DIRECTORY: &str = r#"
mv /run/bin /run/gone | D240 | /run/bin is in the plugin path |
cd /run/bin; rm ptp; cp cni-multi ptp | D241 | ptp in /run/bin |
chmod 644 /run/bin/cni-multi | D242 | has mode 0644 |
mount --bind /run/bin /run/bin; mount -o remount,bind,noexec /run/bin | D243 | /run/bin |
"#;

#[test]
fn faults_of_a_bridge_s_container_are_found_and_mended() {
    let site = Site::empty();
    site.lab.host.sh("ip addr add 10.96.1.250/32 dev uplink"); // a gateway that exists
    assert_rows(&site, &format!("[{BRIDGE}]"), "", ROWS);
}

#[test]
fn faults_of_a_directory_of_plugins_are_found_and_mended() {
    let site = Site::empty();
    site.lab.host.sh(&format!("{} install --no-path --dir /run/bin", binary().display()));
    let site = Site { plugin_path: "/run/bin".to_owned(), ..site };
    assert_rows(&site, &format!("[{BRIDGE}]"), "", OF_DIRECTORY);
}

const PTP: &str = r#"{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.96.1.0/24",
    "routes": [{"dst": "0.0.0.0/0"}]}}"#;

/// A plugin behind the bridge, a key of the bridge, or `ptp`; what the host needs; options of `net add`;
/// and a row.
const OF_PLUGINS: [[&str; 4]; 9] = [
    [
        r#"{"type": "portmap", "capabilities": {"portMappings": true}}"#,
        "true",
        "-p 8080:80",
        "nft flush ruleset | D331 | portmap |",
    ],
    [
        r#"{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 800000}"#,
        "true",
        "",
        "tc qdisc del dev $end root | D332 | bandwidth |",
    ],
    [
        r#"{"type": "firewall", "backend": "nftables"}"#,
        "iptables -P FORWARD DROP",
        "",
        "iptables -F CNI-FORWARD | D333 | firewall |",
    ],
    [
        r#"{"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}"#,
        "true",
        "",
        "in: sysctl -qw net.ipv4.conf.eth0.arp_filter=0 | D334 | tuning |",
    ],
    [r#"{"type": "sbr"}"#, "true", "", "in: ip rule flush | D335 | sbr |"],
    [
        r#"{"type": "vrf", "vrfname": "blue"}"#,
        "ip link add v0 type vrf table 9 && ip link del v0",
        "",
        "in: ip link set eth0 nomaster | D336 | vrf |",
    ],
    [
        r#""portIsolation": true"#,
        "true",
        "",
        "bridge link set dev $end isolated off | D330 | bridge |",
    ],
    [r#""ipMasq": true"#, "true", "", "nft flush ruleset | D506 | masquerad |"],
    ["ptp", "true", "", "ip addr flush dev $end | D501 | 10.96.1.1 is not on |"],
];

#[test]
fn what_plugins_have_done_and_is_gone_is_found_and_mended() {
    for [plugin, needs, options, row] in OF_PLUGINS {
        let site = Site::empty();
        if !site.lab.host.try_sh(needs).status.success() {
            skip(needs);
            continue;
        }
        let list = match plugin {
            "ptp" => format!("[{PTP}]"),
            key if key.starts_with('"') => {
                format!("[{}]", BRIDGE.replacen('{', &format!("{{{key}, "), 1))
            }
            _ => format!("[{BRIDGE}, {plugin}]"),
        };
        assert_rows(&site, &list, options, row);
    }
}

/// A container of the network and of its own loopback, and the rows.
fn assert_rows(site: &Site, list: &str, options: &str, rows: &str) {
    site.configure("pods", &serde_json::from_str(list).unwrap());
    site.configure("cni-loopback", &serde_json::from_str(r#"[{"type": "loopback"}]"#).unwrap());
    let container = site.lab.container();
    let output = site.run(&format!("net add pods {} {options}", container.netns));
    assert!(output.status.success(), "{output:?}");
    site.attach("cni-loopback", &container, "lo");
    each_is_found(site, rows, |script| match script.strip_prefix("in: ") {
        Some(script) => {
            let ip = "ip=$(ip -4 -o addr show eth0 | sed 's/.*inet \\([^ ]*\\).*/\\1/')";
            container.sh(&format!("{ip}; {script}"))
        }
        None => {
            let end = "end=$(ip -o link show type veth | grep -o 'veth[0-9a-f]\\{8\\}')";
            site.lab.host.sh(&format!("{end}; {script}"))
        }
    });
}

/// Before each row of the table there is no finding, after its fault exactly one, and none after that
/// is mended.
pub fn each_is_found(site: &Site, faults: &str, run: impl Fn(&str) -> String) {
    for line in faults.lines().filter(|line| !line.is_empty()) {
        let cells: Vec<&str> =
            line.split(" | ").map(|cell| cell.trim_matches([' ', '|'])).collect();
        assert_eq!(site.findings(""), [Value::Null; 0], "before {line}");
        run(cells[0]);
        let found = site.findings("");
        assert_eq!(found.len(), 1, "{line}: {found:#?}");
        let text = |key: &str| found[0][key].as_str().unwrap();
        assert_eq!(text("code"), cells[1], "{line}: {found:#?}");
        assert!(text("evidence").contains(cells[2]), "{line}: {found:#?}");
        match cells.get(3) {
            Some(mend) => {
                assert!(!text("fix").starts_with("sudo "), "{line}: {found:#?}");
                run(mend);
            }
            None => site.fix(&found[0]),
        }
    }
    assert_eq!(site.findings(""), [Value::Null; 0]);
}
