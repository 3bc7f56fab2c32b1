//! bridge ADD that fails: an error that helps, and everything as it was.

use serde_json::{Value, json};

use super::conf;
use crate::support::attachment::{for_each_peer, with};
use crate::support::call::Peer;
use crate::support::netns::Lab;
use crate::support::snapshot::Watch;

pub struct Case {
    pub what: &'static str,
    /// Prepares host and container.
    host: &'static str,
    container: &'static str,
    changes: fn() -> Value,
    /// Of our error: its code and what the reader has to find in it.
    code: u64,
    names: &'static str,
}

pub fn cases() -> Vec<Case> {
    let case = |what, changes, code, names| Case { what, host: "true", container: "true", changes, code, names };
    vec![
        case("IPAM plugin unknown", || json!({"ipam": {"type": "no-such-ipam"}}), 104, "no-such-ipam"),
        case("IPAM refuses", || json!({"ipam": {"subnet": "10.10.0.0/31"}}), 7, "10.10.0.0/31"),
        case("mtu out of range", || json!({"mtu": 100_000}), 100, "100000"),
        case("bad mac", || json!({"runtimeConfig": {"mac": "02:00:00:00:00"}}), 7, "02:00:00:00:00"),
        case("vlan out of range", || json!({"vlan": 5000}), 7, "5000"),
        case("name of the bridge too long", || json!({"bridge": "a-name-of-16-byte"}), 7, "a-name-of-16-byte"),
        Case { host: "ip link add br0 type veth peer name br1", ..case("bridge name taken by a non-bridge", || json!({}), 102, "br0") },
        Case { container: "ip link add eth0 type veth peer name other", ..case("interface exists", || json!({}), 102, "eth0") },
        Case {
            host: "ip link add br0 type bridge && ip addr add 10.99.0.1/24 dev br0",
            ..case("another address on the bridge", || json!({}), 102, "10.99.0.1")
        },
        // A route that cannot be reached: the kernel refuses after everything else is done.
        case("route unreachable", || json!({"ipMasq": true, "macspoofchk": true, "ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}}), 100, "10.88.0.1"),
    ]
}

/// Makes the case in a lab; what has changed afterwards, and the error.
pub fn fail(lab: &Lab, case: &Case) -> (String, crate::support::call::ErrorObject) {
    let container = lab.container();
    lab.host.sh(case.host);
    container.sh(case.container);
    let before = Watch::start(lab, &[&container]);
    let error = lab.attach(&container, &with(&conf(), (case.changes)())).try_add().err();
    // Ours gets the time that the kernel needs to take things down.
    (if lab.peer == Peer::Ours { before.changes() } else { before.changes_now() }, error)
}

#[test]
fn add_fails_and_nothing_has_changed() {
    for case in cases() {
        for_each_peer("bridge", |lab| {
            let ours = lab.peer == Peer::Ours;
            let (changes, error) = fail(lab, &case);
            // What the reference leaves is in differences.rs.
            if ours {
                assert_eq!(changes, "", "left after \"{}\"", case.what);
                assert_eq!(error.code, case.code, "{}: {error:?}", case.what);
                assert!(error.msg.contains(case.names), "{}: {error:?}", case.what);
            }
        });
    }
}

#[test]
fn add_on_a_full_subnet_fails_and_nothing_has_changed() {
    for_each_peer("bridge", |lab| {
        let small = with(&conf(), json!({"ipam": {"subnet": "10.10.0.0/30"}}));
        lab.attach(&lab.container(), &small).add();
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let error = lab.attach(&container, &small).try_add().err();
        assert!(error.msg.contains("10.10.0.1-10.10.0.2"), "the error shows the range: {error:?}");
        if lab.peer == Peer::Ours {
            assert_eq!(error.code, 101);
            before.assert_unchanged("the failed ADD");
        }
    });
}

