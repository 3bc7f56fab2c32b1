//! Network configurations for macvlan, ipvlan and vlan: links on top of a lower link.

use serde_json::{Value, json};

use super::bridge::static_ipam;
use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::kernel::has_link;
use crate::support::netns::{Container, Lab};

/// The addresses of the peer outside in the containers' subnets.
pub const PEER: [&str; 2] = ["10.10.0.1", "2001:db8:10::1"];

/// A plugin of this kind; its name is also the kernel's name of the link kind.
pub struct Stacked {
    pub plugin: &'static str,
    /// A link of the plugin's kind on the uplink.
    probe: &'static str,
    /// The link of the peer outside on the containers' network.
    pub peer_link: &'static str,
    /// Creates `peer_link`.
    segment: &'static str,
    /// Keys besides `master` that the network needs.
    keys: fn() -> Value,
}

pub const MACVLAN: Stacked = Stacked {
    plugin: "macvlan",
    probe: "link uplink name probe type macvlan",
    peer_link: "uplink",
    segment: "true",
    keys: || json!({}),
};

pub const IPVLAN: Stacked =
    Stacked { plugin: "ipvlan", probe: "link uplink name probe type ipvlan", ..MACVLAN };

pub const VLAN: Stacked = Stacked {
    plugin: "vlan",
    probe: "link uplink name probe type vlan id 4000",
    peer_link: "uplink.100",
    segment: "ip -n outside link add link uplink name uplink.100 up type vlan id 100",
    keys: || json!({"vlanId": 100}),
};

impl Stacked {
    /// The network that most cases start from.
    pub fn conf(&self) -> Value {
        let base = json!({
            "cniVersion": "1.0.0", "name": "net1", "type": self.plugin, "master": "uplink",
            "ipam": {"type": "host-local", "subnet": "10.10.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
        });
        with(&base, (self.keys)())
    }

    pub fn dual_stack(&self) -> Value {
        let ranges = json!([[{"subnet": "10.10.0.0/24"}], [{"subnet": "2001:db8:10::/64"}]]);
        let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        with(&self.conf(), json!({"ipam": {"subnet": null, "ranges": ranges, "routes": routes}}))
    }

    /// A network with one address and no routes.
    pub fn address(&self, address: &str) -> Value {
        static_ipam(&self.conf(), json!([{"address": address}]), json!([]))
    }

    /// As `support::attachment::for_each_peer`, in labs where the peer outside is a neighbour;
    /// skips a kernel that lacks the link kind.
    pub fn for_each_peer(&self, case: impl Fn(&Lab)) {
        for_each_peer(self.plugin, |lab| self.run(lab, &case));
    }

    pub fn for_ours(&self, case: impl Fn(&Lab)) {
        for_ours(self.plugin, |lab| self.run(lab, &case));
    }

    /// Whether this kernel supports the link kind; skips the case if it does not.
    pub fn is_in(&self, lab: &Lab) -> bool {
        has_link(&lab.host, self.plugin, self.probe)
    }

    /// Makes the peer outside a neighbour. Returns false, after a skip, if the kernel lacks the
    /// link kind.
    pub fn prepare(&self, lab: &Lab) -> bool {
        if !self.is_in(lab) {
            return false;
        }
        lab.host.sh(self.segment);
        let (dev, [v4, v6]) = (self.peer_link, PEER);
        lab.outside
            .sh(&format!("ip addr add {v4}/24 dev {dev} && ip addr add {v6}/64 dev {dev} nodad"));
        true
    }

    fn run(&self, lab: &Lab, case: &impl Fn(&Lab)) {
        if self.prepare(lab) {
            case(lab);
        }
    }
}

/// A container without duplicate address detection, which costs each ADD a second or two.
pub fn hasty_container(lab: &Lab) -> Container {
    let container = lab.container();
    container.sh("echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad");
    container
}
