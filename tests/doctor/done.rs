//! What doctor is for: ten broken containers, each with a fault of a list in random order. The first
//! finding names the cause, and its fix, run as it is printed, brings the packets back.
//!
//! `CNI_SEED` repeats the order.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::site::Site;
use crate::support::netns::OUTSIDE;
use crate::support::traffic::{assert_no_ping, assert_pings};

const END: &str = "$(ip -o link show master pods0 | head -1 | sed 's/.*: \\(veth[^@:]*\\).*/\\1/')";

/// Each fault with the code of its cause. INSIDE runs a command in the container.
const FAULTS: [(&str, &str); 16] = [
    ("echo 0 >/proc/sys/net/ipv4/ip_forward", "D220"),
    ("ip link del pods0", "D301"),
    ("ip link set pods0 down", "D302"),
    ("INSIDE ip link del eth0", "D310"),
    ("ip link set END nomaster", "D311"),
    ("ip link set END down", "D313"),
    ("INSIDE ip link set eth0 down", "D314"),
    (
        "nft 'add table ip f; add chain ip f fw { type filter hook forward priority 5; policy drop; }'",
        "D401",
    ),
    (
        "nft 'add table inet f; add chain inet f fw { type filter hook forward priority 5; }; add rule inet f fw ip saddr 10.184.0.0/16 drop'",
        "D402",
    ),
    (
        "nft 'add table ip f; add chain ip f fw { type filter hook forward priority 5; }; add rule ip f fw oifname pods0 reject'",
        "D402",
    ),
    (
        "nft 'add table ip f; add chain ip f pre { type filter hook prerouting priority -400; }; add rule ip f pre iifname pods0 drop'",
        "D403",
    ),
    ("ip addr flush dev pods0", "D501"),
    ("INSIDE ip addr flush dev eth0", "D502"),
    ("INSIDE ip route del default", "D504"),
    ("INSIDE ip route replace default via 10.184.1.250", "D505"),
    ("nft delete table inet cni_multi_masquerade", "D506"),
];

/// How many containers are broken.
const CONTAINERS: usize = 10;

fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let given = std::env::var("CNI_SEED").ok();
    given.map_or_else(
        || u64::try_from(now % 1_000_000_007).unwrap(),
        |seed| seed.parse().expect("CNI_SEED is a number"),
    )
}

/// The faults in the order of a seed (a linear congruential generator, Fisher-Yates).
fn shuffled(seed: u64) -> Vec<(&'static str, &'static str)> {
    let mut faults = FAULTS.to_vec();
    let mut state = seed;
    for end in (1..faults.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = usize::try_from(state >> 33).unwrap() % (end + 1);
        faults.swap(at, end);
    }
    faults
}

fn break_and_repair(site: &Site, (fault, code): (&str, &str)) {
    let container = site.attached("pods");
    let name = container.netns.rsplit('/').next().unwrap();
    assert_pings(&container, OUTSIDE[0]);
    assert_eq!(site.findings(name), [Value::Null; 0], "before {fault}");
    let inside = format!("nsenter --net={}", container.netns);
    site.lab.host.sh(&fault.replace("INSIDE", &inside).replace("END", END));
    assert_no_ping(&container, OUTSIDE[0]);
    let findings = site.findings(name);
    assert_eq!(findings[0]["code"], code, "after {fault}: {findings:#?}");
    site.fix(&findings[0]);
    assert_pings(&container, OUTSIDE[0]);
    assert_eq!(site.findings(name), [Value::Null; 0], "after the fix of {fault}");
    let gone = site.run(&format!("net del pods {}", container.netns));
    assert!(gone.status.success(), "{gone:?}");
    site.lab.host.sh("nft delete table ip f; nft delete table inet f; true");
}

#[test]
fn ten_broken_containers_are_repaired_by_the_first_fix() {
    let seed = seed();
    eprintln!("CNI_SEED={seed}"); // shown when the test fails
    let site = Site::empty();
    let plugin = json!({"type": "bridge", "bridge": "pods0", "isDefaultGateway": true,
        "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.184.1.0/24"}});
    site.configure("pods", &json!([plugin]));
    for fault in shuffled(seed).into_iter().take(CONTAINERS) {
        eprintln!("{} by {}", fault.1, fault.0);
        break_and_repair(&site, fault);
    }
}

/// The list in its own order, so that each fault is tried by every run.
#[test]
fn every_fault_of_the_list_is_repaired_by_the_first_fix() {
    let site = Site::empty();
    let plugin = json!({"type": "bridge", "bridge": "pods0", "isDefaultGateway": true,
        "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.184.1.0/24"}});
    site.configure("pods", &json!([plugin]));
    FAULTS.into_iter().for_each(|fault| break_and_repair(&site, fault));
}
