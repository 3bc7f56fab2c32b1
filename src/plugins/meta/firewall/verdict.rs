//! Whether a table that ADD made no rules in lets a container's packets pass all the same, for
//! CHECK and `repair`. Other programs create FORWARD too, and fill it with rules that drop nothing.

use std::net::IpAddr;

use super::rules::FORWARD;
use crate::error::Result;
use crate::family::Family;
use crate::net::netlink::Netlink;
use crate::net::nft::NfFamily;
use crate::net::nft::drops::{Hook, Packet, Passage, Port, Ruleset, Verdict};

/// The table `filter` of one kind of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of nf_tables.
    Nft,
    /// Of iptables-legacy.
    Legacy,
}

/// Whether FORWARD of the table passes new connections of these addresses, which have one family,
/// and the answers to them. Where a rule decides that cannot be decoded, its policy does.
pub fn passes(host: &Netlink, ips: &[IpAddr], kind: Kind) -> Result<bool> {
    Ruleset::look(|ruleset| {
        for ip in ips {
            if !passes_from(ruleset, host, *ip, kind)? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

fn passes_from(ruleset: &Ruleset, host: &Netlink, ip: IpAddr, kind: Kind) -> Result<bool> {
    let inside = match host.link_towards(ip) {
        Err(error) if error.is_no_route() => None,
        towards => Some(towards?),
    };
    let inside = port(host, inside)?;
    let uplink = Netlink::open()?.into_default_links(Family::of(ip))?.into_iter().next();
    let outside = port(host, uplink)?;
    let packet = |is_sent| {
        let (from, to) = if is_sent { (&inside, &outside) } else { (&outside, &inside) };
        Packet {
            container: ip,
            peer: None,
            is_sent,
            is_reply: !is_sent,
            is_to_host: false,
            mac: None,
            from: Some(from.clone()),
            to: Some(to.clone()),
        }
    };
    let mut sent = Passage::of(ruleset, packet(true));
    if !passes_forward(ruleset, &mut sent, packet(true), kind)? {
        return Ok(false);
    }
    let mut answer = sent.answer(packet(false));
    passes_forward(ruleset, &mut answer, packet(false), kind)
}

fn passes_forward(
    ruleset: &Ruleset,
    passage: &mut Passage<'_>,
    packet: Packet,
    kind: Kind,
) -> Result<bool> {
    let family = NfFamily::from(Family::of(packet.container));
    let is_legacy = kind == Kind::Legacy;
    passage.take(Packet { to: None, ..packet.clone() });
    passage.at(Hook::Prerouting)?; // it may mark the packet
    passage.take(packet);
    Ok(match passage.at(Hook::Forward)? {
        Verdict::Passes => true,
        Verdict::Dropped(culprit)
            if culprit.family == family
                && culprit.is_legacy == is_legacy
                && culprit.base == FORWARD =>
        {
            false
        }
        Verdict::Dropped(_) | Verdict::Unknown => !ruleset.drops_rest(family, is_legacy, FORWARD),
    })
}

/// The link as rules name it; one that no rule names if there is none.
fn port(host: &Netlink, index: Option<u32>) -> Result<Port> {
    let link = index.map(|index| host.find_link_by_index(index)).transpose()?.flatten();
    let named = link.map(|link| Port { index: link.index, name: link.name });
    Ok(named.unwrap_or_else(|| Port { index: 0, name: String::new() }))
}
