//! The subjects of the sweeps: every plugin with all of its features, and whole chains.

use serde_json::{Value, json};

use super::attachment::{Attachment, for_ours, with};
use super::extent::{is_emulated, is_long};
use super::netns::{Container, Lab};
use super::networks::bandwidth;
use super::networks::bandwidth::can_limit;
use super::networks::bond;
use super::networks::bridge;
use super::networks::bridge::static_ipam;
use super::networks::fastpath;
use super::networks::firewall;
use super::networks::firewall::DROPPING;
use super::networks::flannel;
use super::networks::ovs;
use super::networks::route_override;
use super::networks::stacked::{IPVLAN, MACVLAN, Stacked, VLAN};
use super::networks::vrf::has_vrf;
use super::networks::{dummy, host_device, ptp, tap};
use super::networks::{portmap, tuning};

/// A network that a sweep adds and deletes under faults.
pub struct Subject {
    pub name: &'static str,
    /// Sets up the host. Returns false, after a skip, if the kernel lacks a feature.
    pub prepare: fn(&Lab) -> bool,
    /// The plugin configurations of the list, without its name and version.
    pub plugins: Vec<Value>,
}

impl Subject {
    fn new(name: &'static str, prepare: fn(&Lab) -> bool, plugins: Vec<Value>) -> Subject {
        Subject { name, prepare, plugins }
    }

    /// Whether the plugins start programs, which makes each call ten times slower.
    pub fn starts_programs(&self) -> bool {
        self.name.contains("iptables")
    }

    /// Whether a sweep tries every combination. For a slow subject it takes all points and rotates
    /// through the ways to continue.
    pub fn is_swept_whole(&self) -> bool {
        is_long() && !self.starts_programs() && !is_emulated()
    }

    /// One attachment per plugin, in the order of the list.
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

/// A link on top of the host's uplink, dual-stack.
fn stacked(kind: &Stacked, prepare: fn(&Lab) -> bool) -> Subject {
    Subject::new(kind.plugin, prepare, vec![kind.dual_stack()])
}

/// A dual-stack bridge with all of its features on.
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

/// As `tuned`, for a bridge port that accepts only the container's original MAC address.
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
        Subject::new(
            "bridge, fastPath",
            fastpath::prepare,
            vec![with(&whole_bridge("nftables"), json!({"fastPath": true}))],
        ),
        Subject::new("ptp, fastPath", fastpath::prepare, vec![fastpath::fast(&ptp::conf())]),
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
        Subject::new("flannel", flannel::node, vec![flannel::conf()]),
        Subject::new("bond", bond::with_ports, vec![bond::leased()]),
        Subject::new("ovs", ovs::node, vec![ovs::every_key()]),
    ]
}

/// cluster-local with blocks that its daemon has confirmed; it does not run.
fn held() -> Subject {
    let ipam = with(
        &bridge::dual_stack()["ipam"],
        json!({"type": "cluster-local", "blockSize": 64, "patience": 0}),
    );
    let plugin = json!({"type": "cluster-local", "ipam": ipam});
    Subject::new("cluster-local, held", hold_blocks, vec![plugin])
}

fn hold_blocks(lab: &Lab) -> bool {
    held().attach(lab, &lab.container())[0].try_add(); // it writes what is configured
    let chunks = ["4-0a0a0000-26", "6-20010db8001000000000000000000000-122"];
    lab.hold("net1", &chunks.map(|chunk| (chunk, json!({}))));
    lab.confirm();
    true
}

/// The IPAM plugins alone; the other subjects run them under a main plugin.
fn ipam_plugins() -> Vec<Subject> {
    let host_local = bridge::dual_stack()["ipam"].clone();
    let shared = with(&host_local, json!({"type": "cluster-local", "scope": "machine"}));
    let translated = json!({"type": "whereabouts", "scope": "machine",
        "ipRanges": [{"range": "10.10.0.0/24"}, {"range": "fd00:10::/64"}]});
    let fixed = static_ipam(&json!({}), json!([{"address": "10.10.0.5/24"}]), json!([]));
    vec![
        Subject::new(
            "host-local",
            any_host,
            vec![json!({"type": "host-local", "ipam": host_local})],
        ),
        Subject::new("static", any_host, vec![with(&fixed, json!({"type": "static"}))]),
        Subject::new(
            "cluster-local",
            any_host,
            vec![json!({"type": "cluster-local", "ipam": shared})],
        ),
        held(),
        Subject::new(
            "whereabouts",
            any_host,
            vec![json!({"type": "whereabouts", "ipam": translated})],
        ),
    ]
}

/// Every chained plugin, after a bridge.
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
        after("route-override", any_host, simple(), route_override::every_key()),
    ]
}

/// Lists as container engines configure them.
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

/// Every subject.
pub fn all() -> Vec<Subject> {
    [main_plugins(), ipam_plugins(), chained_plugins(), chains()].into_iter().flatten().collect()
}

/// One test per subject, so that each can be skipped if the kernel lacks a feature.
macro_rules! test_each_subject {
    ($sweep:path) => {
        test_each_subject! { $sweep:
            bridge "bridge"
            bridge_by_iptables "bridge, iptables"
            ptp "ptp"
            bridge_with_fast_path "bridge, fastPath"
            ptp_with_fast_path "ptp, fastPath"
            macvlan "macvlan"
            ipvlan "ipvlan"
            vlan "vlan"
            host_device "host-device"
            dummy "dummy"
            tap "tap"
            loopback "loopback"
            flannel "flannel"
            bond "bond"
            ovs "ovs"
            host_local "host-local"
            static_ "static"
            cluster_local "cluster-local"
            cluster_local_with_held_blocks "cluster-local, held"
            whereabouts "whereabouts"
            portmap "portmap"
            portmap_by_iptables "portmap, iptables"
            firewall "firewall"
            firewall_by_iptables "firewall, iptables"
            tuning "tuning"
            bandwidth "bandwidth"
            sbr "sbr"
            vrf "vrf"
            route_override "route-override"
            chain_of_five "bridge, portmap, firewall, tuning, bandwidth"
            chain_of_five_by_iptables "the same by iptables"
            chain_on_macvlan "macvlan, tuning, sbr"
        }
    };
    ($sweep:path: $($test:ident $subject:literal)*) => {
        $(
            #[test]
            fn $test() {
                $crate::support::subject::in_a_lab($subject, $sweep);
            }
        )*

        #[test]
        fn every_subject_has_a_test() {
            let names: Vec<&str> = $crate::support::subject::all().iter().map(|subject| subject.name).collect();
            assert_eq!(names, [$($subject),*]);
        }
    };
}
pub(crate) use test_each_subject;

/// Runs the sweep of a subject in a lab of its own, if the kernel supports it.
pub fn in_a_lab(name: &str, sweep: impl Fn(&Lab, &Subject)) {
    let subject = all().into_iter().find(|subject| subject.name == name).expect("a subject");
    for_ours(subject.plugins[0]["type"].as_str().unwrap(), |lab| {
        if (subject.prepare)(lab) {
            sweep(lab, &subject);
        }
    });
}
