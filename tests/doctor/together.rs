//! Faults at the same time: each that is independent of the others is reported.

use serde_json::{Value, json};

use super::site::{Site, bridge};

/// The host's end of the only pair of the bridge.
const END: &str =
    "end=$(ip -o link show master pods0 | head -1 | sed 's/.*: \\(veth[^@:]*\\).*/\\1/'); ";

/// A bridge with everything that can break by itself.
fn site() -> Site {
    let site = Site::empty();
    let mut plugin = bridge("pods0", "10.186.1.0/24");
    plugin["ipMasq"] = json!(true);
    plugin["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24"}]);
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    site.configure("pods", &json!([plugin, portmap]));
    site
}

/// Each pair of faults with the codes of both, and single ones. INSIDE runs a command in the container.
const PAIRS: [(&str, &[&str]); 14] = [
    // What one fault alone has as its consequences in CHECK is no finding of its own.
    ("ip addr flush dev pods0", &["D501"]),
    ("INSIDE ip addr flush dev eth0", &["D502"]),
    ("nft delete table inet cni_multi_masquerade", &["D506"]),
    ("ip link set pods0 mtu 1300; ip link set pods0 down", &["D302", "D321"]),
    ("ip link set pods0 down; INSIDE ip link set eth0 mtu 1300", &["D302", "D320"]),
    (
        "ip link set $end nomaster; nft flush ruleset; INSIDE ip route del default",
        &["D311", "D331", "D504", "D506"],
    ),
    ("ip link set $end nomaster; ip link set $end down", &["D311", "D313"]),
    ("ip link set $end down; INSIDE ip route del 192.0.2.0/24", &["D313", "D330"]),
    ("INSIDE ip route del default; INSIDE ip route del 192.0.2.0/24", &["D330", "D504"]),
    ("echo 0 >/proc/sys/net/ipv4/ip_forward; INSIDE ip route del 192.0.2.0/24", &["D220", "D330"]),
    ("ip addr flush dev pods0; INSIDE ip route replace default via 10.186.1.99", &["D501", "D505"]),
    ("rm /var/lib/cni/networks/pods/10.*; INSIDE ip route del default", &["D504", "D524"]),
    ("INSIDE ip link set eth0 address 02:00:00:00:00:09; ip link set $end down", &["D313", "D316"]),
    (
        "INSIDE ip addr add 10.186.1.77/24 dev eth0; INSIDE ip addr del 10.186.1.X/24 dev eth0; INSIDE ip link set eth0 mtu 1300",
        &["D320", "D502"],
    ),
];

#[test]
fn each_of_several_faults_is_reported() {
    for (faults, codes) in PAIRS {
        let site = site();
        let container = site.lab.container();
        let netns = &container.netns;
        let output = site.run(&format!("net add pods {netns} -p 8080:80"));
        assert!(output.status.success(), "{output:?}");
        assert_eq!(site.findings(""), [Value::Null; 0], "before {faults}");
        let inside = format!("nsenter --net={netns}");
        let script = faults.replace("INSIDE", &inside).replace(".X/", ".2/");
        site.lab.host.sh(&format!("{END}{script}"));
        let mut found = site.codes("");
        found.sort();
        assert_eq!(found, codes, "after {faults}: {:#?}", site.findings(""));
    }
}
