//! host-local assigns the next free address and shares its files with the reference, name for name
//! and byte for byte.

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_each_peer, for_ours, ips, with};
use crate::support::call::Peer;
use crate::support::failed_add::assert_refused;
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

/// Each step adds a container (`+a`, then its address, or `full` and the limits) or deletes one (`-a`).
#[test]
fn addresses_are_given_in_turn() {
    let cases = r#"
from the start, past the gateway | [[{"subnet": "10.0.0.0/29"}]] | +a 10.0.0.2, +b 10.0.0.3
an address that came back waits its turn | [[{"subnet": "10.0.0.0/29"}]] | +a 10.0.0.2, -a, +a 10.0.0.3, -a, +b 10.0.0.4
around the end, never broadcast, the last one last | [[{"subnet": "10.0.0.0/29"}]] | +a 10.0.0.2, +b 10.0.0.3, +c 10.0.0.4, +d 10.0.0.5, +e 10.0.0.6, +f full, -b, +f 10.0.0.3, -f, +g 10.0.0.3
rangeStart and rangeEnd | [[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.11"}]] | +a 10.0.0.10, +b 10.0.0.11, +c full, -a, +c 10.0.0.10
a gateway in the middle is skipped | [[{"subnet": "10.0.0.0/29", "gateway": "10.0.0.3"}]] | +a 10.0.0.1, +b 10.0.0.2, +c 10.0.0.4
on to the next range of the set, and around | [[{"subnet": "10.0.0.0/30"}, {"subnet": "10.0.1.0/30"}]] | +a 10.0.0.2, +b 10.0.1.2, +c full 10.0.0.1-10.0.0.2,10.0.1.1-10.0.1.2, -a, +c 10.0.0.2
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
                } else if let Some(limits) = expected.strip_prefix("full") {
                    let held = leases(lab);
                    let outcome = lab.attach(&lab.container(), &conf).id(id).try_add();
                    let error = outcome.err();
                    assert!(
                        error.text().contains("no IP addresses available in range set")
                            || lab.peer == Peer::Ours,
                        "{error:?}"
                    );
                    assert!(error.text().contains(limits.trim()), "{what}: {error:?}");
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
fn networks_do_not_share_addresses() {
    let one = subnet("10.0.0.0/24");
    let other = with(&one, json!({"name": "net2"}));
    for_each_peer("host-local", |lab| {
        [&one, &other].iter().for_each(|conf| assert_eq!(address(lab, conf, "a"), "10.0.0.2"));
        delete(lab, &one, "a");
        assert_eq!(leases(lab), [""; 0]);
        assert_eq!(lab.host.sh("ls /var/lib/cni/networks/net2 | grep 10").trim(), "10.0.0.2");
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

/// The reference takes the lock for each range set, and ignores a failure.
#[test]
fn a_directory_that_cannot_be_used_fails_add_and_is_named() {
    let cases = [
        ("mkdir /run/ro && mount -t tmpfs -o ro lab /run/ro", json!("/run/ro"), "/run/ro/net1"),
        ("mkdir -p /var/lib/cni/networks && touch /var/lib/cni/networks/net1", Value::Null, STORE),
    ];
    for_each_peer("host-local", |lab| {
        for (prepare, data_dir, named) in &cases {
            lab.host.sh(prepare);
            let conf = with(&subnet("10.0.0.0/24"), json!({"ipam": {"dataDir": data_dir}}));
            assert_refused(lab, &conf, 5, named);
        }
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

/// A lease that no namespace has the address of belongs to a container that is gone.
#[test]
fn error_of_a_full_range_counts_leases_of_gone_containers() {
    for_ours("host-local", |lab| {
        let conf = subnet("10.213.7.0/29"); // .2 to .6, which no other test has
        let (container, attachment) = lab.place(&conf);
        for id in ["a", "b", "c", "d", "e"] {
            address(lab, &conf, id);
        }
        let refused = attachment.id("f");
        let advice = |attachment: &Attachment<'_>| attachment.try_add().err().details;
        container.sh("ip addr add 10.213.7.3/29 dev lo; ip addr add 10.213.7.6/29 dev lo");
        let gone =
            "3 of 5 leases are of containers that are gone; free those with: cni-multi net gc net1";
        assert_eq!(advice(&refused), gone);
        container.sh("for n in 2 4 5; do ip addr add 10.213.7.$n/29 dev lo; done");
        let larger = "all 5 leases are of containers that exist: make the range larger";
        assert_eq!(advice(&refused), larger);
        delete(lab, &conf, "e");
        let taken = refused.conf(json!({"runtimeConfig": {"ips": ["10.213.7.3"]}}));
        assert_eq!(advice(&taken), "", "the range is not full");
    });
}

#[test]
fn error_of_a_second_add_names_the_del_that_frees_it() {
    for_ours("host-local", |lab| {
        let attachment = lab.place(&subnet("10.0.0.0/24")).1.id("a");
        attachment.add();
        let error = attachment.try_add().err();
        let begins = "its \"eth0\" has the address from an earlier ADD; DEL frees it: cni-multi net del net1 ";
        assert!(error.details.starts_with(begins), "{error:?}");
        assert!(error.details.ends_with(" --container-id a --ifname eth0"), "{error:?}");
        attachment.del();
        attachment.add();
    });
}
