//! host-local assigns the next free address and shares its files with the reference, name for name
//! and byte for byte.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_each_peer, for_ours, ips, with};
use crate::support::call::Peer;
use crate::support::failed_add::rows;
use crate::support::netns::Lab;
use crate::support::networks::host_local::{STORE, leases};
use crate::support::table::cells;

/// A network of host-local alone; `ranges` is the value in the configuration.
pub fn ranges(ranges: Value) -> Value {
    json!({"cniVersion": "1.0.0", "name": "net1", "type": "host-local", "ipam": {"type": "host-local", "ranges": ranges}})
}

pub fn subnet(subnet: &str) -> Value {
    ranges(json!([[{"subnet": subnet}]]))
}

/// Adds a container with this ID and returns its address.
fn address(lab: &Lab, conf: &Value, id: &str) -> String {
    ips(&lab.attach(&lab.container(), conf).id(id).add()).join(" ")
}

fn delete(lab: &Lab, conf: &Value, id: &str) {
    lab.attach(&lab.container(), conf).id(id).del();
}

#[test]
fn result_and_files_are_those_of_the_reference() {
    for_each_peer("host-local", |lab| {
        let conf = with(
            &ranges(
                json!([[{"subnet": "10.1.2.0/24"}, {"subnet": "10.2.2.0/24"}], [{"subnet": "2001:db8:1::/64"}]]),
            ),
            json!({"ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "192.168.0.0/16", "gw": "1.1.1.1"}, {"dst": "2001:db8:2::/64", "gw": "2001:db8:3::1"}]}}),
        );
        let attachment = lab.attach(&lab.container(), &conf).id("dummy");
        let result = attachment.add();
        let expected = json!({
            "cniVersion": "1.0.0",
            "ips": [{"address": "10.1.2.2/24", "gateway": "10.1.2.1"}, {"address": "2001:db8:1::2/64", "gateway": "2001:db8:1::1"}],
            "routes": conf["ipam"]["routes"],
        });
        assert_eq!(result, expected);
        for (name, content, mode) in [
            ("10.1.2.2", "dummy\r\neth0", 0o600),
            ("2001:db8:1::2", "dummy\r\neth0", 0o600),
            ("last_reserved_ip.0", "10.1.2.2", 0o600),
            ("last_reserved_ip.1", "2001:db8:1::2", 0o600),
            ("lock", "", 0o750),
        ] {
            let path = lab.path(&format!("{STORE}/{name}"));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content, "{name}");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, mode, "{name}");
        }
        assert_eq!(lab.path(STORE).metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        attachment.check(&result).ok();
        attachment.del();
        assert_eq!(leases(lab), [""; 0]);
        assert_eq!(
            std::fs::read_to_string(lab.path(&format!("{STORE}/last_reserved_ip.0"))).unwrap(),
            "10.1.2.2"
        );
        attachment.check(&result).err();
    });
}

#[test]
fn every_version_gets_a_result_of_its_shape() {
    for_each_peer("host-local", |lab| {
        for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let conf = with(
                &ranges(json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8:1::/64"}]])),
                json!({"cniVersion": version, "name": version}),
            );
            let result = lab.attach(&lab.container(), &conf).add();
            let expected = match version {
                "0.1.0" | "0.2.0" => json!({
                    "cniVersion": version, "dns": {},
                    "ip4": {"ip": "10.1.2.2/24", "gateway": "10.1.2.1"}, "ip6": {"ip": "2001:db8:1::2/64", "gateway": "2001:db8:1::1"},
                }),
                "0.3.0" | "0.3.1" | "0.4.0" => json!({
                    "cniVersion": version, "dns": {},
                    "ips": [
                        {"version": "4", "address": "10.1.2.2/24", "gateway": "10.1.2.1"},
                        {"version": "6", "address": "2001:db8:1::2/64", "gateway": "2001:db8:1::1"},
                    ],
                }),
                _ => json!({
                    "cniVersion": version,
                    "ips": [{"address": "10.1.2.2/24", "gateway": "10.1.2.1"}, {"address": "2001:db8:1::2/64", "gateway": "2001:db8:1::1"}],
                }),
            };
            assert_eq!(result, expected);
        }
    });
}

/// Each step adds a container (`+a`, then its address or `full`) or deletes one (`-a`).
#[test]
fn addresses_are_given_in_turn() {
    let cases = r#"
from the start, past the gateway | [[{"subnet": "10.0.0.0/29"}]] | +a 10.0.0.2, +b 10.0.0.3
an address that came back waits its turn | [[{"subnet": "10.0.0.0/29"}]] | +a 10.0.0.2, -a, +a 10.0.0.3, -a, +b 10.0.0.4
around the end, never broadcast, the last one last | [[{"subnet": "10.0.0.0/29"}]] | +a 10.0.0.2, +b 10.0.0.3, +c 10.0.0.4, +d 10.0.0.5, +e 10.0.0.6, +f full, -b, +f 10.0.0.3, -f, +g 10.0.0.3
rangeStart and rangeEnd | [[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.11"}]] | +a 10.0.0.10, +b 10.0.0.11, +c full, -a, +c 10.0.0.10
a gateway in the middle is skipped | [[{"subnet": "10.0.0.0/29", "gateway": "10.0.0.3"}]] | +a 10.0.0.1, +b 10.0.0.2, +c 10.0.0.4
on to the next range of the set, and around | [[{"subnet": "10.0.0.0/30"}, {"subnet": "10.0.1.0/30"}]] | +a 10.0.0.2, +b 10.0.1.2, +c full, -a, +c 10.0.0.2
the last address of a v6 subnet | [[{"subnet": "2001:db8::/126"}]] | +a 2001:db8::2, +b 2001:db8::3, +c full
one address of each set | [[{"subnet": "10.0.0.0/29"}], [{"subnet": "10.0.1.0/30"}], [{"subnet": "2001:db8::/64"}]] | +a 10.0.0.2 10.0.1.2 2001:db8::2, -a, +b 10.0.0.3 10.0.1.2 2001:db8::3, +c full
carry into the next octets | [[{"subnet": "10.0.0.0/16", "rangeStart": "10.0.0.255", "rangeEnd": "10.0.1.0"}]] | +a 10.0.0.255, +b 10.0.1.0
"#;
    for_each_peer("host-local", |lab| {
        for [what, sets, steps] in cells(cases) {
            lab.host.sh(&format!("rm -rf {STORE}"));
            let conf = ranges(serde_json::from_str(sets).unwrap());
            for step in steps.split(", ") {
                let (sign, rest) = step.split_at(1);
                let (id, expected) = rest.split_once(' ').unwrap_or((rest, ""));
                if sign == "-" {
                    delete(lab, &conf, id);
                } else if expected == "full" {
                    let held = leases(lab);
                    let outcome = lab.attach(&lab.container(), &conf).id(id).try_add();
                    let error = outcome.err();
                    assert!(
                        error.text().contains("no IP addresses available in range set")
                            || lab.peer == Peer::Ours,
                        "{error:?}"
                    );
                    assert!(lab.peer != Peer::Ours || error.code == 101, "{}: {error:?}", what);
                    assert_eq!(leases(lab), held, "{}: a failed ADD keeps no address", what);
                } else {
                    assert_eq!(address(lab, &conf, id), expected, "{}, step {step}", what);
                }
            }
        }
    });
}

#[test]
fn a_full_range_is_reported_with_its_limits() {
    for_each_peer("host-local", |lab| {
        let conf = ranges(json!([[{"subnet": "10.0.0.0/30"}, {"subnet": "10.0.1.0/30"}]]));
        address(lab, &conf, "a");
        address(lab, &conf, "b");
        let error = lab.attach(&lab.container(), &conf).id("c").try_add().err();
        assert!(error.text().contains("10.0.0.1-10.0.0.2"), "{error:?}");
        assert!(error.text().contains("10.0.1.1-10.0.1.2"), "{error:?}");
    });
}

#[test]
fn one_attachment_has_one_address() {
    for_each_peer("host-local", |lab| {
        let conf = subnet("10.0.0.0/24");
        let attachment = lab.attach(&lab.container(), &conf).id("a");
        attachment.add();
        let error = attachment.try_add().err();
        assert!(error.text().contains("10.0.0.2"), "the address it has: {error:?}");
        assert!(lab.peer != Peer::Ours || error.code == 102, "{error:?}");
        assert_eq!(address(lab, &conf, "b"), "10.0.0.3");
        attachment.try_add().err();
        // Another interface of the same container is another attachment.
        assert_eq!(ips(&attachment.clone().ifname("net1").add()), ["10.0.0.4"]);
        attachment.del();
        assert_eq!(leases(lab), ["10.0.0.3", "10.0.0.4"]);
    });
}

#[test]
fn networks_do_not_share_addresses() {
    for_each_peer("host-local", |lab| {
        let (one, other) =
            (subnet("10.0.0.0/24"), with(&subnet("10.0.0.0/24"), json!({"name": "net2"})));
        assert_eq!(
            (address(lab, &one, "a"), address(lab, &other, "a")),
            ("10.0.0.2".to_owned(), "10.0.0.2".to_owned())
        );
        delete(lab, &one, "a");
        assert_eq!(leases(lab), [""; 0]);
        assert_eq!(lab.host.sh("ls /var/lib/cni/networks/net2 | grep 10").trim(), "10.0.0.2");
    });
}

#[test]
fn files_of_old_versions_are_understood() {
    for_each_peer("host-local", |lab| {
        let conf = subnet("10.0.0.0/24");
        let attachment = lab.attach(&lab.container(), &conf).id("old");
        // Before 0.7 a file held only the ID of the container; other files have white space around
        // it.
        lab.host.sh(&format!(
            "mkdir -p {STORE} && printf old > {STORE}/10.0.0.2 && printf ' new\\r\\neth0\\n' > {STORE}/10.0.0.3"
        ));
        attachment.check(&json!({"cniVersion": "1.0.0"})).ok();
        attachment.clone().id("new").check(&json!({"cniVersion": "1.0.0"})).ok();
        assert_eq!(address(lab, &conf, "b"), "10.0.0.4");
        attachment.del();
        delete(lab, &conf, "new");
        assert_eq!(leases(lab), ["10.0.0.4"]);
    });
}

#[test]
fn addresses_can_be_asked_for_through_every_channel() {
    let cases = r#"
CNI_ARGS | {} | IP=10.0.0.50 | 10.0.0.50 10.1.0.2 2001:db8::2
CNI_ARGS with prefix | {} | IgnoreUnknown=true;IP=10.0.0.50/24;K8S_POD_UID=1 | 10.0.0.50 10.1.0.2 2001:db8::2
args | {"args": {"cni": {"ips": ["10.1.0.50", "2001:db8::50"]}}} |  | 10.0.0.2 10.1.0.50 2001:db8::50
args with prefix | {"args": {"cni": {"ips": ["10.1.0.50/24"]}}} |  | 10.0.0.2 10.1.0.50 2001:db8::2
runtimeConfig | {"runtimeConfig": {"ips": ["2001:db8::50/64"]}} |  | 10.0.0.2 10.1.0.2 2001:db8::50
all at once | {"args": {"cni": {"ips": ["10.1.0.50"]}}, "runtimeConfig": {"ips": ["2001:db8::50"]}} | IP=10.0.0.50 | 10.0.0.50 10.1.0.50 2001:db8::50
any range of the set | {"runtimeConfig": {"ips": ["10.0.9.7"]}} |  | 10.0.9.7 10.1.0.2 2001:db8::2
ranges of the runtime come first | {"runtimeConfig": {"ipRanges": [[{"subnet": "10.77.0.0/24"}]]}} |  | 10.77.0.2 10.0.0.2 10.1.0.2 2001:db8::2
the old spelling comes before ranges | {"ipam": {"subnet": "10.66.0.0/24", "rangeStart": "10.66.0.9"}} |  | 10.66.0.9 10.0.0.2 10.1.0.2 2001:db8::2
"#;
    for_each_peer("host-local", |lab| {
        for [what, changes, args, expected] in cells(cases) {
            let changes = serde_json::from_str(changes).unwrap();
            lab.host.sh(&format!("rm -rf {STORE}"));
            let base = ranges(
                json!([[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.9.0/24"}], [{"subnet": "10.1.0.0/24"}], [{"subnet": "2001:db8::/64"}]]),
            );
            let result = lab.attach(&lab.container(), &with(&base, changes)).args(args).add();
            assert_eq!(ips(&result).join(" "), expected, "{}", what);
        }
    });
}

#[test]
fn an_address_that_cannot_be_had_fails_add_and_keeps_nothing() {
    let cases = rows(
        r#"
taken | {"runtimeConfig": {"ips": ["10.0.0.2"]}} | 101: 10.0.0.2
the gateway | {"runtimeConfig": {"ips": ["10.0.0.1"]}} | 101: 10.0.0.1
outside of every range | {"runtimeConfig": {"ips": ["10.9.0.1"]}} | 101: 10.9.0.1
two of one set | {"runtimeConfig": {"ips": ["10.0.0.10", "10.0.0.11"]}} | 101: 10.0.0.1
before rangeStart | {"runtimeConfig": {"ips": ["10.1.0.5"]}} | 101: 10.1.0.5
after rangeEnd | {"runtimeConfig": {"ips": ["10.1.0.21"]}} | 101: 10.1.0.21
not an address | {"runtimeConfig": {"ips": ["10.0.0.300"]}} | 7: 10.0.0.300
"#,
    );
    for_each_peer("host-local", |lab| {
        let conf = ranges(
            json!([[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.20"}]]),
        );
        address(lab, &conf, "first");
        let held = leases(lab);
        for case in &cases {
            let asked = with(&conf, case.changes.clone());
            let error = lab.attach(&lab.container(), &asked).try_add().err();
            assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
            assert!(lab.peer != Peer::Ours || error.code == case.code, "{}: {error:?}", case.what);
            assert_eq!(leases(lab), held, "{}", case.what);
        }
    });
}

#[test]
fn mistakes_in_ranges_are_refused_and_named() {
    let cases = r#"
[[]] | ipam.ranges[0] | empty
[[{"subnet": "10.0.0.0/31"}]] | ipam.ranges[0][0].subnet | 10.0.0.0/31
[[{"subnet": "10.0.0.1/24"}]] | ipam.ranges[0][0].subnet | 10.0.0.0/24
[[{"subnet": "10.0.0.0"}]] | ipam.ranges[0][0].subnet | 10.0.0.0
[[{"subnet": "10.0.0.0/24", "rangeStart": "10.1.0.5"}]] | ipam.ranges[0][0].rangeStart | 10.1.0.5
[[{"subnet": "10.0.0.0/24", "rangeEnd": "10.1.0.5"}]] | ipam.ranges[0][0].rangeEnd | 10.1.0.5
[[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8"}]] | ipam.ranges[0][0].range | 10.0.0.9
[[{"subnet": "10.0.0.0/24"}, {"subnet": "2001:db8::/64"}]] | ipam.ranges[0] | famil
[[{"subnet": "10.0.0.0/16"}, {"subnet": "10.0.5.0/24"}]] | ipam.ranges[0] | overlap
[[{"subnet": "10.0.0.0/16"}], [{"subnet": "10.0.5.0/24"}]] | ipam.ranges[ | overlap
"#;
    let others = [
        (with(&ranges(json!([])), json!({})), ["ipam", "range"]),
        (
            with(
                &ranges(json!([[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24"}]])),
                json!({"cniVersion": "0.2.0"}),
            ),
            ["0.2.0", "famil"],
        ),
        (json!({"cniVersion": "1.0.0", "name": "net1", "type": "host-local"}), ["ipam", "ipam"]),
    ];

    for_each_peer("host-local", |lab| {
        let rows = cells(cases).into_iter();
        let rows = rows.map(|[sets, place, value]| {
            (ranges(serde_json::from_str(sets).unwrap()), [place, value])
        });
        for (conf, names) in rows.chain(others.clone()) {
            let error = lab.attach(&lab.container(), &conf).try_add().err();
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, 7, "{error:?}");
                for name in names {
                    assert!(error.text().contains(name), "{name} is not in {error:?}");
                }
            }
            assert!(!lab.path(STORE).exists(), "refused before anything is made: {error:?}");
        }
    });
}

#[test]
fn ranges_that_only_touch_are_accepted() {
    for_each_peer("host-local", |lab| {
        let halves = json!([
            {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.10"},
            {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.11", "rangeEnd": "10.0.0.11"},
        ]);
        let conf = ranges(json!([halves]));
        assert_eq!(
            [address(lab, &conf, "a"), address(lab, &conf, "b")],
            ["10.0.0.10", "10.0.0.11"]
        );
    });
}

#[test]
fn dns_comes_from_the_resolv_conf_that_is_named() {
    for_each_peer("host-local", |lab| {
        lab.host.sh("printf '# a comment\\n; another\\nnameserver 192.0.2.3\\nnameserver 2001:db8::53\\ndomain example.com\\nsearch one.example two.example\\noptions ndots:2 timeout:1\\nsortlist x\\n' > /run/resolv.conf");
        let conf =
            with(&subnet("10.0.0.0/24"), json!({"ipam": {"resolvConf": "/run/resolv.conf"}}));
        let expected = json!({"nameservers": ["192.0.2.3", "2001:db8::53"], "domain": "example.com", "search": ["one.example", "two.example"], "options": ["ndots:2", "timeout:1"]});
        assert_eq!(lab.attach(&lab.container(), &conf).add()["dns"], expected);
        let missing = with(&conf, json!({"ipam": {"resolvConf": "/run/no-such-file"}}));
        let held = leases(lab);
        let error = lab.attach(&lab.container(), &missing).id("other").try_add().err();
        assert!(error.text().contains("/run/no-such-file"), "{error:?}");
        assert_eq!(leases(lab), held);
    });
}

/// As in the reference: the operator chooses.
#[test]
fn another_data_directory_is_used() {
    for_each_peer("host-local", |lab| {
        let conf =
            with(&subnet("10.0.0.0/24"), json!({"ipam": {"dataDir": "/run/elsewhere/deep"}}));
        address(lab, &conf, "a");
        assert_eq!(lab.host.sh("cat /run/elsewhere/deep/net1/10.0.0.2"), "a\r\neth0");
        assert!(!lab.path(STORE).exists());
    });
}

/// The reference takes the lock for each range set, and ignores a failure.
#[test]
fn a_directory_that_cannot_be_written_fails_add_and_is_named() {
    for_each_peer("host-local", |lab| {
        lab.host.sh("mkdir /run/ro && mount -t tmpfs -o ro lab /run/ro");
        let conf = with(&subnet("10.0.0.0/24"), json!({"ipam": {"dataDir": "/run/ro"}}));
        let error = lab.attach(&lab.container(), &conf).try_add().err();
        assert!(error.text().contains("/run/ro/net1"), "{error:?}");
        assert!(lab.peer != Peer::Ours || error.code == 5, "{error:?}");
    });
}

#[test]
fn a_file_in_the_place_of_the_directory_fails_add_and_is_named() {
    for_each_peer("host-local", |lab| {
        lab.host.sh("mkdir -p /var/lib/cni/networks && touch /var/lib/cni/networks/net1");
        let error = lab.attach(&lab.container(), &subnet("10.0.0.0/24")).try_add().err();
        assert!(error.text().contains(STORE), "{error:?}");
    });
}

#[test]
fn torn_bookkeeping_does_not_stop_anyone() {
    for_each_peer("host-local", |lab| {
        let conf = subnet("10.0.0.0/24");
        for last in ["", "garbage", "10.99.0.1", "10.0.0"] {
            lab.host.sh(&format!(
                "mkdir -p {STORE} && printf '{last}' > {STORE}/last_reserved_ip.0 && rm -f {STORE}/10.0.0.*"
            ));
            assert_eq!(address(lab, &conf, "a"), "10.0.0.2", "last_reserved_ip.0 is {last:?}");
        }
    });
}

/// A crash leaves the file of a lease empty, or with a part of the container's ID.
#[test]
fn gc_removes_leases_that_a_crash_has_torn() {
    for_ours("host-local", |lab| {
        let conf = with(&subnet("10.0.0.0/24"), json!({"cniVersion": "1.1.0"}));
        let attachment = lab.attach(&lab.container(), &conf);
        attachment.add();
        lab.host.sh(&format!(": > {STORE}/10.0.0.77; printf contain > {STORE}/10.0.0.78"));
        assert_eq!(attachment.gc(&[(&attachment.container_id, "eth0")]).ok(), Value::Null);
        assert_eq!(leases(lab), ["10.0.0.2"]);
    });
}

#[test]
fn names_cannot_leave_the_directory() {
    for_each_peer("host-local", |lab| {
        let conf = subnet("10.0.0.0/24");
        let before = lab.host.sh("find /run /var/lib/cni -type f");
        for name in ["../x", "a/b", "..", ".", "/etc", "a/../b"] {
            for (conf, id, ifname) in [
                (with(&conf, json!({"name": name})), "a", "eth0"),
                (conf.clone(), name, "eth0"),
                (conf.clone(), "a", name),
            ] {
                let outcome = lab.attach(&lab.container(), &conf).id(id).ifname(ifname).try_add();
                let error = outcome.err();
                assert!([4, 7].contains(&error.code), "{name}: {error:?}");
            }
        }
        let after = lab.host.sh("find /run /var/lib/cni -type f");
        let new: Vec<&str> = after
            .lines()
            .filter(|line| !before.contains(line) && !line.starts_with("/run/netns/"))
            .collect();
        assert_eq!(new, [""; 0]);
    });
}

#[test]
fn check_knows_only_what_was_added() {
    for_each_peer("host-local", |lab| {
        let conf = subnet("10.0.0.0/24");
        let attachment = lab.attach(&lab.container(), &conf);
        let result = attachment.add();
        attachment.check(&result).ok();
        attachment.clone().ifname("net1").check(&result).err();
        let error = attachment.clone().id("somebody").check(&result).err();
        assert!(lab.peer != Peer::Ours || error.code == 103, "{error:?}");
        assert!(lab.peer != Peer::Ours || error.text().contains("somebody"), "{error:?}");
    });
}

#[test]
fn status_of_a_full_range_is_a_warning() {
    // The reference has no STATUS: see tests/differences.
    for_ours("host-local", |lab| {
        let conf = with(&subnet("10.0.0.0/30"), json!({"cniVersion": "1.1.0"}));
        let attachment = lab.attach(&lab.container(), &conf);
        let warning = |attachment: &Attachment<'_>| {
            let outcome = attachment.status();
            outcome.ok();
            outcome.stderr
        };
        assert_eq!(warning(&attachment), "");
        attachment.add();
        let full = "host-local: no IP addresses available in range set: 10.0.0.1-10.0.0.2\n";
        assert_eq!(warning(&attachment), full);
        attachment.del();
        assert_eq!(warning(&attachment), "");
    });
}

/// A lease that no namespace has the address of belongs to a container that is gone.
#[test]
fn error_of_a_full_range_counts_leases_of_gone_containers() {
    for_ours("host-local", |lab| {
        let conf = subnet("10.213.7.0/29"); // .2 to .6, which no other test has
        let container = lab.container();
        for id in ["a", "b", "c", "d", "e"] {
            address(lab, &conf, id);
        }
        container.sh("ip addr add 10.213.7.3/29 dev lo; ip addr add 10.213.7.6/29 dev lo");
        let error = lab.attach(&lab.container(), &conf).id("f").try_add().err();
        assert_eq!(
            error.details,
            "3 of 5 leases are of containers that are gone; \
             free those with: cni-multi net gc net1"
        );
        container.sh("for n in 2 4 5; do ip addr add 10.213.7.$n/29 dev lo; done");
        let error = lab.attach(&lab.container(), &conf).id("f").try_add().err();
        let advice = "all 5 leases are of containers that exist: make the range larger";
        assert_eq!(error.details, advice);
        let taken = json!({"runtimeConfig": {"ips": ["10.213.7.3"]}});
        delete(lab, &conf, "e");
        let error = lab.attach(&container, &with(&conf, taken)).id("f").try_add().err();
        assert_eq!(error.details, "", "the range is not full");
    });
}

#[test]
fn error_of_a_second_add_names_the_del_that_frees_it() {
    for_ours("host-local", |lab| {
        let attachment = lab.attach(&lab.container(), &subnet("10.0.0.0/24")).id("a");
        attachment.add();
        let error = attachment.try_add().err();
        let command = "cni-multi net del net1 ";
        let (before, line) = error.details.split_once(command).unwrap();
        assert_eq!(before, "its \"eth0\" has the address from an earlier ADD; DEL frees it: ");
        assert!(line.ends_with(" --container-id a --ifname eth0"), "{line}");
        attachment.del();
        attachment.add();
    });
}

#[test]
fn a_directory_shared_with_the_reference_stays_right() {
    let Some(reference) = Peer::reference() else {
        return crate::support::attachment::not_compared("host-local");
    };
    for_ours("host-local", |lab| {
        let conf = subnet("10.0.0.0/28");
        let by = |peer: &Peer, id: &str| lab.attach(&lab.container(), &conf).id(id).by(peer);
        // Ours and the reference take turns: each deletes what the other added, and no address is
        // assigned twice.
        for round in 0..10 {
            let (first, second) =
                if round % 2 == 0 { (&Peer::Ours, &reference) } else { (&reference, &Peer::Ours) };
            let (a, b) = (format!("a{round}"), format!("b{round}"));
            let one = ips(&by(first, &a).add());
            let two = ips(&by(second, &b).add());
            assert_ne!(one, two);
            assert_eq!(leases(lab).len(), 2, "{:?}", leases(lab));
            by(second, &a).check(&json!({"cniVersion": "1.0.0"})).ok();
            by(first, &b).check(&json!({"cniVersion": "1.0.0"})).ok();
            by(first, &b).try_add().err();
            by(second, &a).del();
            by(first, &b).del();
            assert_eq!(leases(lab), [""; 0]);
        }
        // The rotation continues after the other's last address: 20 ADDs in a range of 13
        // addresses.
        assert_eq!(ips(&by(&Peer::Ours, "c").add()), ["10.0.0.9"]);
    });
}
