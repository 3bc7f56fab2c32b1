//! The subjects of the sweeps: every plugin with all of its features, and whole chains.

use serde_json::{Value, json};

use super::attachment::{Attachment, for_ours, with};
use super::extent::{is_emulated, is_long};
use super::netns::{Container, Lab};
use super::networks::bridge::static_ipam;
use super::networks::firewall::{DROPPING, firewall};
use super::networks::portmap::{self, web};
use super::networks::stacked::{IPVLAN, MACVLAN, VLAN};
use super::networks::tuning::{every_attribute, tuning};
use super::networks::{bandwidth, bond, bridge, dummy, fastpath, flannel, host_device, ovs, ptp};
use super::networks::{route_override, tap, vrf};

/// A network that a sweep adds and deletes under faults.
pub struct Subject {
    pub name: &'static str,
    /// Sets up the host. Returns false, after a skip, if the kernel lacks a feature.
    pub prepare: fn(&Lab) -> bool,
    /// The plugin configurations of the list, without its name and version.
    pub plugins: Vec<Value>,
}

impl Subject {
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

fn is_strict_and_limits(lab: &Lab) -> bool {
    strict_host(lab) && bandwidth::can_limit(lab)
}

/// A dual-stack bridge with all of its features on.
fn whole_bridge(backend: &str) -> Value {
    with(
        &portmap::network(),
        json!({"ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true}),
    )
}

fn ports(backend: &str) -> Value {
    let udp = json!({"hostPort": 5353, "containerPort": 53, "protocol": "udp"});
    portmap::portmap(Some(backend), json!([web(), udp]))
}

/// cluster-local with blocks that its daemon has confirmed; it does not run.
fn held() -> Value {
    let held = json!({"type": "cluster-local", "blockSize": 64, "patience": 0});
    json!({"type": "cluster-local", "ipam": with(&bridge::dual_stack()["ipam"], held)})
}

fn hold_blocks(lab: &Lab) -> bool {
    let plugins = vec![held()];
    let subject = Subject { name: "cluster-local, held", prepare: any_host, plugins };
    subject.attach(lab, &lab.container())[0].try_add(); // it writes what is configured
    let chunks = ["4-0a0a0000-26", "6-20010db8001000000000000000000000-122"];
    lab.hold("net1", &chunks.map(|chunk| (chunk, json!({}))));
    lab.confirm();
    true
}

/// Every subject: the main plugins alone; the IPAM plugins alone, which the others run under a main plugin; the chained
/// plugins, each after a bridge; and lists as container engines configure them.
pub fn all() -> Vec<Subject> {
    let nftables = json!({"ipMasq": true, "ipMasqBackend": "nftables"});
    let route = json!({"ipam": {"routes": [{"dst": "10.99.0.0/16"}]}});
    let ranges = bridge::dual_stack()["ipam"].clone();
    let shared = with(&ranges, json!({"type": "cluster-local", "scope": "machine"}));
    let translated = json!({"type": "whereabouts", "scope": "machine",
        "ipRanges": [{"range": "10.10.0.0/24"}, {"range": "fd00:10::/64"}]});
    let fixed =
        static_ipam(&json!({"type": "static"}), json!([{"address": "10.10.0.5/24"}]), json!([]));
    let simple = || with(&bridge::dual_stack(), json!({"isDefaultGateway": true}));
    let isolated = json!({"type": "firewall", "ingressPolicy": "same-bridge"});
    let sbr = || json!({"type": "sbr"});
    let vrf_blue = json!({"type": "vrf", "vrfname": "blue"});
    let tuned =
        || tuning(with(&every_attribute(), json!({"sysctl": {"net.core.somaxconn": "517"}})));
    let of_five = |backend: &str, firewall: Value| {
        // A bridge port accepts only the container's original MAC address.
        let tuned = with(&tuned(), json!({"mac": null}));
        vec![whole_bridge(backend), ports(backend), firewall, tuned, bandwidth::both()]
    };
    type Row = (&'static str, fn(&Lab) -> bool, Vec<Value>);
    let rows: Vec<Row> = vec![
        ("bridge", any_host, vec![whole_bridge("nftables")]),
        ("bridge, iptables", any_host, vec![whole_bridge("iptables")]),
        ("ptp", any_host, vec![with(&ptp::conf(), nftables)]),
        (
            "bridge, fastPath",
            fastpath::prepare,
            vec![with(&whole_bridge("nftables"), json!({"fastPath": true}))],
        ),
        ("ptp, fastPath", fastpath::prepare, vec![fastpath::fast(&ptp::conf())]),
        ("macvlan", any_host, vec![MACVLAN.dual_stack()]),
        ("ipvlan", |lab| IPVLAN.is_in(lab), vec![IPVLAN.dual_stack()]),
        ("vlan", |lab| VLAN.is_in(lab), vec![VLAN.dual_stack()]),
        ("host-device", with_device, vec![host_device::leased()]),
        ("dummy", dummy::makes_dummies, vec![with(&dummy::conf(), route)]),
        ("tap", tap::makes_taps, vec![with(&tap::conf(), json!({"ipam": {"routes": []}}))]),
        ("loopback", any_host, vec![json!({"type": "loopback"})]),
        ("flannel", flannel::node, vec![flannel::conf()]),
        ("bond", bond::with_ports, vec![bond::leased()]),
        ("ovs", ovs::node, vec![ovs::every_key()]),
        ("host-local", any_host, vec![json!({"type": "host-local", "ipam": ranges})]),
        ("static", any_host, vec![fixed]),
        ("cluster-local", any_host, vec![json!({"type": "cluster-local", "ipam": shared})]),
        ("cluster-local, held", hold_blocks, vec![held()]),
        ("whereabouts", any_host, vec![json!({"type": "whereabouts", "ipam": translated})]),
        ("portmap", any_host, vec![portmap::network(), ports("nftables")]),
        ("portmap, iptables", any_host, vec![portmap::network(), ports("iptables")]),
        (
            "ptp, portmap", // each container's link is open to 127.0.0.0/8 while its ports are published
            any_host,
            vec![json!({"type": "ptp", "ipam": ranges}), ports("nftables")],
        ),
        ("firewall", strict_host, vec![simple(), isolated]),
        ("firewall, iptables", strict_host, vec![simple(), firewall(Some("iptables"))]),
        ("tuning", any_host, vec![simple(), tuned()]),
        ("bandwidth", bandwidth::can_limit, vec![bandwidth::network(), bandwidth::both()]),
        ("sbr", any_host, vec![simple(), sbr()]),
        ("vrf", |lab| vrf::has_vrf(&lab.container()), vec![simple(), vrf_blue]),
        ("route-override", any_host, vec![simple(), route_override::every_key()]),
        (
            "bridge, portmap, firewall, tuning, bandwidth",
            is_strict_and_limits,
            of_five("nftables", json!({"type": "firewall"})),
        ),
        (
            "the same by iptables",
            is_strict_and_limits,
            of_five("iptables", firewall(Some("iptables"))),
        ),
        ("macvlan, tuning, sbr", any_host, vec![MACVLAN.dual_stack(), tuned(), sbr()]),
    ];
    let of_row = |(name, prepare, plugins)| Subject { name, prepare, plugins };
    rows.into_iter().map(of_row).collect()
}

/// One test per subject, so that each can be skipped if the kernel lacks a feature.
macro_rules! test_each_subject {
    ($sweep:path) => {
        $crate::support::subject::test_each_subject! { $sweep:
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
            portmap_on_ptp "ptp, portmap"
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
