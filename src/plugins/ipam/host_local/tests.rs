//! The whole plugin, in a directory that each test has to itself.

mod disk;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::*;
use crate::cni::attachment::{ContainerId, IfName, Key};
use crate::cni::conf::Config;
use crate::cni::decode;
use crate::cni::env::Environment;
use crate::error::{Code, Error};
use crate::scratch::Scratch;
use crate::steps::allocation::Lease;
use crate::steps::allocation::files::index::{self, Index};
use crate::steps::allocation::files::lease;

/// A network `net` with its own data directory.
struct Net {
    scratch: Scratch,
    /// The members of `ipam` besides `dataDir`.
    ipam: String,
    /// Members of the configuration besides the common ones and `ipam`.
    more: String,
    version: &'static str,
    args: &'static str,
}

impl Net {
    fn new(ipam: &str) -> Net {
        Net {
            scratch: Scratch::new(),
            ipam: ipam.to_owned(),
            more: String::new(),
            version: "1.1.0",
            args: "",
        }
    }

    fn small() -> Net {
        Net::new(r#""ranges":[[{"subnet":"10.1.2.0/29"}]]"#) // .2 to .6
    }

    fn dual() -> Net {
        Net::new(
            r#""ranges":[[{"subnet":"10.1.2.0/24"},{"subnet":"10.2.2.0/24"}],[{"subnet":"2001:db8:1::/64"}]]"#,
        )
    }

    fn data_dir(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    fn dir(&self) -> PathBuf {
        self.data_dir().join("net")
    }

    fn config(&self) -> Config {
        let version = self.version;
        let ipam = &self.ipam;
        let more = &self.more;
        let data_dir = self.data_dir();
        let text = format!(
            r#"{{"cniVersion":"{version}","name":"net","ipam":{{"dataDir":{data_dir:?},{ipam}}}{more}}}"#
        );
        Config::parse(text.into_bytes()).unwrap()
    }

    /// Calls `call` with a context, as the runner does; validates the configuration if `valid`.
    fn with<T>(
        &self,
        valid: bool,
        call: impl FnOnce(&Context<'_>, &Conf) -> Result<T>,
    ) -> Result<T> {
        let config = self.config();
        let env = Environment::default();
        let cx = Context::new(&[], &config, &env, self.args, vec![]);
        let mut conf: Conf = decode::from_value(&config.value)?;
        if valid {
            conf.validate(&cx)?;
        }
        call(&cx, &conf)
    }

    fn key(&self, id: &str, ifname: &str) -> Key {
        Key {
            network: self.config().name,
            container_id: ContainerId::parse(id).unwrap(),
            ifname: IfName::parse(ifname).unwrap(),
        }
    }

    fn at(&self, id: &str, ifname: &str) -> Attachment {
        Attachment::new(self.key(id, ifname), String::new(), None)
    }

    fn add_to(&self, id: &str, ifname: &str) -> Result<Vec<String>> {
        let result = self.with(true, |cx, conf| HostLocal::add(cx, conf, &self.at(id, ifname)))?;
        Ok(result.ips.iter().map(|ip| ip.address.to_string()).collect())
    }

    fn add(&self, id: &str) -> Result<Vec<String>> {
        self.add_to(id, "eth0")
    }

    fn del(&self, id: &str) -> Result<()> {
        let at = Detachment {
            key: self.key(id, "eth0"),
            netns_path: String::new(),
            netns: None,
            prev_result: None,
        };
        self.with(false, |cx, conf| HostLocal::del(cx, conf, &at))
    }

    fn check(&self, id: &str) -> Result<()> {
        self.with(true, |cx, conf| HostLocal::check(cx, conf, &self.at(id, "eth0")))
    }

    fn status(&self) -> Result<()> {
        self.with(true, HostLocal::status)
    }

    /// What the error of an ADD says about full sets.
    fn advice(&self) -> Option<String> {
        let advice = |cx: &Context<'_>, conf: &Conf| {
            let (place, error) = (conf::place(cx), Error::new(Code::ADDRESS_UNAVAILABLE, "full"));
            let held = || place.taken_of(&full_sets(&place, &conf.allocation.sets)?);
            Ok(allocation::with_next_step(error, &self.at("a", "eth0"), held).details())
        };
        self.with(true, advice).ok().filter(|advice| !advice.is_empty())
    }

    fn gc(&self, valid: &[(&str, &str)]) -> Result<()> {
        let list: Vec<String> = valid
            .iter()
            .map(|(id, ifname)| format!(r#"{{"containerID":"{id}","ifname":"{ifname}"}}"#))
            .collect();
        let text = format!(r#"{{"name":"net","cni.dev/valid-attachments":[{}]}}"#, list.join(","));
        let valid = Config::parse(text.into_bytes()).unwrap().valid_attachments().unwrap().unwrap();
        self.with(false, |cx, conf| HostLocal::gc(cx, conf, &valid))
    }

    /// Writes a file into the network's directory, as the reference or any other program may.
    fn write(&self, name: &str, content: &str) {
        fs::create_dir_all(self.dir()).unwrap();
        fs::write(self.dir().join(name), content).unwrap();
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir().join(name)).ok()
    }

    /// The names in the network's directory, sorted.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir()).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn index(&self) -> Index {
        Index::new(&self.data_dir(), "net")
    }

    fn is_sealed(&self) -> bool {
        self.index().is_sealed(&self.dir())
    }

    /// Asserts that the index, if it claims to be complete, has every lease.
    #[track_caller]
    fn assert_index_is_right(&self) {
        if self.is_sealed() {
            for ip in lease::addresses(&self.dir()).unwrap() {
                if let Some(lease::Content::Owned(owner)) = lease::read(&self.dir(), ip).unwrap() {
                    let bucket = self.index().read(index::Bucket::of(&owner.container_id)).unwrap();
                    assert!(
                        bucket.contains(&Lease { ip, owner: owner.clone() }),
                        "{ip} of {owner:?} is not in {bucket:?}"
                    );
                }
            }
        }
    }
}

fn msg<T>(result: Result<T>) -> (u32, String) {
    let error = result.err().unwrap();
    (error.code.0, error.msg.clone())
}

#[test]
fn files_are_the_reference_s_to_the_byte() {
    let net = Net::dual();
    assert_eq!(net.add("dummy").unwrap(), ["10.1.2.2/24", "2001:db8:1::2/64"]);
    assert_eq!(
        net.names(),
        ["10.1.2.2", "2001:db8:1::2", "last_reserved_ip.0", "last_reserved_ip.1", "lock"]
    );
    assert_eq!(net.read("10.1.2.2").unwrap(), "dummy\r\neth0");
    assert_eq!(net.read("2001:db8:1::2").unwrap(), "dummy\r\neth0");
    assert_eq!(net.read("last_reserved_ip.0").unwrap(), "10.1.2.2");
    assert_eq!(net.read("last_reserved_ip.1").unwrap(), "2001:db8:1::2");
    let mode =
        |name: &str| fs::metadata(net.dir().join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(
        [mode("10.1.2.2"), mode("last_reserved_ip.0"), mode("lock"), mode("")],
        [0o600, 0o600, 0o750, 0o755]
    );
    net.check("dummy").unwrap();
    net.del("dummy").unwrap();
    assert_eq!(net.names(), ["last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
}

#[test]
fn the_result_has_gateways_routes_and_dns() {
    let mut net = Net::new(
        r#""subnet":"10.1.2.0/24","gateway":"10.9.9.9","routes":[{"dst":"0.0.0.0/0","gw":"10.1.2.7"}]"#,
    );
    let resolv_conf = net.scratch.path().join("resolv.conf");
    fs::write(&resolv_conf, "nameserver 192.0.2.3").unwrap();
    net.ipam += &format!(r#","resolvConf":{resolv_conf:?}"#);
    let result = net.with(true, |cx, conf| HostLocal::add(cx, conf, &net.at("a", "eth0"))).unwrap();
    assert_eq!(result.ips[0].gateway, Some("10.9.9.9".parse().unwrap()));
    assert_eq!(result.routes[0].gw, Some("10.1.2.7".parse().unwrap()));
    assert_eq!(result.dns.nameservers, ["192.0.2.3"]);
    fs::remove_file(&resolv_conf).unwrap();
    assert_eq!(net.add("b").unwrap_err().code, Code::IO);
    assert_eq!(net.names(), ["10.1.2.1", "last_reserved_ip.0", "lock"]);
}

#[test]
fn addresses_go_round() {
    let net = Net::small();
    let next = |id: &str| net.add(id).unwrap().remove(0);
    assert_eq!([next("a"), next("b")], ["10.1.2.2/29", "10.1.2.3/29"]);
    net.del("a").unwrap();
    assert_eq!(
        [next("c"), next("d"), next("e"), next("f")],
        ["10.1.2.4/29", "10.1.2.5/29", "10.1.2.6/29", "10.1.2.2/29"]
    );
    let full = (
        101,
        "failed to allocate for range 0: no IP addresses available in range set: 10.1.2.1-10.1.2.6"
            .to_owned(),
    );
    assert_eq!(msg(net.add("g")), full);
    assert_eq!(net.read("last_reserved_ip.0").unwrap(), "10.1.2.2");
    assert!(net.is_sealed());
    net.del("d").unwrap();
    assert_eq!(next("g"), "10.1.2.5/29");
}

#[test]
fn a_second_add_fails_unless_it_is_for_another_interface() {
    let net = Net::small();
    net.add_to("a", "eth0").unwrap();
    let refused = (
        102,
        "failed to allocate for range 0: 10.1.2.2 has been allocated to a, duplicate allocation is not allowed"
            .to_owned(),
    );
    assert_eq!(msg(net.add("a")), refused);
    assert_eq!(net.add_to("a", "eth1").unwrap(), ["10.1.2.3/29"]);
    net.del("a").unwrap();
    assert_eq!((net.read("10.1.2.2"), net.read("10.1.2.3").as_deref()), (None, Some("a\r\neth1")));
    assert_eq!(net.add("a").unwrap(), ["10.1.2.4/29"]);
    net.write("10.1.2.5", "old");
    assert_eq!(msg(net.add("old")).0, 102);
}

#[test]
fn requested_addresses_come_from_three_places() {
    let mut net = Net::dual();
    net.args = "IP=10.2.2.7/24;IgnoreUnknown=1;K8S_POD_NAME=x";
    assert_eq!(net.add("a").unwrap(), ["10.2.2.7/24", "2001:db8:1::2/64"]);
    net.args = "";
    net.more = r#","args":{"cni":{"ips":["10.1.2.88","2001:db8:1::999"]}}"#.into();
    assert_eq!(net.add("b").unwrap(), ["10.1.2.88/24", "2001:db8:1::999/64"]);
    assert_eq!(net.read("last_reserved_ip.0").unwrap(), "10.1.2.88");
    net.more = r#","runtimeConfig":{"ips":["2001:db8:1::77/64","2001:db8:1::77"]}"#.into();
    assert_eq!(net.add("c").unwrap(), ["10.1.2.89/24", "2001:db8:1::77/64"]);
}

#[test]
fn requested_addresses_that_cannot_be_had_leave_nothing_behind() {
    let mut net = Net::dual();
    net.add("other").unwrap();
    let before = net.names();
    for (ips, text) in [
        (
            r#""10.1.2.2""#,
            "failed to allocate for range 0: requested IP address 10.1.2.2 is not available in range set 10.1.2.1-10.1.2.254,10.2.2.1-10.2.2.254",
        ),
        (
            r#""10.2.2.1""#,
            "failed to allocate for range 0: requested ip 10.2.2.1 is subnet's gateway",
        ),
        (
            r#""10.1.2.9","2001:db8:1::2""#,
            "failed to allocate for range 1: requested IP address 2001:db8:1::2 is not available in range set 2001:db8:1::1-2001:db8:1:0:ffff:ffff:ffff:ffff",
        ),
        (
            r#""10.1.2.9","10.1.2.10","172.16.0.1""#,
            "failed to allocate all requested IPs: 10.1.2.10 172.16.0.1",
        ),
    ] {
        net.more = format!(r#","args":{{"cni":{{"ips":[{ips}]}}}}"#);
        assert_eq!(msg(net.add("a")), (101, text.to_owned()));
        assert_eq!(net.names(), before);
        net.assert_index_is_right();
        assert_eq!(net.index().read(index::Bucket::of("a")).unwrap(), []);
    }
    net.more.clear(); // the round robin continues after the addresses that were held briefly
    assert_eq!(net.add("a").unwrap(), ["10.1.2.10/24", "2001:db8:1::4/64"]);
}

#[test]
fn configurations_that_are_wrong_are_told_by_path() {
    for (ipam, more, text) in [
        (
            "\"ranges\":[]",
            "",
            "no IP ranges specified; ipam.ranges: there is none, expected at least one set with a range with a subnet",
        ),
        (
            r#""rangeStart":"10.1.0.5""#,
            "",
            "no IP ranges specified; ipam.ranges: there is none, expected at least one set with a range with a subnet",
        ),
        (
            r#""subnet":"10.2.0.0/16","rangeStart":"10.1.0.5""#,
            "",
            "invalid range set 0: RangeStart 10.1.0.5 not in network 10.2.0.0/16; ipam.rangeStart: 10.1.0.5 is outside subnet 10.2.0.0/16",
        ),
        (
            r#""ranges":[[{"subnet":"10.1.0.0/16"},{"subnet":"10.2.0.0/16","rangeStart":"10.1.0.5"}]]"#,
            "",
            "invalid range set 0: RangeStart 10.1.0.5 not in network 10.2.0.0/16; ipam.ranges[0][1].rangeStart: 10.1.0.5 is outside subnet 10.2.0.0/16",
        ),
        (r#""ranges":[[{"subnet":"x"}]]"#, "", "ipam.ranges[0][0].subnet: invalid CIDR address: x"),
        (
            r#""subnet":"10.1.0.0/16","ranges":[[{"subnet":"10.1.2.0/24"}]]"#,
            "",
            "range set 0 overlaps with 1; ipam.ranges[0]: 10.1.2.1-10.1.2.254 overlaps with 10.1.0.1-10.1.255.254 of ipam",
        ),
        (
            r#""ranges":[]"#,
            r#","runtimeConfig":{"ipRanges":[[{"subnet":"10.1.0.1/16"}]]}"#,
            "invalid range set 0: Network has host bits set. For a subnet mask of length 16 the network address is 10.1.0.0; runtimeConfig.ipRanges[0][0].subnet: 10.1.0.1/16 has host bits set, expected 10.1.0.0/16",
        ),
        (
            r#""subnet":"10.1.0.0/16""#,
            r#","args":{"cni":{"ips":["10.1.0.2",""]}}"#,
            "invalid IP address ; args.cni.ips[1]: \"\" is not an IP address",
        ),
    ] {
        let mut net = Net::new(ipam);
        net.more = more.to_owned();
        let error = net.add("a").unwrap_err();
        assert_eq!((error.code.0, error.to_string().as_str()), (7, text));
        assert!(!net.data_dir().exists());
    }
}

#[test]
fn args_that_are_wrong_are_told_in_the_reference_s_words() {
    let mut net = Net::small();
    net.args = "IP=x";
    assert_eq!(
        msg(net.add("a")),
        (4, "CNI_ARGS: error parsing value of pair \"IP=x\": invalid IP address x".to_owned())
    );
    net.args = "IP=";
    net.add("a").unwrap();
}

#[test]
fn runtime_ranges_come_first_then_the_single_range() {
    let mut net = Net::new(r#""subnet":"10.2.0.0/24","ranges":[[{"subnet":"10.3.0.0/24"}]]"#);
    net.more = r#","RuntimeConfig":{"ipRanges":[[{"subnet":"10.1.0.0/24"}]]}"#.into();
    assert_eq!(net.add("a").unwrap(), ["10.1.0.2/24", "10.2.0.2/24", "10.3.0.2/24"]);
    net.version = "0.2.0";
    assert_eq!(
        msg(net.add("b")),
        (7, "CNI version 0.2.0 does not support more than 1 address per family".to_owned())
    );
}

#[test]
fn del_of_what_is_not_there_succeeds_and_makes_nothing() {
    let net = Net::small();
    net.del("a").unwrap();
    assert!(!net.data_dir().exists());
    fs::write(net.data_dir(), "not a directory").unwrap();
    net.del("a").unwrap();
    let net = Net::small();
    net.add("a").unwrap();
    net.del("unknown").unwrap();
    assert!(net.read("10.1.2.2").is_some() && net.is_sealed());
}

#[test]
fn del_needs_neither_ranges_nor_args() {
    let mut net = Net::small();
    net.add("a").unwrap();
    net.ipam = r#""ranges":"nonsense""#.into();
    net.args = "nonsense";
    assert!(net.add("b").is_err());
    net.del("a").unwrap();
    assert_eq!(net.read("10.1.2.2"), None);
}

#[test]
fn leases_of_old_plugins_are_found_after_those_of_new_ones() {
    let net = Net::small();
    net.write("10.1.2.2", "a\n");
    net.write("10.1.2.3", "a\r\neth0");
    net.check("a").unwrap();
    net.del("a").unwrap();
    assert_eq!((net.read("10.1.2.2").as_deref(), net.read("10.1.2.3")), (Some("a\n"), None));
    net.check("a").unwrap();
    net.del("a").unwrap();
    assert_eq!(net.read("10.1.2.2"), None);
    assert_eq!(
        msg(net.check("a")),
        (103, "host-local: Failed to find address added by container a".to_owned())
    );
}

#[test]
fn check_compares_prev_result_with_the_leases() {
    let mut net = Net::small();
    assert_eq!(net.check("a").unwrap_err().code, Code::CHECK_FAILED);
    assert!(!net.data_dir().exists());
    net.add("a").unwrap();
    net.add("b").unwrap();
    let of_eth1 = net.with(true, |cx, conf| HostLocal::check(cx, conf, &net.at("a", "eth1")));
    assert_eq!(of_eth1.unwrap_err().code, Code::CHECK_FAILED);
    let prev_result = |ip: &str| {
        format!(r#","prevResult":{{"cniVersion":"1.1.0","ips":[{{"address":"{ip}"}}]}}"#)
    };
    net.more = prev_result("10.1.2.2/29");
    net.check("a").unwrap();
    let differs = (103, "address 10.1.2.2 of prevResult is not held by this container".to_owned());
    assert_eq!(msg(net.check("b")), differs);
    net.more = prev_result("192.0.2.2/29"); // another plugin's
    net.check("b").unwrap();
}

#[test]
fn gc_frees_what_is_not_valid_and_touches_nothing_else() {
    let net = Net::small();
    net.add_to("valid", "eth0").unwrap();
    net.add_to("valid", "eth1").unwrap();
    net.write("10.1.2.4", "old-valid");
    net.write("10.1.2.5", "old-stale");
    net.write("10.1.2.6", "");
    net.write("10.9.9.9", "out-of-range\r\neth0");
    net.write("10.9.9.10", "what is this");
    net.write("notes", "stale\r\neth0");
    net.gc(&[("valid", "eth0"), ("old-valid", "eth7")]).unwrap();
    assert_eq!(
        net.names(),
        ["10.1.2.2", "10.1.2.4", "10.9.9.10", "last_reserved_ip.0", "lock", "notes"]
    );
    net.assert_index_is_right();
    assert!(net.is_sealed());
    net.gc(&[]).unwrap();
    assert_eq!(net.names(), ["10.9.9.10", "last_reserved_ip.0", "lock", "notes"]);
    let nowhere = Net::small();
    nowhere.gc(&[]).unwrap();
    assert!(!nowhere.data_dir().exists());
}

#[test]
fn status_fails_for_an_unusable_directory_and_no_full_set() {
    let net = Net::small();
    net.status().unwrap();
    assert!(!net.data_dir().exists());
    for number in 2..7 {
        assert_eq!(net.advice(), None);
        net.write(&format!("10.1.2.{number}"), "a\r\neth0");
    }
    net.status().unwrap();
    let advice = net.advice().unwrap();
    assert!(advice.contains("5 leases are of containers"), "{advice}");
    net.write("10.1.2.4", ""); // free for the next ADD
    assert_eq!(net.advice(), None);
    net.write("10.1.2.4", "what is this");
    assert!(net.advice().is_some());
    fs::remove_dir_all(net.data_dir()).unwrap();
    fs::write(net.data_dir(), "").unwrap();
    let file = (50, format!("use directory {:?} for leases: not a directory", net.dir()));
    assert_eq!(msg(net.status()), file);
    fs::remove_file(net.data_dir()).unwrap();
    fs::create_dir_all(net.data_dir()).unwrap();
    fs::write(net.dir(), "").unwrap();
    assert_eq!(msg(net.status()), file);
}

#[test]
fn a_set_that_is_dense_is_looked_at_once() {
    let net = Net::new(r#""ranges":[[{"subnet":"10.1.0.0/16"}],[{"subnet":"fd00::/16"}]]"#);
    for number in 2..400 {
        net.write(&format!("10.1.{}.{}", number / 256, number % 256), "x\r\neth0");
        net.write(&format!("fd00::{number:x}"), "x\r\neth0");
    }
    assert_eq!(net.add("a").unwrap(), ["10.1.1.144/16", "fd00::190/16"]);
    net.status().unwrap();
}
