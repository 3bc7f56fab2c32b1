//! whereabouts: cluster-local by the configurations of the plugin of that name.

mod import;

use std::fs;

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, ips, with};
use crate::support::call::{Call, Peer};
use crate::support::netns::{Container, Lab};
use crate::support::scratch::Scratch;
use crate::support::table::cells;

/// A call of the plugin of this configuration, with its leases in this directory.
fn call(data: &Scratch, network: &str, ipam: &Value, at: (&str, &str)) -> Call {
    call_with(data, network, ipam, at, json!({}))
}

/// The same with changes of the configuration around it.
fn call_with(
    data: &Scratch,
    network: &str,
    ipam: &Value,
    (command, id): (&str, &str),
    changes: Value,
) -> Call {
    let ipam = with(ipam, json!({"dataDir": data.text()}));
    let kind = ipam["type"].as_str().unwrap().to_owned();
    let conf = json!({"cniVersion": "1.1.0", "name": network, "type": "bridge", "ipam": ipam});
    Call::new(&Peer::Ours, &kind, command, with(&conf, changes).to_string())
        .env("CNI_CONTAINERID", id)
}

/// A configuration for one machine: addresses of a cluster need its daemon.
fn whereabouts(members: Value) -> Value {
    with(&json!({"type": "whereabouts", "scope": "machine"}), members)
}

/// The addresses that a new attachment gets.
#[track_caller]
fn add(data: &Scratch, network: &str, ipam: &Value, id: &str) -> String {
    ips(&call(data, network, ipam, ("ADD", id)).run().ok()).join(" ")
}

/// In the shape of those in the original's README and documents, with the addresses of the first attachment.
const CONFIGURATIONS: &str = r#"
{"range": "192.168.2.225/28", "exclude": ["192.168.2.224/30", "192.168.2.236/32"]} | 192.168.2.228
{"range": "2001::0/116", "gateway": "2001::f:1"} | 2001::1
{"ipRanges": [{"range": "192.168.10.1/24"}, {"range": "176.168.10.1/16"}]} | 192.168.10.1 176.168.0.1
{"ipRanges": [{"range": "192.168.10.1/24"}, {"range": "176.168.10.1/16"}], "range": "abcd::1/64"} | abcd::1 192.168.10.1 176.168.0.1
{"ipRanges": [{"range": "192.168.10.1/24"}, {"range": "abcd::1/64"}]} | 192.168.10.1 abcd::1
{"range": "192.168.2.225-192.168.2.230/28"} | 192.168.2.225
{"range": "10.5.0.0/20", "node_slice_size": "/24"} | 10.5.0.1
{"range": "192.168.2.225/28", "datastore": "kubernetes", "log_level": "debug", "log_file": "/tmp/whereabouts.log", "leader_lease_duration": 1500, "sleep_for_race": 0, "kubernetes": {"kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}, "reconciler_cron_expression": "30 4 * * *"} | 192.168.2.225
"#;

#[test]
fn configurations_like_those_of_the_original_are_served() {
    for [ipam, expected] in cells(CONFIGURATIONS) {
        let conf = whereabouts(serde_json::from_str(ipam).unwrap());
        assert_eq!(add(&Scratch::new(), "net", &conf, "a"), expected, "{ipam}");
    }
}

#[test]
fn a_result_has_gateways_routes_names_and_assigned_addresses() {
    let data = Scratch::new();
    let ipam = whereabouts(json!({
        "range": "10.1.0.0/29", "ipRanges": [{"range": "fd00:1::/64"}], "gateway": "10.1.0.1",
        "routes": [{"dst": "10.0.0.0/8", "gw": "10.1.0.6"}], "dns": {"nameservers": ["10.1.0.1"]},
        "addresses": [{"address": "10.1.0.2/29"}, {"address": "10.9.0.2/24", "gateway": "10.9.0.1"}],
    }));
    let args = "IgnoreUnknown=1;K8S_POD_UID=7;IP=10.8.0.2/24";
    let result = call(&data, "net", &ipam, ("ADD", "a")).env("CNI_ARGS", args).run().ok();
    assert_eq!(
        result,
        json!({
            "cniVersion": "1.1.0",
            "ips": [
                {"address": "10.1.0.3/29", "gateway": "10.1.0.1"},
                {"address": "fd00:1::1/64"},
                {"address": "10.1.0.2/29"},
                {"address": "10.9.0.2/24", "gateway": "10.9.0.1"},
                {"address": "10.8.0.2/24"},
            ],
            "routes": [{"dst": "10.0.0.0/8", "gw": "10.1.0.6"}],
            "dns": {"nameservers": ["10.1.0.1"]},
        })
    );
    let check = |prev: Value| {
        call_with(&data, "net", &ipam, ("CHECK", "a"), json!({"prevResult": prev})).run()
    };
    check(result.clone()).ok();
    let other = check(with(&result, json!({"ips": [{"address": "10.1.0.4/29"}]})));
    other.fails(103, "10.1.0.4 of prevResult is not held");
}

#[test]
fn a_full_range_and_a_freed_address() {
    let data = Scratch::new();
    let ipam = whereabouts(json!({"range": "10.1.0.0/30"}));
    assert_eq!(["a", "b"].map(|id| add(&data, "net", &ipam, id)), ["10.1.0.1", "10.1.0.2"]);
    assert_eq!(call(&data, "net", &ipam, ("ADD", "c")).run().err().code, 101);
    call(&data, "net", &whereabouts(json!({"range": "invalid"})), ("DEL", "a")).run().ok();
    assert_eq!(add(&data, "net", &ipam, "c"), "10.1.0.1");
    let status = call(&data, "net", &ipam, ("STATUS", "")).run();
    assert!(status.stderr.contains("no IP addresses available"), "{status:?}");
}

#[test]
fn ranges_that_overlap_exclude_each_other_unless_told_not_to() {
    let ranges = ["10.1.0.0/29", "10.1.0.0/28"].map(|range| json!({"range": range}));
    let [narrow, wide] = ranges.map(whereabouts);
    let data = Scratch::new();
    assert_eq!(add(&data, "a", &narrow, "x"), "10.1.0.1");
    assert_ne!(add(&data, "b", &wide, "x"), "10.1.0.1");
    let ranges = json!([[{"subnet": "10.1.0.0/29", "gateway": "10.1.0.6"}]]);
    let shared = json!({"type": "cluster-local", "scope": "machine", "ranges": ranges});
    assert_ne!(add(&data, "c", &shared, "x"), "10.1.0.1", "types share the realm");

    let data = Scratch::new();
    let apart = |ipam: &Value| with(ipam, json!({"enable_overlapping_ranges": false}));
    assert_eq!(add(&data, "a", &apart(&narrow), "x"), "10.1.0.1");
    assert_eq!(add(&data, "b", &apart(&wide), "x"), "10.1.0.1");
    assert_ne!(add(&data, "c", &apart(&narrow), "x"), "10.1.0.1", "equal ranges have one realm");
    let named = with(&narrow, json!({"network_name": "blue"}));
    assert_eq!(add(&data, "d", &named, "x"), "10.1.0.1");
}

/// The number of leases in a realm.
fn leases(data: &Scratch, realm: &str) -> usize {
    let files = fs::read_dir(data.join(".machine").join(realm)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).count()
}

/// Each range has its own realm, and the attachment an address of each.
#[test]
fn ranges_in_realms_of_their_own_attach_together_or_not_at_all() {
    let data = Scratch::new();
    let both = |v6: &str| {
        whereabouts(json!({"range": "10.1.0.0/29", "ipRanges": [{"range": v6}],
            "enable_overlapping_ranges": false, "routes": [{"dst": "10.0.0.0/8"}]}))
    };
    let (one, other) = (both("fd00:1::/126"), both("fd00:2::/126"));
    let result = call(&data, "a", &one, ("ADD", "x")).run().ok();
    assert_eq!(ips(&result), ["10.1.0.1", "fd00:1::1"]);
    assert_eq!(result["routes"], json!([{"dst": "10.0.0.0/8"}]));
    assert_eq!(add(&data, "b", &other, "x"), "10.1.0.2 fd00:2::1");
    assert_eq!(add(&data, "b", &other, "y"), "10.1.0.3 fd00:2::2");
    assert_eq!(call(&data, "b", &other, ("ADD", "z")).run().err().code, 101);
    assert_eq!(leases(&data, "default.range-10.1.0.0-29"), 3, "a failed ADD leaves nothing");
    call(&data, "a", &one, ("DEL", "x")).run().ok();
    let realms = ["10.1.0.0-29", "fd00-1---126", "fd00-2---126"];
    assert_eq!(realms.map(|range| leases(&data, &format!("default.range-{range}"))), [2, 0, 2]);
}

/// Two interfaces of a pod may be of one network by two configurations.
#[test]
fn two_configurations_of_one_name_are_served() {
    let data = Scratch::new();
    let [one, other] =
        ["10.1.0.0/24", "10.2.0.0/24"].map(|range| whereabouts(json!({"range": range})));
    let interface = |ipam: &Value, command: &str, ifname: &str| {
        call(&data, "net", ipam, (command, "a")).env("CNI_IFNAME", ifname).run().ok()
    };
    assert_eq!(ips(&interface(&one, "ADD", "net1")), ["10.1.0.1"]);
    assert_eq!(ips(&interface(&other, "ADD", "net2")), ["10.2.0.1"]);
    assert_eq!(add(&data, "net", &one, "b"), "10.1.0.2");
    interface(&other, "DEL", "net1");
    interface(&one, "DEL", "net2");
    assert_eq!(leases(&data, "default"), 1);
}

#[test]
fn a_network_changes_its_type_and_keeps_its_leases() {
    let data = Scratch::new();
    let before = whereabouts(json!({"range": "10.1.0.0/28", "gateway": "10.1.0.1"}));
    let after = json!({"type": "cluster-local", "scope": "machine",
        "ranges": [[{"subnet": "10.1.0.0/28"}]]});
    assert_eq!(add(&data, "net", &before, "a"), "10.1.0.2");
    assert_eq!(add(&data, "net", &after, "b"), "10.1.0.3");
    let prev = json!({"prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/28"}]}});
    call_with(&data, "net", &after, ("CHECK", "a"), prev).run().ok();
    call(&data, "net", &after, ("DEL", "a")).run().ok();
    call(&data, "net", &before, ("DEL", "b")).run().ok();
    assert_eq!(leases(&data, "default"), 0);
}

#[test]
fn versions_are_all_and_errors_are_objects() {
    let data = Scratch::new();
    let versions = call(&data, "net", &whereabouts(json!({})), ("VERSION", "")).run().ok();
    assert_eq!(versions["supportedVersions"].as_array().unwrap().last().unwrap(), "1.1.0");
    for command in ["ADD", "STATUS"] {
        let wrong = call(&data, "net", &whereabouts(json!({"range": "x"})), (command, "a")).run();
        wrong.fails(7, "ipam.range: \"x\" is not a range");
    }
}

/// The configuration of a network, which may be another person's, decides neither whom the daemon
/// connects to nor which key files it reads.
#[test]
fn endpoints_of_a_network_have_no_effect() {
    let data = Scratch::new();
    let ipam = whereabouts(json!({"range": "10.1.0.0/24", "etcd_host": "etcd:2379",
        "etcd_key_file": "/etc/shadow", "scope": "cluster"}));
    let refused = call(&data, "net", &ipam, ("ADD", "a")).run();
    refused.fails(11, "run the IPAM daemon, or set \"scope\"");
    call(&data, "net", &ipam, ("DEL", "a")).run().ok();
    assert_eq!(add(&data, "net", &with(&ipam, json!({"scope": "machine"})), "a"), "10.1.0.1");
}

fn macvlan() -> Value {
    json!({"cniVersion": "1.1.0", "name": "storage", "type": "macvlan", "master": "uplink",
        "ipam": {"type": "whereabouts", "scope": "machine", "range": "10.87.0.0/24", "exclude": ["10.87.0.1"],
            "ipRanges": [{"range": "fd00:87::/64"}]}})
}

fn answers(from: &Container, to: &str) -> bool {
    from.try_sh(&format!("ping -c 1 -W 5 {to}")).status.success()
}

/// Attaches two containers, the second with keys of a flat file, and pings.
fn ping_over_macvlan(lab: &Lab) {
    let [red, blue] = [lab.container(), lab.container()];
    let first = lab.attach(&red, &macvlan());
    let result = first.add();
    assert_eq!(ips(&result), ["10.87.0.2", "fd00:87::1"]);
    lab.host.sh("mount -t tmpfs lab /etc && mkdir -p /etc/cni/net.d/whereabouts.d && \
         echo '{\"range\": \"10.1.1.1/24\", \"exclude\": [\"10.87.0.1\"]}' \
         >/etc/cni/net.d/whereabouts.d/whereabouts.conf");
    let second = lab.attach(&blue, &with(&macvlan(), json!({"ipam": {"exclude": null}})));
    assert_eq!(ips(&second.add()), ["10.87.0.3", "fd00:87::2"]);
    assert!(answers(&red, "10.87.0.3") && answers(&blue, "10.87.0.2"));
    assert!(answers(&red, "fd00:87::2"));
    first.check(&result).ok();
    first.del();
    first.del();
    second.gc(&[]).ok();
    let realm = lab.path("/var/lib/cni/cluster-local/.machine/default");
    let names = fs::read_dir(realm).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with("10.")).count(), 0);
}

#[test]
fn containers_on_one_segment_reach_each_other() {
    for_ours("macvlan", ping_over_macvlan);
}
