//! What the sweeps go over: every plugin, with all that it can make, and whole chains.

use serde_json::{Value, json};

use crate::plugins::main::bridge::{self, static_ipam};
use crate::plugins::main::stacked::{IPVLAN, MACVLAN, Stacked, VLAN};
use crate::plugins::main::{dummy, host_device, ptp, tap};
use crate::plugins::meta::bandwidth::{self, can_limit};
use crate::plugins::meta::firewall::{self, DROPPING};
use crate::plugins::meta::vrf::has_vrf;
use crate::plugins::meta::{portmap, tuning};
use crate::support::attachment::{Attachment, for_ours, with};
use crate::support::netns::{Container, Lab};

/// A network whose attachments are born and ended under faults.
pub struct Subject {
    pub name: &'static str,
    /// Whether the kernel can; says so where it cannot. Then makes what the host needs.
    pub prepare: fn(&Lab) -> bool,
    /// The configurations of the list, without its name and version.
    pub plugins: Vec<Value>,
}

impl Subject {
    fn new(name: &'static str, prepare: fn(&Lab) -> bool, plugins: Vec<Value>) -> Subject {
        Subject { name, prepare, plugins }
    }

    /// Whether plugins start programs: then each takes ten times as long.
    pub fn starts_programs(&self) -> bool {
        self.name.contains("iptables")
    }

    /// Whether a sweep is to try everything of it. Of what is slow it takes all points, and the
    /// ways in which these go on take turns.
    pub fn is_swept_whole(&self) -> bool {
        is_long() && !self.starts_programs() && !is_emulated()
    }

    /// One attachment a plugin, in the order of the list.
    pub fn attach<'a>(&self, lab: &'a Lab, container: &Container) -> Vec<Attachment<'a>> {
        let of_network = json!({"name": "net1", "cniVersion": "1.1.0"});
        let ifname = if self.plugins[0]["type"] == "loopback" { "lo" } else { "eth0" };
        let attach =
            |conf: &Value| lab.attach(container, &with(conf, of_network.clone())).ifname(ifname);
        self.plugins.iter().map(attach).collect()
    }
}

fn any_host(_: &Lab) -> bool {
    true
}

fn strict_host(lab: &Lab) -> bool {
    lab.host.sh(DROPPING);
    true
}

fn with_device(lab: &Lab) -> bool {
    host_device::device(lab);
    true
}

fn can_vrf(lab: &Lab) -> bool {
    has_vrf(&lab.container())
}

/// A link that stands on the host's uplink, in both families.
fn stacked(kind: &Stacked, prepare: fn(&Lab) -> bool) -> Subject {
    Subject::new(kind.plugin, prepare, vec![kind.dual_stack()])
}

/// A bridge with both families and all that it can be told to do.
fn whole_bridge(backend: &str) -> Value {
    with(
        &portmap::network(),
        json!({"ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true}),
    )
}

fn limits() -> Value {
    bandwidth::both()
}

fn tuned() -> Value {
    tuning::tuning(with(
        &tuning::every_attribute(),
        json!({"sysctl": {"net.core.somaxconn": "517"}}),
    ))
}

/// The same behind a port that knows the container by its hardware address.
fn tuned_but_the_mac() -> Value {
    with(&tuned(), json!({"mac": null}))
}

fn ports(backend: &str) -> Value {
    let udp = json!({"hostPort": 5353, "containerPort": 53, "protocol": "udp"});
    portmap::portmap(Some(backend), json!([portmap::web(), udp]))
}

/// Every main plugin, alone.
pub fn main_plugins() -> Vec<Subject> {
    let dual_stack_dummy =
        with(&dummy::conf(), json!({"ipam": {"routes": [{"dst": "10.99.0.0/16"}]}}));
    vec![
        Subject::new("bridge", any_host, vec![whole_bridge("nftables")]),
        Subject::new("bridge, iptables", any_host, vec![whole_bridge("iptables")]),
        Subject::new(
            "ptp",
            any_host,
            vec![with(&ptp::conf(), json!({"ipMasq": true, "ipMasqBackend": "nftables"}))],
        ),
        stacked(&MACVLAN, any_host),
        stacked(&IPVLAN, |lab| IPVLAN.is_in(lab)),
        stacked(&VLAN, |lab| VLAN.is_in(lab)),
        Subject::new("host-device", with_device, vec![host_device::leased()]),
        Subject::new("dummy", dummy::makes_dummies, vec![dual_stack_dummy]),
        Subject::new(
            "tap",
            tap::makes_taps,
            vec![with(&tap::conf(), json!({"ipam": {"routes": []}}))],
        ),
        Subject::new("loopback", any_host, vec![json!({"type": "loopback"})]),
    ]
}

/// The IPAM plugins by themselves; with a main plugin they are in the others.
fn ipam_plugins() -> Vec<Subject> {
    let host_local = bridge::dual_stack()["ipam"].clone();
    let fixed = static_ipam(&json!({}), json!([{"address": "10.10.0.5/24"}]), json!([]));
    vec![
        Subject::new(
            "host-local",
            any_host,
            vec![json!({"type": "host-local", "ipam": host_local})],
        ),
        Subject::new("static", any_host, vec![with(&fixed, json!({"type": "static"}))]),
    ]
}

/// Every plugin that is chained, after a bridge.
fn chained_plugins() -> Vec<Subject> {
    let after =
        |name, prepare, main: Value, conf: Value| Subject::new(name, prepare, vec![main, conf]);
    let simple = || with(&bridge::dual_stack(), json!({"isDefaultGateway": true}));
    let isolated = json!({"type": "firewall", "ingressPolicy": "same-bridge"});
    vec![
        after("portmap", any_host, portmap::network(), ports("nftables")),
        after("portmap, iptables", any_host, portmap::network(), ports("iptables")),
        after("firewall", strict_host, simple(), isolated),
        after("firewall, iptables", strict_host, simple(), firewall::firewall(Some("iptables"))),
        after("tuning", any_host, simple(), tuned()),
        after("bandwidth", can_limit, bandwidth::network(), limits()),
        after("sbr", any_host, simple(), json!({"type": "sbr"})),
        after("vrf", can_vrf, simple(), json!({"type": "vrf", "vrfname": "blue"})),
    ]
}

/// Lists as engines configure them.
fn chains() -> Vec<Subject> {
    let of_five = |backend: &str| {
        vec![
            whole_bridge(backend),
            ports(backend),
            firewall::firewall(Some(backend)),
            tuned_but_the_mac(),
            limits(),
        ]
    };
    let five = vec![
        whole_bridge("nftables"),
        ports("nftables"),
        json!({"type": "firewall"}),
        tuned_but_the_mac(),
        limits(),
    ];
    let can_both = |lab: &Lab| strict_host(lab) && can_limit(lab);
    vec![
        Subject::new("bridge, portmap, firewall, tuning, bandwidth", can_both, five),
        Subject::new("the same by iptables", can_both, of_five("iptables")),
        Subject::new(
            "macvlan, tuning, sbr",
            any_host,
            vec![MACVLAN.dual_stack(), tuned(), json!({"type": "sbr"})],
        ),
    ]
}

/// All of them.
pub fn all() -> Vec<Subject> {
    [main_plugins(), ipam_plugins(), chained_plugins(), chains()].into_iter().flatten().collect()
}

/// A test for each of them, so that each can be skipped where the kernel lacks what it needs.
macro_rules! test_each_subject {
    ($sweep:path) => {
        test_each_subject! { $sweep:
            bridge "bridge"
            bridge_by_iptables "bridge, iptables"
            ptp "ptp"
            macvlan "macvlan"
            ipvlan "ipvlan"
            vlan "vlan"
            host_device "host-device"
            dummy "dummy"
            tap "tap"
            loopback "loopback"
            host_local "host-local"
            static_ "static"
            portmap "portmap"
            portmap_by_iptables "portmap, iptables"
            firewall "firewall"
            firewall_by_iptables "firewall, iptables"
            tuning "tuning"
            bandwidth "bandwidth"
            sbr "sbr"
            vrf "vrf"
            chain_of_five "bridge, portmap, firewall, tuning, bandwidth"
            chain_of_five_by_iptables "the same by iptables"
            chain_on_macvlan "macvlan, tuning, sbr"
        }
    };
    ($sweep:path: $($test:ident $subject:literal)*) => {
        $(
            #[test]
            fn $test() {
                $crate::faults::subject::in_a_lab($subject, $sweep);
            }
        )*

        #[test]
        fn every_subject_has_a_test() {
            let names: Vec<&str> = $crate::faults::subject::all().iter().map(|subject| subject.name).collect();
            assert_eq!(names, [$($subject),*]);
        }
    };
}
pub(super) use test_each_subject;

/// Where a subject's lines stand in a table. That of dhcp is in no list: its daemon and its server
/// have to run.
pub fn place_of(subject: &Subject) -> usize {
    all().iter().position(|other| other.name == subject.name).unwrap_or(90)
}

/// Runs the sweep of a subject in a lab of its own, where the kernel can.
pub fn in_a_lab(name: &str, sweep: impl Fn(&Lab, &Subject)) {
    let subject = all().into_iter().find(|subject| subject.name == name).expect("a subject");
    for_ours(subject.plugins[0]["type"].as_str().unwrap(), |lab| {
        if (subject.prepare)(lab) {
            sweep(lab, &subject);
        }
    });
}

/// Whether this is a machine of `tests/vm/run`, which is slow.
pub fn is_emulated() -> bool {
    std::env::var_os("CNI_VM").is_some()
}

/// Whether a sweep is to try everything: `tests/faults/run` asks for it.
pub fn is_long() -> bool {
    std::env::var_os("CNI_LONG").is_some()
}
