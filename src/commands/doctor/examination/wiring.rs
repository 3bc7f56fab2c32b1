//! How an attachment is connected to the host, by its record and by the kernel.

use super::attachment::{Attachment, Inside, bridge_of};
use super::finding::{Finding, quoted};
use super::node::Node;
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::cni::json::Value;
use crate::cni::result::{AddResult, Route};
use crate::commands::fault::Fault;
use crate::family::Family;
use crate::net::netlink::{Address, Link};
use crate::runtime::list::PluginConfig;
use crate::runtime::parameters::{self, Parameters};
use crate::steps::veth;

/// What a published port is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Protocol::Tcp { "tcp" } else { "udp" })
    }
}

/// The links of an attachment that lives.
pub struct Wiring<'a> {
    /// The attachment.
    pub attachment: &'a Attachment,
    /// What is in its namespace.
    pub inside: &'a Inside,
    /// The plugin that has connected it.
    pub plugin: &'a PluginConfig,
    /// The container's interface.
    pub interface: Option<&'a Link>,
    /// The host's end of the pair, or the lower link.
    pub below: Option<&'a Link>,
    /// The bridge, if the network has one and it exists.
    pub bridge: Option<&'a Link>,
}

impl<'a> Wiring<'a> {
    /// The wiring of every attachment with a readable namespace and network.
    pub fn all(node: &'a Node<'_>) -> Vec<Wiring<'a>> {
        node.attachments.iter().filter_map(|attachment| Wiring::of(node, attachment)).collect()
    }

    /// The same, followed by the wiring of the attachments beside those that were asked for; and how many
    /// were asked for.
    pub fn with_others(node: &'a Node<'_>) -> (Vec<Wiring<'a>>, usize) {
        let mut all = Wiring::all(node);
        let asked = all.len();
        all.extend(node.others.iter().filter_map(|attachment| Wiring::of(node, attachment)));
        (all, asked)
    }

    fn of(node: &'a Node<'_>, attachment: &'a Attachment) -> Option<Wiring<'a>> {
        let inside = attachment.inside.as_ref()?;
        let plugin = attachment.list.as_ref()?.plugins.first()?;
        let ifname = attachment.at().key.ifname.as_str();
        let no_result = AddResult::default();
        let interface = inside.links.iter().find(|link| link.name == ifname);
        let below = interface.filter(|link| link.lower_is_elsewhere()).and_then(|link| {
            let below = node.link(link.lower?)?;
            // The container chooses the ifindex that its end names, and its own.
            let is_pair = || {
                let result = attachment.result.as_ref().unwrap_or(&no_result);
                below.lower == Some(link.index)
                    && veth::is_end_of(below, &attachment.at().key, result)
            };
            (link.kind != "veth" || is_pair()).then_some(below)
        });
        let wiring = Wiring { attachment, inside, plugin, interface, below, bridge: None };
        let bridge = wiring.bridge_name().and_then(|name| node.link_named(name));
        Some(Wiring { bridge, ..wiring })
    }

    /// A finding about the attachment.
    pub fn found(&self, fault: &'static Fault, evidence: impl Into<String>) -> Finding {
        self.attachment.found(fault, evidence)
    }

    /// Whether this plugin has connected it.
    pub fn is(&self, kind: &str) -> bool {
        self.plugin.kind == kind
    }

    /// Whether a veth pair connects it.
    pub fn is_pair(&self) -> bool {
        self.is("bridge") || self.is("ptp")
    }

    /// The name of its bridge, if it is on one.
    pub fn bridge_name(&self) -> Option<&'a str> {
        bridge_of(self.plugin)
    }

    /// A text of the plugin's configuration.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.plugin.value.get(key).and_then(Value::as_str)
    }

    /// Whether a key of the plugin's configuration is true.
    pub fn is_set(&self, key: &str) -> bool {
        self.plugin.value.get(key) == Some(&Value::Bool(true))
    }

    /// Whether the host is its gateway.
    pub fn is_routed(&self) -> bool {
        let keys = ["isGateway", "isDefaultGateway"];
        self.is("ptp") || self.is("bridge") && keys.iter().any(|key| self.is_set(key))
    }

    /// The ports of the bridge that lead to other machines.
    pub fn uplinks(&self, node: &'a Node<'_>) -> impl Iterator<Item = &'a Link> {
        let bridge = self.bridge.map(|bridge| bridge.index);
        let of_bridge = move |link: &&Link| bridge.is_some() && link.master == bridge;
        node.links.iter().filter(of_bridge).filter(|link| link.kind != "veth")
    }

    /// Whether the bridge has such a port.
    pub fn has_uplink(&self, node: &Node<'_>) -> bool {
        self.uplinks(node).next().is_some()
    }

    /// Whether the network is to end at its bridge, as podman's internal ones do: nothing routes
    /// its packets.
    pub fn is_internal(&self, node: &Node<'_>) -> bool {
        let has_route = self.attachment.result.as_ref().is_some_and(|it| !it.routes.is_empty());
        self.is("bridge") && !self.is_routed() && !has_route && !self.has_uplink(node)
    }

    /// Its VLAN of the bridge.
    pub fn vlan(&self) -> Option<u16> {
        let vlan = self.plugin.value.get("vlan").and_then(Value::as_u64)?;
        u16::try_from(vlan).ok().filter(|vlan| *vlan != 0)
    }

    /// Whether its gateway is in a VLAN of the bridge, on a link of its own.
    pub fn is_in_vlan(&self) -> bool {
        self.vlan().is_some()
    }

    /// The link of the host that has the gateway's addresses.
    pub fn gateway_link(&self) -> Option<&'a Link> {
        if self.is("ptp") { self.below } else { self.bridge }
    }

    /// The gateway of the container's packets to other networks, by the record of its ADD; a
    /// process in the container may have changed its routes.
    pub fn gateway(&self, family: Family) -> Option<IpAddr> {
        let result = self.attachment.result.as_ref()?;
        let mut ips = result.ips.iter().filter(|ip| Family::of_net(ip.address) == family);
        let of_address = ips.find_map(|ip| ip.gateway);
        let is_by_gateway = |route: &&Route| {
            Family::of_net(route.dst) == family && !route.gw.is_some_and(|gw| gw.is_unspecified())
        };
        let mut routes: Vec<&Route> = result.routes.iter().filter(is_by_gateway).collect();
        routes.sort_by_key(|route| route.dst.prefix_len());
        match routes.first() {
            Some(route) => route.gw.or(of_address),
            None if self.is("ptp") => of_address,
            None => None,
        }
    }

    /// The addresses of a link in the namespace, but for those that the kernel does not use, and loopback's.
    pub fn own_addresses(&self, link: &Link) -> impl Iterator<Item = &'a Address> {
        let index = link.index;
        self.inside.addresses.iter().filter(move |it| {
            it.link == index && !it.tentative && !it.dad_failed && !it.net.addr().is_loopback()
        })
    }

    /// The first recorded address of the family.
    pub fn ip(&self, family: Family) -> Option<IpAddr> {
        let ips = self.attachment.result.iter().flat_map(|result| &result.ips);
        ips.map(|ip| ip.address.addr()).find(|ip| Family::of(*ip) == family)
    }

    /// The gateways that the host is to be, or that a recorded route leads by. IPAM plugins name a
    /// gateway also where nobody is to have its address.
    pub fn used_gateways(&self) -> BTreeSet<IpAddr> {
        let Some(result) = self.attachment.result.as_ref() else { return BTreeSet::new() };
        let is_used = |gateway: &IpAddr| {
            let leads_by = |route: &Route| {
                Family::of_net(route.dst) == Family::of(*gateway)
                    && route.gw.is_none_or(|gw| gw == *gateway)
            };
            self.is_routed() || result.routes.iter().any(leads_by)
        };
        let gateways = result.ips.iter().filter_map(|ip| ip.gateway);
        gateways.chain(result.routes.iter().flat_map(Route::gateways)).filter(is_used).collect()
    }

    /// The ports of TCP and UDP that are published at this address of the host.
    pub fn published(&self, own: IpAddr) -> Vec<(SocketAddr, Protocol)> {
        let plugins = self.attachment.list.iter().flat_map(|list| &list.plugins);
        let mut portmaps = plugins.into_iter().filter(|plugin| plugin.kind == "portmap");
        let is_for_all = |plugin: &PluginConfig| {
            ["conditionsV4", "conditionsV6"].iter().all(|key| plugin.value.get(key).is_none())
        };
        if !portmaps.next().is_some_and(is_for_all) {
            return vec![];
        }
        let mappings = self.attachment.at().capability_args.get("portMappings");
        let published = |mapping: &Value| {
            let text = |key| mapping.get(key).and_then(Value::as_str).unwrap_or_default();
            let protocol = match text("protocol").to_ascii_lowercase().as_str() {
                "" | "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                _ => return None,
            };
            let ip: Option<IpAddr> = text("hostIP").parse().ok();
            let at = ip.filter(|ip| !ip.is_unspecified()).unwrap_or(own);
            let port = mapping.get("hostPort")?.as_u64()?.try_into().ok()?;
            let is_its = ip.is_none_or(|ip| Family::of(ip) == Family::of(own)) && !at.is_loopback();
            is_its.then_some((SocketAddr::new(at, port), protocol))
        };
        mappings.map(Value::items).unwrap_or_default().iter().filter_map(published).collect()
    }

    /// Whether the network keeps its containers from each other.
    pub fn isolates(&self) -> bool {
        let plugins = self.attachment.list.iter().flat_map(|list| &list.plugins);
        let is_isolated = |plugin: &PluginConfig| {
            plugin.value.get("ingressPolicy").and_then(Value::as_str) == Some("isolated")
        };
        self.is_set("portIsolation") || plugins.into_iter().any(is_isolated)
    }

    /// The host's link that routes the container's packets of the family to other networks; None if
    /// the host is not their gateway. While the gateway's address is missing, it is the link that
    /// the plugin gives the address to.
    pub fn router(&self, node: &'a Node<'_>, family: Family) -> Option<&'a Link> {
        let gateway = self.gateway(family).filter(|_| self.is_pair())?;
        if self.is("ptp") {
            return self.below;
        }
        let holders = || node.addresses.iter().filter(|it| it.net.addr() == gateway);
        let bridge = self.bridge.filter(|bridge| holders().any(|it| it.link == bridge.index));
        let holder = bridge.or_else(|| node.link(holders().next()?.link));
        let is_expected = self.is_routed() && !self.is_in_vlan();
        holder.or(self.bridge.filter(|_| is_expected))
    }

    /// The network's name.
    pub fn network(&self) -> &'a str {
        self.attachment.at().key.network.as_str()
    }

    /// The command that repairs the host's side.
    pub fn sync(&self) -> String {
        sync(self.network())
    }

    /// A command inside the namespace.
    pub fn within(&self, command: &str) -> String {
        format!("sudo nsenter --net={} {command}", quoted(&self.attachment.at().netns))
    }
}

/// The command that repairs the host's side of a network's attachments.
pub fn sync(network: &str) -> String {
    format!("sudo cni-multi net sync {}", quoted(network))
}

/// The commands that detach a container and attach it again with the recorded arguments. A container
/// of a runtime could get another address behind its back: it is deleted, and made again.
pub fn attach_again(attachment: &Attachment) -> String {
    let at = attachment.at();
    if parameters::container_id(&at.netns).ok().as_ref() != Some(&at.key.container_id) {
        return format!("delete {} by its runtime, which attaches the next one", at.name());
    }
    let mut given = String::new();
    if !at.args.is_empty() {
        given += &format!(" --args {}", quoted(&at.joined_args()));
    }
    if matches!(&at.capability_args, Value::Object(members) if !members.is_empty()) {
        given += &format!(" --capability-args {}", quoted(&at.capability_args.to_text()));
    }
    let add = format!("sudo cni-multi net add {}{given}", names(at));
    format!("{} && {add}", detach(attachment))
}

/// The command that detaches a container.
pub fn detach(attachment: &Attachment) -> String {
    detach_at(attachment.at())
}

/// The same for a container without a record that can be read.
pub fn detach_at(at: &Parameters) -> String {
    format!("sudo cni-multi net del {}", names(at))
}

/// The arguments that name an attachment.
fn names(at: &Parameters) -> String {
    let key = &at.key;
    let mut names = format!("{} {}", key.network, quoted(&at.netns));
    if key.ifname.as_str() != "eth0" {
        names += &format!(" -i {}", quoted(key.ifname.as_str()));
    }
    if parameters::container_id(&at.netns).ok().as_ref() != Some(&key.container_id) {
        names += &format!(" --container-id {}", key.container_id);
    }
    names
}
