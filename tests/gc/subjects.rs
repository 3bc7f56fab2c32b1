//! Each plugin in two networks, and what its GC removes.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::support::attachment::with;
use crate::support::dhcp::scripted::Scripted;
use crate::support::dhcp::{Daemon, Kind};
use crate::support::kernel::{has_flowtables, has_link};
use crate::support::netns::Lab;
use crate::support::networks::bandwidth::can_limit;
use crate::support::networks::bond::has_bonds;
use crate::support::networks::firewall::DROPPING;
use crate::support::networks::vrf::has_vrf;
use crate::support::networks::{dummy, ovs, tap};
use crate::support::table::cells;

/// A plugin; the kinds of object that its GC removes; its configuration, after that of the plugin that it is chained
/// after; and what the host needs. `NET` is the number of the network, and `NTH` that of the attachment. A configuration
/// begins with those keys that it shares with others.
const TABLE: &str = r#"
bridge | veth pairs, leases | bridge {}
bridge | masquerade, spoofcheck | bridge {"ipMasq": true, "macspoofchk": true, "ipMasqBackend": "nftables"}
bridge | fastpath | bridge {"fastPath": true} | flowtables
bridge | chains of masquerade | bridge {"ipMasq": true, "ipMasqBackend": "iptables"}
host-device | devices, /run/cni/host-device, leases | leased {"type": "host-device", "device": "devNETNTH"} | devices
ipvlan | leases, /run/cni/ipvlan | leased {"type": "ipvlan", "master": "uplink"} | ipvlan
loopback | /run/cni/loopback | named {"type": "loopback"}
flannel | veth pairs, leases, /var/lib/cni/flannel | named {"type": "flannel", "subnetFile": "/run/NET.env", "delegate": {"bridge": "cniNET"}} | flanneld
bond | devices, /run/cni/bond, /run/cni/bond-links, leases | leased {"type": "bond", "mode": "active-backup", "links": [{"name": "devNETNTH"}, {"name": "devbNETNTH"}]} | bonds
ovs | ports of ovs, veth pairs, leases, /var/lib/cni/ovs-cni/cache | leased {"type": "ovs", "bridge": "ovs0"} | ovs
macvlan | leases, /run/cni/macvlan | macvlan {}
ptp | veth pairs, leases | leased {"type": "ptp"}
ptp | masquerade | leased {"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"}
ptp | fastpath | leased {"type": "ptp", "fastPath": true} | flowtables
ptp | chains of masquerade | leased {"type": "ptp", "ipMasq": true, "ipMasqBackend": "iptables"}
vlan | leases, /run/cni/vlan | leased {"type": "vlan", "master": "uplink", "vlanId": NET0NTH} | vlan id 4000
dummy | leases, /run/cni/dummy | leased {"type": "dummy"} | dummies
tap | leases, /run/cni/tap | leased {"type": "tap"} | taps
host-local | leases | macvlan {}
cluster-local | shared leases | macvlan {"ipam": {"type": "cluster-local", "scope": "machine"}}
whereabouts | shared leases | macvlan {"ipam": {"type": "whereabouts", "scope": "machine", "range": "10.NET1.0.0/24", "subnet": null}}
static |  | leased {"type": "static", "ipam": {"type": "static", "subnet": null, "addresses": [{"address": "10.NET0.0.10NTH/24"}]}}
dhcp | /run/cni/dhcp.leases | macvlan {"master": "lan", "ipam": {"type": "dhcp", "subnet": null}} | a server
tuning | /run/cni/tuning | macvlan {} + named {"type": "tuning", "mtu": 1400}
portmap | portmap | bridge {} + port {"backend": "nftables"}
portmap | chains of portmap | bridge {} + port {"backend": "iptables"}
firewall | firewall, accept rules | bridge {} + named {"type": "firewall"} | dropping
firewall | accept rules | bridge {} + named {"type": "firewall", "backend": "iptables"} | dropping
bandwidth | ifbs | bridge {} + named {"type": "bandwidth", "egressRate": 20000000, "egressBurst": 2000000, "ingressRate": 20000000, "ingressBurst": 2000000} | limits
sbr | /run/cni/sbr | macvlan {} + named {"type": "sbr"}
vrf | /run/cni/vrf | macvlan {} + named {"type": "vrf", "vrfname": "blue"} | vrf
route-override |  | macvlan {} + named {"type": "route-override", "flushgateway": true}
"#;

/// The kinds of object that are no files in a directory, and the parts of a snapshot's line that show one.
const KINDS: &str = r#"
leases | + file: & /var/lib/cni/networks/net1/
shared leases | + file: & /var/lib/cni/cluster-local/.machine/default/
veth pairs | + link: & "info_kind":"veth" & net: net1
devices | - link: & "ifname":"dev
ifbs | + link: & "info_kind":"ifb" & net: net1
masquerade | + nft: & goto net-10.10.0.0/24
chains of masquerade | + nft: & chain CNI-
spoofcheck | + nft: & "veth &  .  & net: net1
fastpath | + nft: & 10.10.0. & net: net1
portmap | + nft: & tcp . 810 & net: net1
chains of portmap | + nft: & chain CNI-DN-
firewall | + nft: & 10.10.0. & net: net1
accept rules | + nft: & 10.10.0. & accept
ports of ovs | + ovs: & net=net1
"#;

/// A plugin with the plugins it needs before it in a chain.
pub struct Subject {
    /// The plugin under test.
    pub plugin: &'static str,
    /// What GC removes: the kind of object, and the parts of a line of a snapshot that show it.
    pub removes: Vec<(&'static str, Vec<String>)>,
    confs: &'static str,
    needs: &'static str,
}

/// A value that stops something when dropped, such as a server.
pub trait Held {}
impl<T> Held for T {}

pub static SUBJECTS: LazyLock<Vec<Subject>> = LazyLock::new(|| {
    let kinds = cells(KINDS);
    let parts = |kind: &'static str| match kinds.iter().find(|[it, _]| *it == kind) {
        Some([_, parts]) => (kind, parts.split(" & ").map(str::to_owned).collect()),
        None => (kind, vec!["+ file: ".to_owned(), format!("{kind}/")]),
    };
    let subject = |[plugin, removes, confs, needs]: [&'static str; 4]| {
        let removes = removes.split(", ").filter(|kind| !kind.is_empty()).map(parts).collect();
        Subject { plugin, removes, confs, needs }
    };
    cells(TABLE).into_iter().map(subject).collect()
});

impl Subject {
    /// Whether the reference can make attachments of the other network in an ordinary lab.
    pub fn reference_too(&self) -> bool {
        !["ovs", "dhcp"].contains(&self.plugin)
    }

    /// Whether GC of any network removes what the reference left of a stale attachment, because the
    /// leftovers do not name their network.
    pub fn of_any_network(&self) -> bool {
        self.plugin == "bandwidth"
    }

    /// Whether a case may destroy a namespace: false if that destroys a device of the host or is
    /// noticed by a daemon.
    pub fn vanishes(&self) -> bool {
        !["host-device", "bond", "dhcp"].contains(&self.plugin)
    }

    /// The configurations of the chain for the `nth` attachment to network 1 or 2.
    pub fn chain(&self, network: u8, nth: u8) -> Vec<Value> {
        let text = self.confs.replace("NET", &network.to_string()).replace("NTH", &nth.to_string());
        let conf = |text: &str| {
            let (base, keys) = text.split_once(' ').unwrap();
            let keys = serde_json::from_str(keys).unwrap_or_else(|e| panic!("{keys}: {e}"));
            with(&shared(base, network, nth), keys)
        };
        text.split(" + ").map(conf).collect()
    }

    /// Prepares the host; `None` after a skip if that is not possible.
    pub fn prepare<'a>(&self, lab: &'a Lab) -> Option<Box<dyn Held + 'a>> {
        let is_able = match self.needs {
            "" => true,
            "flowtables" => has_flowtables(lab),
            "dummies" => dummy::makes_dummies(lab),
            "taps" => tap::makes_taps(lab),
            "ovs" => ovs::node(lab),
            "limits" => can_limit(lab),
            "vrf" => has_vrf(&lab.container()),
            "devices" => pairs(lab, "peer", "netns outside"),
            "bonds" => has_bonds(lab) && pairs(lab, "devb", ""),
            "flanneld" => {
                for net in [1, 2] {
                    let subnet = format!("FLANNEL_SUBNET=10.{net}0.0.1/24");
                    let rest = "FLANNEL_NETWORK=10.0.0.0/8\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true";
                    lab.write(&format!("/run/{net}.env"), format!("{rest}\n{subnet}\n"));
                }
                true
            }
            "dropping" => {
                lab.host.sh(DROPPING);
                true
            }
            "a server" => {
                lab.lan(Kind::Macvlan);
                let server = Scripted::start(lab, json!({"lease": 3600}));
                return Some(Box::new((server, Daemon::start(lab))));
            }
            kind => {
                has_link(&lab.host, self.plugin, &format!("link uplink name probe type {kind}"))
            }
        };
        is_able.then(|| Box::new(()) as Box<dyn Held>)
    }
}

/// The keys that configurations share.
fn shared(base: &str, network: u8, nth: u8) -> Value {
    let named = json!({"cniVersion": "1.1.0", "name": format!("net{network}")});
    let ipam = json!({"type": "host-local", "subnet": format!("10.{network}0.0.0/24")});
    let leased = with(&named, json!({"ipam": ipam}));
    let port = 8000 + 100 * u16::from(network) + u16::from(nth);
    let mapping = json!({"hostPort": port, "containerPort": 80, "protocol": "tcp"});
    match base {
        "named" => named,
        "leased" => leased,
        "macvlan" => with(&leased, json!({"type": "macvlan", "master": "uplink"})),
        "port" => {
            let ports = json!({"portMappings": [mapping]});
            with(&named, json!({"type": "portmap", "runtimeConfig": ports}))
        }
        _ => {
            let bridge = format!("br{network}");
            with(&leased, json!({"type": "bridge", "bridge": bridge, "isGateway": true}))
        }
    }
}

/// Two ends of a pair for each attachment of a case. Where the second stays outside the containers: a veth pair is
/// destroyed with the namespace of either end.
fn pairs(lab: &Lab, second: &str, place: &str) -> bool {
    lab.host.sh(&format!(
        "for network in 1 2; do for nth in $(seq 0 11); do
             echo link add dev$network$nth type veth peer name {second}$network$nth {place}
         done; done | ip -b -"
    ));
    true
}
