//! D29x: the way to other networks and back, as the kernel's routing says.

use serde_json::{Value, json};

use super::site::{Site, bridge};

/// What breaks the way, on the host or, after `in:`, in the container; the code; of the evidence; and what mends it.
const FAULTS: &str = r#"
ip route del default | D290 | the host has no IPv4 route to other networks | ip route add default via 198.51.100.2
ip -6 route del default | D290 | the host has no IPv6 route to other networks | ip -6 route add default via 2001:db8:ffff::2
ip rule add from 10.98.1.2 blackhole pref 9 | D291 | dropped: a blackhole | ip rule del pref 9
ip -6 rule add from fd00:98::2 prohibit pref 9 | D291 | are prohibited | ip -6 rule del pref 9
ip route add unreachable 198.0.0.0/8 | D291 | are unreachable | ip route del 198.0.0.0/8
ip route add 10.98.1.2 dev uplink | D292 | packets to 10.98.1.2 leave by "uplink" in place of "pods0" | ip route del 10.98.1.2
ip -6 route add fd00:98::2 dev uplink | D292 | packets to fd00:98::2 leave by "uplink" | ip -6 route del fd00:98::2
echo 1 >/proc/sys/net/ipv4/conf/pods0/rp_filter; ip route add 10.98.1.2 dev uplink | D291 | rp_filter is strict | ip route del 10.98.1.2; echo 0 >/proc/sys/net/ipv4/conf/pods0/rp_filter
ip -n outside link set uplink down; sleep 0.2 | D293 | "uplink", the link to other networks, has no carrier | ip -n outside link set uplink up
in: ip rule add from 10.98.1.2 blackhole pref 9 | D294 | to other networks are dropped | in: ip rule del pref 9
in: ip -6 rule add from fd00:98::2 prohibit pref 9 | D294 | to other networks are prohibited | in: ip -6 rule del pref 9
"#;

/// A host that knows no other machine needs no way there, whatever bridges it has.
const ALONE: [&str; 2] = [
    "ip addr del 198.51.100.1/24 dev uplink; ip link add idle0 type bridge
     ip addr add 172.31.0.1/16 dev idle0; ip link set idle0 up",
    "ip link del idle0; ip addr add 198.51.100.1/24 dev uplink; ip route add default via 198.51.100.2",
];

#[test]
fn each_fault_of_routing_is_named_once() {
    let site = Site::empty();
    let mut plugin = bridge("pods0", "10.98.1.0/24");
    plugin["ipam"]["ranges"] = json!([[{"subnet": "10.98.1.0/24"}], [{"subnet": "fd00:98::/64"}]]);
    plugin["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    site.configure("pods", &json!([plugin]));
    let container = site.attached("pods");
    let run = |script: &str| match script.strip_prefix("in: ") {
        Some(script) => container.sh(script),
        None => site.lab.host.sh(script),
    };
    for line in FAULTS.lines().filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(site.findings(""), [Value::Null; 0], "before {line}");
        run(cells[0]);
        let found = site.findings("");
        assert_eq!(found.len(), 1, "{line}: {found:#?}");
        let text = |key: &str| found[0][key].as_str().unwrap().to_owned();
        assert_eq!(text("code"), cells[1], "{line}: {found:#?}");
        assert!(text("evidence").contains(cells[2]), "{line}: {found:#?}");
        let shown = site.lab.host.try_sh(&text("show").replace("sudo ", ""));
        assert!(
            cells[1] == "D290" || !shown.stdout.is_empty() || !shown.stderr.is_empty(),
            "{line}: {shown:?}"
        );
        run(cells[3]);
    }
    run(ALONE[0]);
    assert_eq!(site.findings(""), [Value::Null; 0], "alone");
    assert_eq!(site.findings(&container.netns), [Value::Null; 0], "alone");
    run(ALONE[1]);
}
