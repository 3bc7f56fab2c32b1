//! Whether a table that ADD made no rules in lets a container's packets pass all the same, for
//! CHECK and `repair`. Other programs create FORWARD too, and fill it with rules that drop nothing.
//!
//! The rules are walked as the kernel walks them, for a packet of the container to another network
//! and for one back. A rule with a condition that is not about addresses and links, such as a
//! protocol, a mark or a state, is taken not to match.

use std::collections::HashMap;
use std::net::IpAddr;

use super::rules::FORWARD;
use crate::error::Result;
use crate::family::Family;
use crate::net::filter_rule::{Condition, Field, PacketRule};
use crate::net::netlink::Netlink;
use crate::net::netlink::attr::octets;
use crate::net::nft::expr::Verdict;
use crate::net::nft::xtables::filter_table;
use crate::net::xtables_legacy::{self, Table};
use crate::plugin::Handles;

/// NFT_JUMP_STACK_SIZE: how deep the kernel lets chains jump.
const DEPTH: usize = 16;

/// The table `filter` of one kind of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of nf_tables.
    Nft,
    /// Of iptables-legacy.
    Legacy,
}

/// Whether FORWARD of the table passes packets from and to these addresses, which have one family.
pub fn passes(handles: &Handles, ips: &[IpAddr], kind: Kind) -> Result<bool> {
    let Some(family) = ips.first().map(|ip| Family::of(*ip)) else { return Ok(true) };
    let filter = Filter::read(handles, family, kind)?;
    let host = handles.host()?;
    let uplink = Netlink::open()?.into_default_links(family)?.into_iter().next();
    let outside = Port::of(host, uplink)?;
    for ip in ips {
        let inside = match host.link_towards(*ip) {
            Err(error) if error.is_no_route() => None,
            towards => Some(towards?),
        };
        let inside = Port::of(host, inside)?;
        let [sent, answer] = Packet::both_ways(*ip, &inside, &outside);
        if !(filter.passes(&sent) && filter.passes(&answer)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The table `filter` of one family.
#[derive(Debug, Default)]
struct Filter {
    chains: HashMap<String, Vec<PacketRule>>,
    /// Whether the policy of FORWARD is drop.
    is_dropping: bool,
}

impl Filter {
    fn read(handles: &Handles, family: Family, kind: Kind) -> Result<Filter> {
        let table = filter_table(family);
        match kind {
            Kind::Nft => {
                let nft = handles.require_nft()?;
                let forward = nft.chain(table.family, table.name, FORWARD)?;
                let is_dropping = forward.is_some_and(|chain| chain.is_dropping);
                Ok(Filter { chains: nft.packet_rules(table)?, is_dropping })
            }
            // To read a table that does not exist would make the kernel create it.
            Kind::Legacy if !xtables_legacy::tables(family)?.iter().any(|it| it == table.name) => {
                Ok(Filter::default())
            }
            Kind::Legacy => {
                let mut filter = Filter::default();
                for chain in xtables_legacy::read(Table { family, name: table.name })? {
                    filter.is_dropping |= chain.name == FORWARD && chain.drops;
                    let rules = chain.entries.into_iter().map(|entry| entry.rule).collect();
                    filter.chains.insert(chain.name, rules);
                }
                Ok(filter)
            }
        }
    }

    fn passes(&self, packet: &Packet<'_>) -> bool {
        self.decision(FORWARD, packet, 0).unwrap_or(!self.is_dropping)
    }

    /// Whether the chain passes the packet; None if the packet returns from it.
    fn decision(&self, chain: &str, packet: &Packet<'_>, depth: usize) -> Option<bool> {
        let rules = self.chains.get(chain).filter(|_| depth <= DEPTH)?;
        for rule in rules.iter().filter(|rule| packet.matches(rule)) {
            let decision = match &rule.verdict {
                Some(Verdict::Accept) => Some(true),
                Some(Verdict::Drop) => Some(false),
                Some(Verdict::Return) => return None,
                Some(Verdict::Jump(chain)) => self.decision(chain, packet, depth + 1),
                Some(Verdict::Goto(chain)) => return self.decision(chain, packet, depth + 1),
                None => None,
            };
            if decision.is_some() {
                return decision;
            }
        }
        None
    }
}

/// A link as rules name it; the default is one that no rule names.
#[derive(Debug, Default)]
struct Port {
    index: u32,
    name: String,
}

impl Port {
    fn of(host: &Netlink, index: Option<u32>) -> Result<Port> {
        let link = index.map(|index| host.find_link_by_index(index)).transpose()?.flatten();
        Ok(link.map(|link| Port { index: link.index, name: link.name }).unwrap_or_default())
    }
}

/// A forwarded packet.
struct Packet<'p> {
    /// Source and destination; None in an address that no rule names.
    addresses: Vec<Option<u8>>,
    iif: &'p Port,
    oif: &'p Port,
}

impl<'p> Packet<'p> {
    /// A packet from the address to another network, and one back.
    fn both_ways(ip: IpAddr, inside: &'p Port, outside: &'p Port) -> [Packet<'p>; 2] {
        let own: Vec<Option<u8>> = octets(ip).into_iter().map(Some).collect();
        let other = vec![None; own.len()];
        [
            Packet { addresses: [&own[..], &other].concat(), iif: inside, oif: outside },
            Packet { addresses: [&other[..], &own].concat(), iif: outside, oif: inside },
        ]
    }

    fn matches(&self, rule: &PacketRule) -> bool {
        let is_fulfilled = |condition: &Condition| {
            let mut masked = condition.value.iter().zip(&condition.mask).enumerate();
            let has_value = masked.all(|(at, (value, mask))| {
                let byte = || self.byte(condition.field, at);
                *mask == 0 || byte().is_some_and(|byte| byte & mask == *value)
            });
            has_value != condition.is_inverted
        };
        rule.conditions.as_ref().is_some_and(|all| all.iter().all(is_fulfilled))
    }

    /// A byte of a field; None if it is in an address that no rule names.
    fn byte(&self, field: Field, at: usize) -> Option<u8> {
        let name = |port: &Port| Some(port.name.as_bytes().get(at).copied().unwrap_or(0));
        match field {
            Field::Addresses(from) => *self.addresses.get(from + at)?,
            Field::Iif => self.iif.index.to_ne_bytes().get(at).copied(),
            Field::Oif => self.oif.index.to_ne_bytes().get(at).copied(),
            Field::IifName => name(self.iif),
            Field::OifName => name(self.oif),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;

    /// Rules of `iptables -S` in FORWARD, which accepts, and in chains of their own; whether packets
    /// of 10.1.0.7 behind `br0`, with the uplink `eth0`, pass.
    const CASES: [(&str, bool); 26] = [
        ("", true),
        ("-P FORWARD DROP", false),
        ("-A FORWARD -j DROP", false),
        ("-A FORWARD -j ACCEPT\n-P FORWARD DROP", true),
        ("-A FORWARD -s 10.1.0.0/16 -j DROP", false),
        ("-A FORWARD -d 10.1.0.7/32 -j DROP", false),
        ("-A FORWARD -s 10.1.0.8/29 -j DROP", true),
        ("-A FORWARD ! -s 10.1.0.8/29 -j DROP", false),
        ("-A FORWARD -s 10.1.0.7/32 -j ACCEPT\n-P FORWARD DROP", false), // the answer
        (
            "-A FORWARD -s 10.1.0.7/32 -j ACCEPT\n-A FORWARD -d 10.1.0.0/20 -j ACCEPT\n-P FORWARD DROP",
            true,
        ),
        ("-A FORWARD -d 0.0.0.0/0 -j DROP", false),
        ("-A FORWARD -d 0.0.0.0/8 -j DROP", true), // no other network is meant
        ("-A FORWARD -s 10.1.0.7/32 ! -d 10.0.0.0/8 -j DROP", false),
        ("-A FORWARD -i br0 -j DROP", false),
        ("-A FORWARD -i br -j DROP", true),
        ("-A FORWARD -i br01 -j DROP", true),
        ("-A FORWARD -o br+ -j DROP", false),
        ("-A FORWARD -i br0 ! -o eth0 -j DROP", true),
        ("-A FORWARD -i br0 ! -o eth1 -j DROP", false),
        ("-A FORWARD -p tcp -j DROP", true),
        ("-A FORWARD -p tcp -j ACCEPT\n-P FORWARD DROP", false),
        ("-A FORWARD -j LOG\n-A FORWARD -j own\n-A own -j RETURN\n-A own -j DROP", true),
        ("-A FORWARD -j own\n-A own -i br0 -j deep\n-A deep -j DROP", false),
        ("-A FORWARD -g own\n-A FORWARD -j DROP\n-A own -s 10.2.0.0/16 -j DROP", true),
        (
            "-A FORWARD -j own\n-A FORWARD -j DROP\n-A own -g deep\n-A own -j ACCEPT\n-A deep -j LOG",
            false,
        ),
        ("-A FORWARD -j own\n-A own -j own\n-A FORWARD -j DROP", false),
    ];

    fn condition(option: &str, value: &str, is_inverted: bool) -> Condition {
        let field = match option {
            "-s" => Field::Addresses(0),
            "-d" => Field::Addresses(4),
            "-i" => Field::IifName,
            "-o" => Field::OifName,
            _ => panic!("{option}"),
        };
        if let Ok(net) = value.parse::<IpNet>() {
            let (value, mask) = (octets(net.network()), octets(net.netmask()));
            return Condition { field, value, mask, is_inverted };
        }
        let name = value.strip_suffix('+').map_or(format!("{value}\0"), str::to_owned);
        Condition { field, mask: vec![u8::MAX; name.len()], value: name.into(), is_inverted }
    }

    /// A rule behind `-A CHAIN`.
    fn rule(words: &[&str]) -> PacketRule {
        let mut rule = PacketRule { conditions: Some(vec![]), verdict: None };
        let mut is_inverted = false;
        let mut rest = words.iter();
        while let Some(option) = rest.next() {
            if *option == "!" {
                is_inverted = true;
                continue;
            }
            match (*option, *rest.next().unwrap()) {
                ("-p", _) => rule.conditions = None,
                ("-j", "LOG") => (),
                ("-j", "ACCEPT") => rule.verdict = Some(Verdict::Accept),
                ("-j", "DROP") => rule.verdict = Some(Verdict::Drop),
                ("-j", "RETURN") => rule.verdict = Some(Verdict::Return),
                ("-j", chain) => rule.verdict = Some(Verdict::Jump(chain.to_owned())),
                ("-g", chain) => rule.verdict = Some(Verdict::Goto(chain.to_owned())),
                (option, value) => {
                    let condition = condition(option, value, is_inverted);
                    rule.conditions.as_mut().unwrap().push(condition);
                }
            }
            is_inverted = false;
        }
        rule
    }

    #[test]
    fn packets_pass_as_the_rules_say() {
        let [inside, outside] =
            [(7, "br0"), (2, "eth0")].map(|(index, name)| Port { index, name: name.to_owned() });
        for (rules, passes) in CASES {
            let mut filter = Filter::default();
            for line in rules.lines() {
                match line.split(' ').collect::<Vec<_>>()[..] {
                    ["-P", FORWARD, "DROP"] => filter.is_dropping = true,
                    ["-A", chain, ref words @ ..] => {
                        filter.chains.entry(chain.to_owned()).or_default().push(rule(words));
                    }
                    _ => panic!("{line}"),
                }
            }
            let both = Packet::both_ways([10, 1, 0, 7].into(), &inside, &outside);
            assert_eq!(both.iter().all(|packet| filter.passes(packet)), passes, "{rules}");
        }
    }
}
