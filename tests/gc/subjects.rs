//! Each plugin in two networks, and what its GC removes.

use serde_json::{Value, json};

use crate::support::attachment::{skip, with};
use crate::support::dhcp::scripted::Scripted;
use crate::support::dhcp::{Daemon, Kind};
use crate::support::kernel::has_flowtables;
use crate::support::netns::Lab;
use crate::support::networks::bandwidth::can_limit;
use crate::support::networks::bond::has_bonds;
use crate::support::networks::dummy::makes_dummies;
use crate::support::networks::firewall::DROPPING;
use crate::support::networks::ovs;
use crate::support::networks::tap::makes_taps;
use crate::support::networks::vrf::has_vrf;

/// A plugin with the plugins it needs before it in a chain.
pub struct Subject {
    /// The plugin under test.
    pub plugin: &'static str,
    /// The configurations of the chain for the `nth` attachment to network 1 or 2.
    pub chain: fn(network: u8, nth: u8) -> Vec<Value>,
    /// Prepares the host; `None` after a skip if that is not possible.
    pub prepare: for<'a> fn(&'a Lab) -> Option<Box<dyn Held + 'a>>,
    /// What GC removes, in the words of docs/status-and-gc.md.
    pub removes: &'static [Kept],
    /// Whether the reference can make attachments of the other network in an ordinary lab.
    pub reference_too: bool,
    /// Whether GC of any network removes what the reference left of a stale attachment, because the
    /// leftovers do not name their network.
    pub of_any_network: bool,
    /// Whether a case may destroy a namespace: false if that destroys a device of the host or is
    /// noticed by a daemon.
    pub vanishes: bool,
}

/// A value that stops something when dropped, such as a server.
pub trait Held {}
impl<T> Held for T {}

/// A kind of object, and the substrings of a snapshot line that identify one.
pub struct Kept(pub &'static str, pub &'static [&'static str]);

const LEASE: Kept = Kept("leases", &["+ file: ", "/var/lib/cni/networks/net1/"]);
const PAIR: Kept = Kept("veth pairs", &["+ link: ", "\"info_kind\":\"veth\"", "net: net1"]);
const MASQUERADE: Kept =
    Kept("elements of `cni_multi_masquerade`", &["+ nft: ", "goto net-10.10.0.0/24"]);
const MASQUERADE_CHAIN: Kept = Kept("chains `CNI-…` of iptables", &["+ nft: ", "chain CNI-"]);
const SPOOF: Kept = Kept("`cni_multi_spoofcheck`", &["+ nft: ", "\"veth", " . ", "net: net1"]);
const FAST: Kept = Kept("`cni_multi_fastpath`", &["+ nft: ", "10.10.0.", "net: net1"]);
const PORT: Kept = Kept("elements of `cni_multi_portmap`", &["+ nft: ", "tcp . 810", "net: net1"]);
const PORT_CHAIN: Kept = Kept("chains `CNI-DN-…` of iptables", &["+ nft: ", "chain CNI-DN-"]);
const ADMITTED: Kept =
    Kept("elements of `cni_multi_firewall`", &["+ nft: ", "10.10.0.", "net: net1"]);
const ACCEPT: Kept =
    Kept("rules of its addresses in iptables' table filter", &["+ nft: ", "10.10.0.", "accept"]);
const IFB: Kept = Kept("ifbs", &["+ link: ", "\"info_kind\":\"ifb\"", "net: net1"]);
const TUNED: Kept = Kept("files in `dataDir`", &["+ file: ", "/run/cni/tuning/"]);
const RULES: Kept = Kept("files in `/run/cni/sbr`", &["+ file: ", "/run/cni/sbr/"]);
const JOINED: Kept = Kept("files in `/run/cni/vrf`", &["+ file: ", "/run/cni/vrf/"]);
const DEVICE: Kept =
    Kept("devices in containers, which come back", &["- link: ", "\"ifname\":\"dev"]);
const LOOPBACK: Kept = Kept("files in `/run/cni/loopback`", &["+ file: ", "/run/cni/loopback/"]);
const DELEGATED: Kept =
    Kept("kept configurations in `dataDir`", &["+ file: ", "/var/lib/cni/flannel/"]);
const ROW: Kept = Kept("ports of Open vSwitch", &["+ ovs: ", "net=net1"]);
const CACHED: Kept =
    Kept("files in `/var/lib/cni/ovs-cni/cache`", &["+ file: ", "/var/lib/cni/ovs-cni/cache/"]);
const MACVLAN: Kept = Kept("files in `/run/cni/macvlan`", &["+ file: ", "/run/cni/macvlan/"]);
const IPVLAN: Kept = Kept("files in `/run/cni/ipvlan`", &["+ file: ", "/run/cni/ipvlan/"]);
const VLAN: Kept = Kept("files in `/run/cni/vlan`", &["+ file: ", "/run/cni/vlan/"]);
const DUMMY: Kept = Kept("files in `/run/cni/dummy`", &["+ file: ", "/run/cni/dummy/"]);
const TAP: Kept = Kept("files in `/run/cni/tap`", &["+ file: ", "/run/cni/tap/"]);
const PASSAGE: Kept =
    Kept("files in `/run/cni/host-device`", &["+ file: ", "/run/cni/host-device/"]);
const BOND: Kept = Kept("files in `/run/cni/bond`", &["+ file: ", "/run/cni/bond/"]);
const PORTS: Kept = Kept("links in containers, which come back", &["- link: ", "\"ifname\":\"dev"]);
const PORTS_KEPT: Kept =
    Kept("files in `/run/cni/bond-links`", &["+ file: ", "/run/cni/bond-links/"]);
const SHARED: Kept = Kept("leases", &["+ file: ", "/var/lib/cni/cluster-local/.machine/default/"]);
const SERVED: Kept =
    Kept("leases, which are given back to the server", &["+ file: ", "/run/cni/dhcp.leases/"]);

fn masqueraded_ptp(network: u8, backend: &str) -> Value {
    with(&leased(network), json!({"type": "ptp", "ipMasq": true, "ipMasqBackend": backend}))
}

pub static SUBJECTS: [Subject; 32] = [
of("bridge", &[PAIR, LEASE], |network, _| vec![bridge(network, json!({}))]),
of("bridge", &[MASQUERADE, SPOOF], |network, _| {
            vec![bridge(
                network,
                json!({"ipMasq": true, "macspoofchk": true, "ipMasqBackend": "nftables"}),
            )]
        }),
of("bridge", &[FAST], |network, _| vec![bridge(network, json!({"fastPath": true}))]).on(|lab| has_flowtables(lab).then(nothing)),
of("bridge", &[MASQUERADE_CHAIN], |network, _| {
            vec![bridge(network, json!({"ipMasq": true, "ipMasqBackend": "iptables"}))]
        }),
of("host-device", &[DEVICE, PASSAGE, LEASE], |network, nth| {
            vec![with(
                &leased(network),
                json!({"type": "host-device", "device": format!("dev{network}{nth}")}),
            )]
        }).on(devices).in_a_lasting_namespace(),
of("ipvlan", &[LEASE, IPVLAN], |network, _| {
            vec![with(&leased(network), json!({"type": "ipvlan", "master": "uplink"}))]
        }).on(|lab| has_kind(lab, "ipvlan")),
of("loopback", &[LOOPBACK], |network, _| vec![with(&named(network), json!({"type": "loopback"}))]),
of("flannel", &[PAIR, LEASE, DELEGATED], |network, _| {
            let file = format!("/run/{network}.env");
            let keys = json!({"type": "flannel", "subnetFile": file,
                "delegate": {"bridge": format!("cni{network}")}});
            vec![with(&named(network), keys)]
        }).on(|lab| {
            for nth in [1, 2] {
                lab.host.sh(&format!(
                    "printf 'FLANNEL_NETWORK=10.0.0.0/8\nFLANNEL_SUBNET=10.{nth}0.0.1/24\n\
                     FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' >/run/{nth}.env"
                ));
            }
            Some(nothing())
        }),
of("bond", &[PORTS, BOND, PORTS_KEPT, LEASE], |network, nth| {
            let links = json!([{"name": format!("dev{network}{nth}")}, {"name": format!("devb{network}{nth}")}]);
            let keys = json!({"type": "bond", "mode": "active-backup", "links": links});
            vec![with(&leased(network), keys)]
        }).on(|lab| has_bonds(lab).then(|| pairs(lab))).in_a_lasting_namespace(),
of("ovs", &[ROW, PAIR, LEASE, CACHED], |network, _| {
            vec![with(&leased(network), json!({"type": "ovs", "bridge": "ovs0"}))]
        }).on(|lab| ovs::node(lab).then(nothing)).by_ours_alone(),
of("macvlan", &[LEASE, MACVLAN], |network, _| vec![macvlan(network)]),
of("ptp", &[PAIR, LEASE], |network, _| vec![with(&leased(network), json!({"type": "ptp"}))]),
of("ptp", &[MASQUERADE], |network, _| vec![masqueraded_ptp(network, "nftables")]),
of("ptp", &[FAST], |network, _| {
            vec![with(&leased(network), json!({"type": "ptp", "fastPath": true}))]
        }).on(|lab| has_flowtables(lab).then(nothing)),
of("ptp", &[MASQUERADE_CHAIN], |network, _| vec![masqueraded_ptp(network, "iptables")]),
of("vlan", &[LEASE, VLAN], |network, nth| {
            let id = 100 * u16::from(network) + u16::from(nth);
            vec![with(&leased(network), json!({"type": "vlan", "master": "uplink", "vlanId": id}))]
        }).on(|lab| has_kind(lab, "vlan")),
of("dummy", &[LEASE, DUMMY], |network, _| vec![with(&leased(network), json!({"type": "dummy"}))]).on(|lab| makes_dummies(lab).then(nothing)),
of("tap", &[LEASE, TAP], |network, _| vec![with(&leased(network), json!({"type": "tap"}))]).on(|lab| makes_taps(lab).then(nothing)),
of("host-local", &[LEASE], |network, _| vec![macvlan(network)]),
of("cluster-local", &[SHARED], |network, _| {
            let ipam = json!({"ipam": {"type": "cluster-local", "scope": "machine"}});
            vec![with(&macvlan(network), ipam)]
        }),
of("whereabouts", &[SHARED], |network, _| {
            let range = format!("10.{network}1.0.0/24");
            let ipam = json!({"type": "whereabouts", "scope": "machine", "range": range});
            let without = with(&macvlan(network), json!({"ipam": null}));
            vec![with(&without, json!({"ipam": ipam}))]
        }),
of("static", &[], |network, nth| {
            let address = format!("10.{network}0.0.{}/24", 100 + nth);
            let ipam =
                json!({"type": "static", "subnet": null, "addresses": [{"address": address}]});
            vec![with(&macvlan(network), json!({"type": "static", "master": null, "ipam": ipam}))]
        }),
of("dhcp", &[SERVED], |network, _| {
            vec![with(
                &macvlan(network),
                json!({"master": "lan", "ipam": {"type": "dhcp", "subnet": null}}),
            )]
        }).on(dhcp).by_ours_alone().in_a_lasting_namespace(),
of("tuning", &[TUNED], |network, _| {
            vec![macvlan(network), chained(network, json!({"type": "tuning", "mtu": 1400}))]
        }),
of("portmap", &[PORT], |network, nth| {
            vec![bridge(network, json!({})), portmap(network, nth, "nftables")]
        }),
of("portmap", &[PORT_CHAIN], |network, nth| {
            vec![bridge(network, json!({})), portmap(network, nth, "iptables")]
        }),
of("firewall", &[ADMITTED, ACCEPT], |network, _| {
            vec![bridge(network, json!({})), chained(network, json!({"type": "firewall"}))]
        }).on(dropping),
of("firewall", &[ACCEPT], |network, _| {
            let keys = json!({"type": "firewall", "backend": "iptables"});
            vec![bridge(network, json!({})), chained(network, keys)]
        }).on(dropping),
of("bandwidth", &[IFB], |network, _| {
            let limits = json!({"egressRate": 20_000_000, "egressBurst": 2_000_000, "ingressRate": 20_000_000, "ingressBurst": 2_000_000});
            vec![
                bridge(network, json!({})),
                chained(network, with(&limits, json!({"type": "bandwidth"}))),
            ]
        }).on(|lab| can_limit(lab).then(nothing)).of_any_network(),
of("sbr", &[RULES], |network, _| vec![macvlan(network), chained(network, json!({"type": "sbr"}))]),
of("vrf", &[JOINED], |network, _| {
            vec![macvlan(network), chained(network, json!({"type": "vrf", "vrfname": "blue"}))]
        }).on(|lab| has_vrf(&lab.container()).then(nothing)),
of("route-override", &[], |network, _| {
            let keys = json!({"type": "route-override", "flushgateway": true});
            vec![macvlan(network), chained(network, keys)]
        }),
];

const fn of(
    plugin: &'static str,
    removes: &'static [Kept],
    chain: fn(u8, u8) -> Vec<Value>,
) -> Subject {
    Subject {
        plugin,
        chain,
        prepare: |_| Some(nothing()),
        removes,
        reference_too: true,
        of_any_network: false,
        vanishes: true,
    }
}

impl Subject {
    const fn on(self, prepare: for<'a> fn(&'a Lab) -> Option<Box<dyn Held + 'a>>) -> Subject {
        Subject { prepare, ..self }
    }

    const fn by_ours_alone(self) -> Subject {
        Subject { reference_too: false, ..self }
    }

    const fn of_any_network(self) -> Subject {
        Subject { of_any_network: true, ..self }
    }

    const fn in_a_lasting_namespace(self) -> Subject {
        Subject { vanishes: false, ..self }
    }
}

fn nothing() -> Box<dyn Held> {
    Box::new(())
}

fn named(network: u8) -> Value {
    json!({"cniVersion": "1.1.0", "name": format!("net{network}")})
}

/// The configuration of a main plugin without its type.
fn leased(network: u8) -> Value {
    let ipam = json!({"type": "host-local", "subnet": format!("10.{network}0.0.0/24")});
    with(&named(network), json!({"ipam": ipam}))
}

fn bridge(network: u8, changes: Value) -> Value {
    let base = json!({"type": "bridge", "bridge": format!("br{network}"), "isGateway": true});
    with(&with(&leased(network), base), changes)
}

fn macvlan(network: u8) -> Value {
    with(&leased(network), json!({"type": "macvlan", "master": "uplink"}))
}

fn chained(network: u8, conf: Value) -> Value {
    with(&named(network), conf)
}

fn portmap(network: u8, nth: u8, backend: &str) -> Value {
    let port = 8000 + 100 * u16::from(network) + u16::from(nth);
    let mapping = json!({"hostPort": port, "containerPort": 80, "protocol": "tcp"});
    let conf = json!({"type": "portmap", "backend": backend, "runtimeConfig": {"portMappings": [mapping]}});
    chained(network, conf)
}

fn has_kind(lab: &Lab, kind: &'static str) -> Option<Box<dyn Held>> {
    let id = if kind == "vlan" { "id 4000" } else { "" };
    let probe = format!("ip link add link uplink name probe type {kind} {id} && ip link del probe");
    let made = lab.host.try_sh(&probe).status.success();
    if !made {
        skip(kind);
    }
    made.then(nothing)
}

fn dropping(lab: &Lab) -> Option<Box<dyn Held + '_>> {
    lab.host.sh(DROPPING);
    Some(nothing())
}

/// A device for each attachment of a case. The peer stays outside the containers: a veth pair is
/// destroyed with the namespace of either end.
fn devices(lab: &Lab) -> Option<Box<dyn Held + '_>> {
    for network in [1, 2] {
        for nth in 0..12 {
            lab.host.sh(&format!(
                "ip link add dev{network}{nth} type veth peer name peer{network}{nth} netns outside"
            ));
        }
    }
    Some(nothing())
}

/// Two links for each bond, both ends of a pair.
fn pairs(lab: &Lab) -> Box<dyn Held + '_> {
    let pair = |name: String| format!("link add dev{name} type veth peer name devb{name}\n");
    let lines: String = [1, 2]
        .iter()
        .flat_map(|network| (0..12).map(move |nth| pair(format!("{network}{nth}"))))
        .collect();
    lab.host.sh(&format!("ip -b - <<'END'\n{lines}END"));
    nothing()
}

fn dhcp(lab: &Lab) -> Option<Box<dyn Held + '_>> {
    lab.lan(Kind::Macvlan);
    let server = Scripted::start(lab, json!({"lease": 3600}));
    Some(Box::new((server, Daemon::start(lab))))
}
