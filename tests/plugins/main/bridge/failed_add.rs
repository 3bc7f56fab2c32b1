//! bridge ADD that fails: an error that helps, and everything as it was.

use serde_json::{Value, json};

use super::conf;
use crate::support::attachment::{Attachment, for_each_peer, for_ours, with};
use crate::support::call::{ErrorObject, Peer};
use crate::support::netns::{Container, Lab};
use crate::support::snapshot::Watch;

pub struct Case {
    pub what: &'static str,
    /// Prepares the host.
    pub host: &'static str,
    /// Prepares the container.
    pub container: &'static str,
    /// To the configuration the plugin's cases start from.
    pub changes: Value,
    /// Of our error: its code and what the reader has to find in it.
    pub code: u64,
    pub names: &'static str,
    pub reference_leaves_something: bool,
}

impl Case {
    pub fn new(what: &'static str, changes: Value, code: u64, names: &'static str) -> Case {
        Case {
            what,
            host: "true",
            container: "true",
            changes,
            code,
            names,
            reference_leaves_something: true,
        }
    }

    pub fn host(self, host: &'static str) -> Case {
        Case { host, ..self }
    }

    pub fn container(self, container: &'static str) -> Case {
        Case { container, ..self }
    }

    pub fn reference_leaves_nothing(self) -> Case {
        Case { reference_leaves_something: false, ..self }
    }
}

/// A bridge of others that has had a port: with the first one the kernel begins to count carriers,
/// and does not forget.
const USED_BRIDGE: &str = "ip link add br0 up type bridge && ip addr add 10.99.0.1/24 dev br0 && \
    ip link add port master br0 up type veth peer name other && ip link del port";

/// One with an uplink, which listens to routers, and a table that no process can use.
const BRIDGE_OF_OTHERS: &str = "ip link add br0 up type bridge && echo 2 >/proc/sys/net/ipv6/conf/br0/accept_ra && \
    ip link add port master br0 up type veth peer name other && ip link set other up && sleep 0.1 && \
    nft add table inet cni_multi_masquerade && nft add chain inet cni_multi_masquerade postrouting";

pub fn cases() -> Vec<Case> {
    // A route that cannot be reached: the kernel refuses after everything else is done.
    let late = json!({"ipMasq": true, "macspoofchk": true, "ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}});
    vec![
        Case::new(
            "IPAM plugin unknown",
            json!({"ipam": {"type": "no-such-ipam"}}),
            104,
            "no-such-ipam",
        ),
        Case::new("IPAM refuses", json!({"ipam": {"subnet": "10.10.0.0/31"}}), 7, "10.10.0.0/31"),
        Case::new("mtu out of range", json!({"mtu": 100_000}), 7, "mtu: 100000")
            .reference_leaves_nothing(),
        Case::new("mtu out of range, bridge exists", json!({"mtu": 100_000}), 7, "mtu: 100000")
            .host("ip link add br0 type bridge"),
        Case::new(
            "bad mac",
            json!({"runtimeConfig": {"mac": "02:00:00:00:00"}}),
            7,
            "02:00:00:00:00",
        ),
        Case::new("vlan out of range", json!({"vlan": 5000}), 7, "5000").reference_leaves_nothing(),
        Case::new(
            "name of the bridge too long",
            json!({"bridge": "a-name-of-16-byte"}),
            7,
            "a-name-of-16-byte",
        )
        .reference_leaves_nothing(),
        // The kernel makes br0, and the next time br1.
        Case::new("name of the bridge is a pattern", json!({"bridge": "br%d"}), 7, "br%d"),
        Case::new("bridge name taken by a non-bridge", json!({}), 102, "br0")
            .host("ip link add br0 type veth peer name br1")
            .reference_leaves_nothing(),
        Case::new("interface exists", json!({}), 102, "eth0")
            .container("ip link add eth0 type veth peer name other"),
        Case::new("another address on the bridge", json!({}), 102, "10.99.0.1").host(USED_BRIDGE),
        Case::new("route unreachable", late.clone(), 100, "10.88.0.1"),
        Case::new(
            "route unreachable, bridge of others",
            with(&late, json!({"promiscMode": true})),
            100,
            "10.88.0.1",
        )
        .host(BRIDGE_OF_OTHERS),
    ]
}

/// Makes the case in a lab; what has changed afterwards, and the error.
pub fn fail(lab: &Lab, conf: &Value, case: &Case) -> (String, ErrorObject) {
    let container = lab.container();
    fail_at(lab, &container, &lab.attach(&container, conf), case)
}

fn fail_at(
    lab: &Lab,
    container: &Container,
    at: &Attachment<'_>,
    case: &Case,
) -> (String, ErrorObject) {
    lab.host.sh(case.host);
    container.sh(case.container);
    let before = Watch::start(lab, &[container]);
    let error = at.clone().conf(case.changes.clone()).try_add().err();
    // Ours gets the time that the kernel needs to take things down.
    let changes = if lab.peer == Peer::Ours { before.changes() } else { before.changes_now() };
    eprintln!("after {:?}: {changes}", case.what); // shown when the test fails
    (changes, error)
}

/// Both peers fail, ours with an error that helps. What the reference leaves is in
/// tests/differences.
#[track_caller]
pub fn assert_fails(lab: &Lab, conf: &Value, case: &Case) {
    let container = lab.container();
    assert_fails_at(lab, &container, &lab.attach(&container, conf), case);
}

/// The same of an attachment, which may be one of a plugin that is chained after another.
#[track_caller]
pub fn assert_fails_at(lab: &Lab, container: &Container, at: &Attachment<'_>, case: &Case) {
    let (changes, error) = fail_at(lab, container, at, case);
    let ours = lab.peer == Peer::Ours;
    if ours || !case.reference_leaves_something {
        assert_eq!(changes, "", "left after \"{}\"", case.what);
    }
    if ours {
        assert_eq!(error.code, case.code, "{}: {error:?}", case.what);
        assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
        assert!(!error.details.contains("undo:"), "{}: {error:?}", case.what);
    }
}

/// Runs the cases against each peer, each in a lab of its own.
pub fn assert_all_fail(plugin: &str, conf: &Value, cases: &[Case]) {
    cases.iter().for_each(|case| for_each_peer(plugin, |lab| assert_fails(lab, conf, case)));
}

#[test]
fn add_fails_and_nothing_has_changed() {
    assert_all_fail("bridge", &conf(), &cases());
}

/// The bridge has the gateway's address by then, and its own is pinned. The reference has another
/// table.
#[test]
fn add_that_fails_late_leaves_a_bridge_of_others_as_it_was() {
    for_ours("bridge", |lab| {
        let case = Case::new(
            "masquerading refused",
            json!({"ipMasq": true, "promiscMode": true}),
            100,
            "masquerade",
        );
        assert_fails(lab, &conf(), &case.host(BRIDGE_OF_OTHERS));
    });
}

/// The kernel ends the name at the NUL, so the reference uses the bridge `br`.
#[test]
fn add_to_a_bridge_whose_name_has_a_nul_is_refused() {
    for_ours("bridge", |lab| {
        let case = Case::new(
            "name of the bridge has a NUL",
            json!({"bridge": "br\u{0}0"}),
            7,
            "bridge: \"br\\00\"",
        );
        let (changes, error) = fail(lab, &conf(), &case);
        assert_eq!((changes.as_str(), error.code), ("", 7), "{error:?}");
        assert!(error.text().contains(case.names), "{error:?}");
    });
}

/// A rule set that others filled in our name is no reason to try again a thousand times.
#[test]
fn add_that_the_rule_set_refuses_says_why_at_once() {
    for_ours("bridge", |lab| {
        lab.host.sh("nft add table inet cni_multi_masquerade; nft add chain inet cni_multi_masquerade postrouting");
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let error = lab.attach(&container, &with(&conf(), json!({"ipMasq": true}))).try_add().err();
        assert_eq!(error.code, 100, "{error:?}");
        assert!(
            error.text().contains("masquerade") && !error.text().contains("tries"),
            "{error:?}"
        );
        before.assert_unchanged("the refused ADD");
    });
}

#[test]
fn add_on_a_full_subnet_fails_and_nothing_has_changed() {
    for_each_peer("bridge", |lab| {
        let small = with(&conf(), json!({"ipam": {"subnet": "10.10.0.0/30"}}));
        lab.attach(&lab.container(), &small).add();
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let error = lab.attach(&container, &small).try_add().err();
        assert!(
            error.text().contains("10.10.0.1-10.10.0.2"),
            "the error shows the range: {error:?}"
        );
        if lab.peer == Peer::Ours {
            assert_eq!(error.code, 101);
            before.assert_unchanged("the failed ADD");
        }
    });
}
