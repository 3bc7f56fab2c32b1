//! Packets from one container of a bridge to another, which rules of IP see with br_netfilter.

use std::net::IpAddr;

use ipnet::IpNet;

use super::attachment::bridge_of;
use super::node::{Network, Node};
use super::policy;
use super::wiring::Wiring;
use crate::cni::result::IpConfig;
use crate::error::Result;
use crate::family::Family;
use crate::net::nft::drops::{Culprit, Hook, Packet, Passage, Port, Ruleset};

/// A packet within a bridge.
struct Bridged {
    network: String,
    own: IpAddr,
    peer: IpAddr,
    bridge: Port,
}

/// What drops packets within the bridge of a network.
pub struct Hit {
    /// The network.
    pub network: String,
    /// What drops them.
    pub culprit: Culprit,
}

/// The networks whose packets within a bridge are dropped, each once: those of the containers, and
/// those without a container that have a range of the family and no plugin to accept its packets.
/// What drops packets to the outside as well has a finding of its own.
pub fn hits(ruleset: &Ruleset, node: &Node<'_>, family: Family) -> Result<Vec<Hit>> {
    let all = Wiring::all(node);
    let mut hits: Vec<Hit> = vec![];
    for wiring in all.iter().filter(|wiring| wiring.bridge.is_some()) {
        for packet in of_container(wiring, &all, family) {
            if let Some(culprit) = packet.culprit(ruleset)?
                && !policy::drops_forwarded(ruleset, node, wiring)?
            {
                note(&mut hits, Hit { network: packet.network, culprit });
            }
        }
    }
    for network in node.networks.iter().filter(|network| is_unused(network, &all)) {
        if let Some(packet) = of_network(node, network, family)
            && let Some(culprit) = packet.culprit(ruleset)?
        {
            note(&mut hits, Hit { network: packet.network, culprit });
        }
    }
    Ok(hits)
}

fn note(hits: &mut Vec<Hit>, hit: Hit) {
    if !hits.iter().any(|known| known.network == hit.network) {
        hits.push(hit);
    }
}

/// A packet of each address to another container of the bridge, or to where there could be one.
fn of_container(wiring: &Wiring<'_>, all: &[Wiring<'_>], family: Family) -> Vec<Bridged> {
    let Some(bridge) = wiring.bridge else { return vec![] };
    let is_beside = |other: &&Wiring<'_>| other.bridge.is_some_and(|it| it.index == bridge.index);
    let others: Vec<IpAddr> = all
        .iter()
        .filter(is_beside)
        .flat_map(|it| ips(it, family))
        .map(|ip| ip.address.addr())
        .collect();
    let packet = |ip: &IpConfig| {
        let own = ip.address.addr();
        let other = others.iter().copied().find(|other| *other != own);
        Some(Bridged {
            network: wiring.network().to_owned(),
            own,
            peer: other.or_else(|| neighbour(ip))?,
            bridge: policy::port(bridge),
        })
    };
    ips(wiring, family).filter_map(packet).collect()
}

fn ips<'w>(wiring: &'w Wiring<'_>, family: Family) -> impl Iterator<Item = &'w IpConfig> {
    let ips = wiring.attachment.result.iter().flat_map(|result| &result.ips);
    ips.filter(move |ip| Family::of_net(ip.address) == family)
}

/// Another address of the subnet than the container's and the gateway's.
fn neighbour(ip: &IpConfig) -> Option<IpAddr> {
    let net: IpNet = ip.address;
    net.hosts().find(|host| *host != net.addr() && Some(*host) != ip.gateway)
}

/// Whether the network has bridges, no containers, and no plugin that accepts their packets.
fn is_unused(network: &Network, all: &[Wiring<'_>]) -> bool {
    network.has("bridge")
        && !network.has("firewall")
        && !all.iter().any(|wiring| wiring.network() == network.list.name)
}

/// A packet from the first to the last address of a range of the family.
fn of_network(node: &Node<'_>, network: &Network, family: Family) -> Option<Bridged> {
    let leases = node.leases.iter().find(|it| it.network.network.as_str() == network.list.name)?;
    let mut ends = leases.holdings.ranges.iter().filter_map(|range| {
        let (first, last) = range.range.split_once('-')?;
        let own: IpAddr = first.parse().ok()?;
        Some((own, last.parse().ok()?)).filter(|_| Family::of(own) == family)
    });
    let (own, peer) = ends.next()?;
    let name = network.list.plugins.iter().find_map(bridge_of)?;
    // The bridge is made by the first ADD.
    let made = Port { index: u32::MAX, name: name.to_owned() };
    let bridge = node.link_named(name).map_or(made, policy::port);
    Some(Bridged { network: network.list.name.clone(), own, peer, bridge })
}

impl Bridged {
    fn culprit(&self, ruleset: &Ruleset) -> Result<Option<Culprit>> {
        let mut passage = Passage::of(ruleset, self.packet(None));
        for (hook, to) in [
            (Hook::Prerouting, None),
            (Hook::Forward, Some(&self.bridge)),
            (Hook::Postrouting, Some(&self.bridge)),
        ] {
            passage.take(self.packet(to));
            if let Some(culprit) = passage.at(hook)?.culprit() {
                return Ok(Some(culprit));
            }
        }
        Ok(None)
    }

    /// The packet, from its bridge and possibly to it.
    fn packet(&self, to: Option<&Port>) -> Packet {
        Packet {
            container: self.own,
            peer: Some(self.peer),
            is_sent: true,
            is_reply: false,
            is_to_host: false,
            mac: None,
            from: Some(self.bridge.clone()),
            to: to.cloned(),
        }
    }
}
