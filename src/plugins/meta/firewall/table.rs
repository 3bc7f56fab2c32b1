//! Our own table: the owners of addresses, what was done for the addresses elsewhere, and the
//! bridges that are isolated from each other.
//!
//! ```text
//! table inet cni_multi_firewall {
//!   set containers4 { type ipv4_addr; elements = { 10.1.0.7 comment "…" } }
//!   set containers6 { type ipv6_addr; … }
//!   set accepts4 { type mark . mark; … }        # the handles of rules in "ip filter"
//!   set accepts6 { type mark . mark; … }        # and in "ip6 filter"
//!   set zones4 { type ipv4_addr . ifname . ifname; elements = { 10.1.0.7 . "trusted" . "" comment "…" } }
//!   set zones6 { type ipv6_addr . ifname . ifname; … }   # sources of firewalld's zones, whose names fill two fields
//!   set bridges { type ifname; elements = { "br0" comment "shared" } }
//!   set same_bridge { type ifname . ifname; elements = { "br0" . "br0" comment "shared" } }
//!   set isolated { type ifname . ifname; … }
//!   set attachments { … }                       # the owner of each element
//!   chain admin { }                             # the administrator's: we only jump to it
//!   chain forward {
//!     type filter hook forward priority filter; policy accept;
//!     jump admin
//!     iifname . oifname @isolated drop
//!     iifname . oifname @same_bridge accept
//!     iifname @bridges oifname @bridges drop
//!   }
//! }
//! ```
//! An accept here overrides no drop elsewhere, so addresses are not accepted here, but recorded for
//! DEL and GC. An address that another container gets moves to its new owner, and the accepts
//! elsewhere stay with it; if the ADD of the new owner fails, the address moves back.

use std::collections::HashSet;
use std::net::IpAddr;

use super::conf::{Isolation, Policy, Wish, ZONE_MAX};
use super::rules;
use crate::cni::attachment::Key;
use crate::error::{Code, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::attr::read_text;
use crate::net::nft::NfFamily;
use crate::net::nft::batch::{Batch, Holds, Hook, KeyType, Set, Table};
use crate::net::nft::expr::{Meta, Verdict};
use crate::net::nft::owned::{Layout, OwnedElement, Owner, Replaced, Search, jump_to_admin};
use crate::net::nft::wire::{link_name, octets, read_ip};
use crate::net::nft::xtables::filter_table;
use crate::plugin::Handles;
use crate::steps::nft_owner;

/// The layout of the table. GC reads the owners from it.
pub const LAYOUT: Layout = Layout {
    table: Table { family: NfFamily::Inet, name: "cni_multi_firewall" },
    comment: "cni-multi: addresses of containers, and bridges that are kept from each other",
    sets: &[
        &CONTAINERS4,
        &CONTAINERS6,
        &ACCEPTS4,
        &ACCEPTS6,
        &ZONES4,
        &ZONES6,
        &BRIDGES,
        &SAME_BRIDGE,
        &ISOLATED,
    ],
    lay_out,
    reliance: None,
};

const CONTAINERS4: Set = Set { name: "containers4", key: &[KeyType::Ipv4], holds: Holds::Keys };
const CONTAINERS6: Set = Set { name: "containers6", key: &[KeyType::Ipv6], holds: Holds::Keys };
const ACCEPTS4: Set = Set { name: "accepts4", key: &[KeyType::Mark; 2], holds: Holds::Keys };
const ACCEPTS6: Set = Set { name: "accepts6", key: &[KeyType::Mark; 2], holds: Holds::Keys };
const ZONES4: Set = Set {
    name: "zones4",
    key: &[KeyType::Ipv4, KeyType::IfName, KeyType::IfName],
    holds: Holds::Keys,
};
const ZONES6: Set = Set {
    name: "zones6",
    key: &[KeyType::Ipv6, KeyType::IfName, KeyType::IfName],
    holds: Holds::Keys,
};
const BRIDGES: Set = Set { name: "bridges", key: &[KeyType::IfName], holds: Holds::Keys };
const SAME_BRIDGE: Set =
    Set { name: "same_bridge", key: &[KeyType::IfName; 2], holds: Holds::Keys };
const ISOLATED: Set = Set { name: "isolated", key: &[KeyType::IfName; 2], holds: Holds::Keys };
const BASE_CHAIN: &str = "forward";
/// NF_INET_FORWARD, and filter of nft(8).
pub const HOOK: Hook = Hook { kind: "filter", number: 2, priority: 0 };

/// What is recorded besides the addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Notes<'a> {
    /// The bridge to isolate from others; `None` if that is not requested, or done elsewhere.
    pub isolation: Option<&'a Isolation>,
    /// The firewalld zone that the addresses are sources of.
    pub zone: Option<&'a str>,
}

impl Notes<'_> {
    /// Requires a kernel with nf_tables if a bridge is to be isolated: isolation is nothing but
    /// elements of our table.
    pub fn require(&self, handles: &Handles) -> Result<()> {
        let Some(isolation) = self.isolation else { return Ok(()) };
        handles.require_nft().map(drop).map_err(|error| {
            error
                .context(format_args!("ingressPolicy {:?}", isolation.policy.as_str()))
                .with_details("backend \"iptables\" isolates without nf_tables")
        })
    }
}

/// Records the addresses as the attachment's, and isolates its bridge if that is requested. Records
/// nothing on a kernel without nf_tables. Returns the previous records of the attachment and of the
/// addresses.
pub fn claim(
    handles: &Handles,
    key: &Key,
    wish: &Wish,
    notes: Notes<'_>,
) -> Result<Option<Replaced>> {
    let Some(nft) = handles.nft()? else { return notes.require(handles).map(|()| None) };
    LAYOUT.on(nft).of(&nft_owner::of(key)).take(&elements(&wish.ips, notes)).map(Some)
}

/// Returns what an earlier ADD of the attachment, without a DEL since, has left, except for these
/// addresses.
pub fn outdated(replaced: &Replaced, ips: &[IpAddr]) -> Held {
    let mut held = Held::of(replaced.own());
    let ips: HashSet<&IpAddr> = ips.iter().collect();
    held.ips.retain(|ip| !ips.contains(ip));
    held.sources.retain(|(ip, _)| !ips.contains(ip));
    held
}

/// Reverts a claim. Returns what has no owner now: a previous owner of an address was detached in
/// between, and left its accepts to the next owner.
pub fn give_back(handles: &Handles, key: &Key, replaced: &Replaced) -> Result<Held> {
    let nft = handles.require_nft()?;
    let left = LAYOUT.on(nft).of(&nft_owner::of(key)).give_back(replaced)?;
    Ok(Held::of(&left))
}

/// Verifies that everything that `claim` made is there. Attachments of the reference are not in our
/// table: it isolates by iptables rules.
pub fn verify(handles: &Handles, key: &Key, wish: &Wish, notes: Notes<'_>) -> Result<()> {
    let Some(nft) = handles.nft()? else { return notes.require(handles) };
    let ours = LAYOUT.on(nft);
    if !ours.of(&nft_owner::of(key)).has_anything()? {
        let has_chain =
            |family| nft.chain(family, "filter", rules::STAGE_2).map(|chain| chain.is_some());
        return match notes.isolation {
            Some(isolation) if !has_chain(NfFamily::Ip)? && !has_chain(NfFamily::Ip6)? => {
                Err(missing(&of_bridge(isolation)[0], Some(isolation)))
            }
            _ => Ok(()),
        };
    }
    let elements = elements(&wish.ips, notes);
    let absent = ours.absent(&elements)?;
    // The chain has no effect on open bridges.
    let undamaged = notes.isolation.map_or(Ok(()), |_| ours.verify());
    let absent = absent.into_iter().map(|element| Err(missing(element, notes.isolation)));
    ErrorList::of(absent.chain([undamaged]))
}

/// Verifies that everything that `claim` records is recorded for this attachment.
pub fn verify_recorded(handles: &Handles, key: &Key, wish: &Wish, notes: Notes<'_>) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let elements = elements(&wish.ips, notes);
    match LAYOUT.on(nft).of(&nft_owner::of(key)).missing(&elements)?.first() {
        Some(element) => Err(missing(element, notes.isolation)),
        None => Ok(()),
    }
}

/// Refuses with code 102 addresses that are recorded for another attachment.
pub fn refuse_taken(handles: &Handles, key: &Key, wish: &Wish, notes: Notes<'_>) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let mut own = elements(&wish.ips, notes);
    own.retain(|element| !element.is_shared);
    match LAYOUT.on(nft).of(&nft_owner::of(key)).first_taken(&own)? {
        Some(taken) => {
            let what = words_for(&own[taken.element], None);
            let problem = format!("{what} is recorded for another attachment");
            Err(Error::new(Code::CONFLICT, problem).with_details(&taken.by))
        }
        None => Ok(()),
    }
}

fn missing(element: &OwnedElement, isolation: Option<&Isolation>) -> Error {
    let table = LAYOUT.table.name;
    let what = words_for(element, isolation);
    Error::check(format!("{what} is not in set {:?} of nftables table {table:?}", element.set))
}

/// Returns what the element records, for errors.
fn words_for(element: &OwnedElement, isolation: Option<&Isolation>) -> String {
    match (isolation, address(element.set, &element.key)) {
        (Some(Isolation { bridge, .. }), _) if element.is_shared => {
            format!("bridge {:?}", bridge.as_str())
        }
        (_, Some(address)) => format!("address {address}"),
        (_, None) => "an element".to_owned(),
    }
}

/// What an attachment owns.
#[derive(Debug, Default)]
pub struct Held {
    /// Its addresses that no other attachment has got since.
    pub ips: Vec<IpAddr>,
    /// Those of its addresses that are not in the table: the reference has attached it, or our
    /// table was removed.
    pub unknown: Vec<IpAddr>,
    /// Its addresses in firewalld, each with its zone.
    pub sources: Vec<(IpAddr, String)>,
    /// The rules that were made for it over netlink, perhaps not all of them.
    pub rules: Vec<RuleHandle>,
}

impl Held {
    fn of(elements: &[OwnedElement]) -> Held {
        let mut held = Held::default();
        elements.iter().for_each(|element| held.add(element.set, &element.key));
        held
    }

    fn add(&mut self, set: &str, key: &[u8]) {
        match set {
            set if set == ACCEPTS4.name || set == ACCEPTS6.name => {
                let family = if set == ACCEPTS6.name { Family::V6 } else { Family::V4 };
                // the upper and the lower half
                let halves = key.as_chunks::<4>().0.iter().map(|half| u32::from_ne_bytes(*half));
                let handle = halves.fold(0, |upper, half| upper << 32 | u64::from(half));
                self.rules.push(RuleHandle { table: filter_table(family), handle });
            }
            set if set == ZONES4.name || set == ZONES6.name => {
                self.sources.extend(source(set, key))
            }
            set => self.ips.extend(address(set, key)),
        }
    }

    /// Whether any of these addresses is in the table, and so was accepted by an ADD of ours.
    pub fn is_any_noted(&self, is_asked: impl Fn(IpAddr) -> bool) -> bool {
        let count = |ips: &[IpAddr]| ips.iter().filter(|ip| is_asked(**ip)).count();
        count(&self.ips) > count(&self.unknown)
    }

    fn add_unknown(&mut self, ip: IpAddr) {
        self.ips.push(ip);
        self.unknown.push(ip);
    }
}

/// A rule in `CNI-FORWARD` of iptables-nft. The handle saves reading a chain with the rules of
/// thousands of containers. The rule must still be compared, because a new table restarts its
/// handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleHandle {
    /// The table `filter` that it is in.
    pub table: Table,
    /// The kernel's handle.
    pub handle: u64,
}

/// Returns what an attachment owns: everything in the table, and those of the addresses in `told`
/// that are not in it, which the reference has attached.
pub fn held(handles: &Handles, owner: &Owner, told: &[IpAddr], search: Search) -> Result<Held> {
    let mut held = Held::default();
    let Some(nft) = handles.nft()? else {
        told.iter().for_each(|ip| held.add_unknown(*ip));
        return Ok(held);
    };
    let ours = LAYOUT.on(nft);
    let belongings = ours.of(owner).belongings(search)?;
    belongings.iter().for_each(|(set, key)| held.add(set, key));
    let known: HashSet<IpAddr> = held.ips.iter().copied().collect();
    let told = told.iter().copied().filter(|ip| !known.contains(ip));
    let told: Vec<OwnedElement> = told.map(of_address).collect();
    for element in ours.absent(&told)? {
        address(element.set, &element.key).into_iter().for_each(|ip| held.add_unknown(ip));
    }
    Ok(held)
}

/// Records rules that were made for the attachment.
pub fn note_rules(handles: &Handles, key: &Key, rules: &[RuleHandle]) -> Result<()> {
    let element = |rule: &RuleHandle| {
        let set = if rule.table == filter_table(Family::V6) { &ACCEPTS6 } else { &ACCEPTS4 };
        let halves = [(rule.handle >> 32) as u32, rule.handle as u32];
        OwnedElement::of(set, halves.map(u32::to_ne_bytes).concat())
    };
    let elements: Vec<OwnedElement> = rules.iter().map(element).collect();
    let nft = handles.require_nft()?;
    LAYOUT.on(nft).of(&nft_owner::of(key)).take_more(&elements)
}

fn elements(ips: &[IpAddr], notes: Notes<'_>) -> Vec<OwnedElement> {
    let mut ips = ips.to_vec();
    ips.sort_unstable();
    ips.dedup();
    let of_bridge = notes.isolation.into_iter().flat_map(of_bridge);
    let of_zone = notes.zone.into_iter().flat_map(|zone| ips.iter().map(|ip| of_source(*ip, zone)));
    of_bridge.chain(ips.iter().copied().map(of_address)).chain(of_zone).collect()
}

fn of_source(ip: IpAddr, zone: &str) -> OwnedElement {
    let set = if ip.is_ipv6() { &ZONES6 } else { &ZONES4 };
    let mut key = [octets(ip), zone.as_bytes().to_vec()].concat();
    key.resize(octets(ip).len() + ZONE_MAX, 0);
    OwnedElement::of(set, key)
}

fn source(set: &str, key: &[u8]) -> Option<(IpAddr, String)> {
    Some((address(set, key)?, read_text(key.last_chunk::<ZONE_MAX>()?)))
}

fn of_address(ip: IpAddr) -> OwnedElement {
    OwnedElement::of(if ip.is_ipv6() { &CONTAINERS6 } else { &CONTAINERS4 }, octets(ip))
}

fn of_bridge(Isolation { bridge, policy }: &Isolation) -> [OwnedElement; 2] {
    let name = link_name(bridge.as_str());
    let pairs = if *policy == Policy::Isolated { &ISOLATED } else { &SAME_BRIDGE };
    [(&BRIDGES, name.clone()), (pairs, [name.clone(), name].concat())]
        .map(|(set, key)| OwnedElement { is_shared: true, ..OwnedElement::of(set, key) })
}

/// Returns the address at the beginning of a key, for sets of addresses.
fn address(set: &str, key: &[u8]) -> Option<IpAddr> {
    let length = match set {
        set if [CONTAINERS4.name, ZONES4.name].contains(&set) => 4,
        set if [CONTAINERS6.name, ZONES6.name].contains(&set) => 16,
        _ => return None,
    };
    read_ip(key.get(..length)?)
}

fn lay_out(batch: &mut Batch, table: Table) {
    batch.base_chain(table, BASE_CHAIN, HOOK).flush_chain(table, BASE_CHAIN);
    jump_to_admin(batch, table, BASE_CHAIN);
    for (pairs, verdict) in [(ISOLATED, Verdict::Drop), (SAME_BRIDGE, Verdict::Accept)] {
        batch.rule(table, BASE_CHAIN, |rule| {
            // A name fills a register, so the second name directly follows the first.
            rule.meta(Meta::IifName, 1).meta(Meta::OifName, 2);
            rule.in_set(pairs.name, 1, false).verdict(&verdict);
        });
    }
    batch.rule(table, BASE_CHAIN, |rule| {
        rule.meta(Meta::IifName, 1).in_set(BRIDGES.name, 1, false);
        rule.meta(Meta::OifName, 1).in_set(BRIDGES.name, 1, false);
        rule.verdict(&Verdict::Drop);
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cni::attachment::IfName;

    #[test]
    fn addresses_are_one_s_own_and_bridges_shared() {
        let isolation =
            Isolation { bridge: IfName::parse("br0").unwrap(), policy: Policy::Isolated };
        let ips = ["10.1.0.7", "fd00::7", "10.1.0.7"].map(|ip| ip.parse().unwrap());
        let notes = Notes { isolation: Some(&isolation), zone: None };
        let plain: Vec<_> =
            elements(&ips, notes).iter().map(|e| (e.set, e.key.len(), e.is_shared)).collect();
        let expected = [
            ("bridges", 16, true),
            ("isolated", 32, true),
            ("containers4", 4, false),
            ("containers6", 16, false),
        ];
        assert_eq!(plain, expected);
    }

    #[test]
    fn what_is_noted_of_firewalld_is_read_again() {
        for zone in ["trusted", "", "a-zone-of-17-char", &"x".repeat(ZONE_MAX)] {
            for ip in ["10.1.0.7", "fd00::7"] {
                let ip: IpAddr = ip.parse().unwrap();
                let element = of_source(ip, zone);
                assert_eq!(source(element.set, &element.key), Some((ip, zone.to_owned())));
            }
        }
    }
}
