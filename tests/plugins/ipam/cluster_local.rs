//! cluster-local on one machine: addresses that the networks of one realm never share. The rows of
//! this file and of `realm`, `scope`, `sticky` and `operators` have the scope `machine`.

pub mod cluster;
mod configurations;
#[cfg(feature = "cluster")]
mod conflicts;
#[cfg(feature = "cluster")]
mod copies;
#[cfg(feature = "cluster")]
mod daemon;
#[cfg(feature = "cluster")]
mod daemon_faults;
#[cfg(feature = "cluster")]
mod etcd;
#[cfg(feature = "cluster")]
mod etcd_access;
#[cfg(feature = "cluster")]
mod etcd_failures;
#[cfg(feature = "cluster")]
mod etcd_fake;
#[cfg(feature = "cluster")]
mod figures;
#[cfg(feature = "cluster")]
mod join;
#[cfg(feature = "cluster")]
mod metrics;
#[cfg(feature = "cluster")]
mod names;
mod operators;
#[cfg(feature = "cluster")]
mod oracle;
mod realm;
#[cfg(feature = "cluster")]
mod reclaim;
#[cfg(feature = "cluster")]
mod recover;
#[cfg(feature = "cluster")]
mod rotation;
mod scope;
mod sticky;
#[cfg(feature = "cluster")]
mod told;
#[cfg(feature = "cluster")]
mod two_hosts;
mod usual_path;

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, ips, with};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::networks::bridge;
use crate::support::scratch::Scratch;
use crate::support::table::cells;

/// A network in a data directory that other networks of the test may share.
pub struct Net<'a> {
    data: &'a Scratch,
    name: &'a str,
    ipam: Value,
}

impl<'a> Net<'a> {
    pub fn new(data: &'a Scratch, name: &'a str, ipam: Value) -> Net<'a> {
        Net { data, name, ipam }
    }

    pub fn conf(&self, changes: Value) -> Value {
        let usual =
            json!({"type": "cluster-local", "scope": "machine", "dataDir": self.data.text()});
        let ipam = with(&usual, self.ipam.clone());
        let conf =
            json!({"cniVersion": "1.1.0", "name": self.name, "type": "bridge", "ipam": ipam});
        with(&conf, changes)
    }

    pub fn call(&self, command: &str, id: &str) -> Call {
        self.call_with(command, id, json!({}))
    }

    pub fn call_with(&self, command: &str, id: &str, changes: Value) -> Call {
        Call::new(&Peer::Ours, "cluster-local", command, self.conf(changes).to_string())
            .env("CNI_CONTAINERID", id)
    }

    pub fn try_add(&self, id: &str) -> Outcome {
        self.call("ADD", id).run()
    }

    /// The addresses of a new attachment.
    #[track_caller]
    pub fn add(&self, id: &str) -> String {
        ips(&self.try_add(id).ok()).join(" ")
    }

    /// The addresses of several, whose ids are separated by spaces.
    #[track_caller]
    pub fn add_all(&self, ids: &str) -> Vec<String> {
        ids.split(' ').map(|id| self.add(id)).collect()
    }

    #[track_caller]
    pub fn del(&self, id: &str) {
        self.call("DEL", id).run().ok();
    }

    /// The directory of the realm, which is shared.
    pub fn dir(&self) -> PathBuf {
        self.data.join(".machine").join(self.ipam["realm"].as_str().unwrap_or("default"))
    }

    /// The addresses that are leased to the network, sorted.
    pub fn leases(&self) -> BTreeSet<IpAddr> {
        let names = fs::read_dir(self.dir()).unwrap().map(|entry| entry.unwrap().file_name());
        let leased: Vec<IpAddr> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
        let is_own = |ip: &IpAddr| {
            let lease = fs::read_to_string(self.dir().join(ip.to_string())).unwrap();
            lease.rsplit("\r\n").next() == Some(self.name)
        };
        leased.into_iter().filter(is_own).collect()
    }
}

pub fn subnet(subnet: &str) -> Value {
    json!({"ranges": [[{"subnet": subnet}]]})
}

#[test]
fn addresses_go_round_and_exclusions_are_left_out() {
    let data = Scratch::new();
    let range = json!({"subnet": "10.1.0.0/28", "rangeStart": "10.1.0.3", "gateway": "10.1.0.5",
        "exclude": ["10.1.0.4", "10.1.0.8/30"]});
    let net =
        Net::new(&data, "net", json!({"ranges": [[range]], "routes": [{"dst": "0.0.0.0/0"}]}));
    let result = net.try_add("a").ok();
    assert_eq!(result["ips"], json!([{"address": "10.1.0.3/28", "gateway": "10.1.0.5"}]));
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0"}]));
    let given = net.add_all("b c d e f");
    assert_eq!(given, ["10.1.0.6", "10.1.0.7", "10.1.0.12", "10.1.0.13", "10.1.0.14"]);
    let full = net.try_add("g").fails(101, "of 6 leases are of containers that are gone");
    let said = "no IP addresses available in range set: 10.1.0.3-10.1.0.14";
    assert!(full.msg.ends_with(said), "{full:?}");
    net.del("c");
    net.del("b");
    assert_eq!(net.add("g"), "10.1.0.6", "the round robin has come to the end");
}

#[test]
fn two_families_and_requested_addresses() {
    let data = Scratch::new();
    let ipam = json!({"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]});
    let net = Net::new(&data, "net", ipam);
    assert_eq!(net.add("a"), "10.1.0.2 fd00:1::2");
    let wanted = json!({"runtimeConfig": {"ips": ["10.1.200.7/16", "fd00:1::9:9"]}});
    let result = net.call_with("ADD", "b", wanted.clone()).run().ok();
    assert_eq!(ips(&result).join(" "), "10.1.200.7 fd00:1::9:9");
    let taken = net.call_with("ADD", "c", wanted).run();
    taken.fails(101, "requested IP address 10.1.200.7 is not available");
    let by_args = net.call("ADD", "d").env("CNI_ARGS", "IP=10.1.0.99").run().ok();
    assert_eq!(ips(&by_args)[0], "10.1.0.99");
    assert_eq!(net.leases().len(), 6, "a failed ADD keeps nothing");
}

#[test]
fn one_attachment_has_one_address_and_check_knows_it() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", subnet("10.1.0.0/24"));
    let result = net.try_add("a").ok();
    net.try_add("a").fails(102, "cni-multi net del net");
    let check = |id: &str| net.call_with("CHECK", id, json!({"prevResult": result})).run();
    check("a").ok();
    assert_eq!(check("b").err().code, 103);
    let interface = net.call("ADD", "a").env("CNI_IFNAME", "net1").run().ok();
    assert_eq!(ips(&interface), ["10.1.0.3"]);
    // DEL needs nothing but the name and the directory.
    let broken = json!({"ipam": {"ranges": "nonsense", "realm": 5}});
    net.call_with("DEL", "a", broken).run().ok();
    assert_eq!(net.leases().len(), 1);
    net.del("unknown");
}

#[test]
fn gc_releases_leases() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", subnet("10.1.0.0/24"));
    for id in 0..12 {
        net.add(&format!("c{id}"));
    }
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c0", "ifname": "eth0"}]});
    net.call_with("GC", "x", valid).run().ok();
    assert_eq!(net.leases().len(), 1);
    net.call_with("GC", "x", json!({})).run().ok();
    assert_eq!(net.leases().len(), 1, "without a list nothing is stale");
}

#[test]
fn leases_of_an_earlier_boot_are_free() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", subnet("10.1.0.0/29"));
    net.add_all("a b c d e");
    assert_eq!(net.try_add("f").err().code, 101);
    // The machine has booted: the index is not of this boot either.
    fs::write(net.dir().join("boot"), "00000000-1111-2222-3333-444444444444\n").unwrap();
    fs::remove_dir_all(data.join(".machine/.cni-multi")).unwrap();
    net.add("f");
    assert_eq!(net.leases().len(), 1);
    net.del("a");
}

const MISTAKES: &str = r#"
{"ranges": []} | ipam.ranges: there is none
{"ranges": [[{"subnet": "10.1.0.0/31"}]]} | ipam.ranges[0][0].subnet
{"ranges": [[{"subnet": "10.1.0.0/24", "exclude": ["10.1.0.300"]}]]} | ipam.ranges[0][0].exclude[0]: "10.1.0.300" is neither an address nor a subnet, expected one as in 10.88.7.7 or 10.88.9.0/24
{"ranges": [[{"subnet": "10.1.0.0/24", "exclude": ["10.1.0.0/24"]}]]} | every address of range set 0
{"subnet": "10.1.0.0/24", "exclude": ["x"]} | ipam.exclude[0]
{"subnet": "10.1.0.0/24", "realm": "a/b"} | ipam.realm: "a/b" is not a valid name
{"subnet": "10.1.0.0/24", "blockSize": "/26"} | ipam.blockSize: "/26" is not a size of blocks, expected auto, 1, 8 or 64
{"subnet": "10.1.0.0/24", "spare": 65} | ipam.spare: 65 is out of range, expected 0 to 64
{"subnet": "10.1.0.0/24", "patience": 61} | ipam.patience: 61 is out of range, expected 0 to 60
{"subnet": "10.1.0.0/24", "sticky": "pods"} | ipam.sticky: unknown setting "pods", expected none, pod, or arg:
{"subnet": "10.1.0.0/24", "spare": -1} | ipam.spare
{"subnet": "10.1.0.0/24", "scope": "node"} | ipam.scope: unknown scope "node", expected cluster or machine
{"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/16"}]]} | overlaps with
"#;

#[test]
fn mistakes_are_refused_and_named() {
    let data = Scratch::new();
    for [ipam, said] in cells(MISTAKES) {
        let error = Net::new(&data, "net", serde_json::from_str(ipam).unwrap()).try_add("a").err();
        assert!(matches!(error.code, 6 | 7), "{ipam}: {error:?}");
        assert!(error.text().contains(said), "{ipam}: {error:?} has no {said:?}");
        assert!(!data.join("net").exists() && !data.join(".machine").exists(), "{ipam}");
    }
}

#[test]
fn status_says_that_a_pool_is_full_or_that_its_directory_cannot_be_used() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", subnet("10.1.0.0/29"));
    let status = || net.call("STATUS", "x").run();
    status().assert_is(0, "", "");
    assert!(!net.dir().exists(), "STATUS makes nothing");
    net.add_all("a b c d e");
    let full = status();
    let said = "no IP addresses available in range set: 10.1.0.1-10.1.0.6";
    assert!(full.status == 0 && full.stderr.contains(said), "{full:?}");
    net.del("c");
    status().assert_is(0, "", "");
    fs::remove_dir_all(data.join(".machine")).unwrap();
    fs::write(data.join(".machine"), "").unwrap();
    let error = status().fails(50, "use directory ");
    assert!(error.msg.ends_with("for leases: not a directory"), "{error:?}");
}

#[test]
fn two_containers_on_a_bridge_reach_each_other() {
    for_ours("cluster-local", |lab| {
        let ipam = json!({"type": "cluster-local", "scope": "machine",
            "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]});
        let conf = with(&bridge::dual_stack(), json!({"ipam": null}));
        let conf = with(&conf, json!({"ipam": ipam}));
        let (one, other) = (lab.container(), lab.container());
        let first = lab.attach(&one, &conf).id("one");
        let result = first.add();
        let second = lab.attach(&other, &conf).id("other");
        let there = ips(&second.add());
        assert_eq!(there, ["10.1.0.3", "fd00:1::3"]);
        for ip in there {
            let ip = ip.split('/').next().unwrap();
            one.sh(&format!("ping -c 1 -W 2 {ip}"));
        }
        first.check(&result).ok();
        first.del();
        second.del();
    });
}
