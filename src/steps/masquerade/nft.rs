//! Masquerading by nftables.
//!
//! ```text
//! table inet cni_multi_masquerade {
//!   map masq4 { type ipv4_addr : verdict; elements = { 10.1.0.7 comment "…" : goto net-10.1.0.0/24 } }
//!   map masq6 { type ipv6_addr : verdict; … }
//!   set attachments { … }                       # the owner of each element
//!   chain admin { }                             # the administrator's: we only jump to it
//!   chain postrouting {
//!     type nat hook postrouting priority srcnat; policy accept;
//!     jump admin
//!     rt ipsec exists return                    # unless the kernel lacks IPsec
//!     ip daddr 224.0.0.0/4 return
//!     ip6 daddr ff00::/8 return
//!     ip saddr vmap @masq4
//!     ip6 saddr vmap @masq6
//!   }
//!   chain net-10.1.0.0/24 { ip daddr 10.1.0.0/24 return; masquerade }
//!   chain net-10.1.0.0/24-0123456789abcdef { … the same, with nonMasqueradeCIDRs … }
//! }
//! ```
//! A packet costs one lookup however many containers there are, and an attachment is one element
//! per address family.

use std::path::Path;

use ipnet::IpNet;

use crate::cni::attachment::{Key, NetworkName, hash8, hex};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::{Holder, Stale};
use crate::error::{Error, ErrorList, Result};
use crate::family::Family;
use crate::net::nft::NfFamily;
use crate::net::nft::batch::{Batch, Holds, Hook, KeyType, Set, Table};
use crate::net::nft::expr::{Expressions, Verdict};
use crate::net::nft::owned::{Layout, OwnedElement, Search, SharedChain, jump_to_admin};
use crate::net::nft::wire::{octets, read_ip};
use crate::plugin::Handles;
use crate::steps::nft_owner;
use crate::steps::rules::ReferenceRules;

/// The table.
pub const LAYOUT: Layout = Layout {
    table: Table { family: NfFamily::Inet, name: "cni_multi_masquerade" },
    comment: "cni-multi: containers leave with the host's address",
    sets: &[&MASQ4, &MASQ6],
    lay_out,
    reliance: None,
};

const MASQ4: Set = Set { name: "masq4", key: &[KeyType::Ipv4], holds: Holds::Verdicts };
const MASQ6: Set = Set { name: "masq6", key: &[KeyType::Ipv6], holds: Holds::Verdicts };
const BASE_CHAIN: &str = "postrouting";
/// Priority srcnat of nft(8).
const HOOK: Hook = Hook { kind: "nat", number: 4, priority: 100 };

/// The reference has a rule per address.
const REFERENCE: ReferenceRules = ReferenceRules {
    table: Table { family: NfFamily::Inet, name: "cni_plugins_masquerade" },
    chain: "masq_checks",
    jumps: 1,
    deletion: "delete a masquerading rule of the reference plugins",
};

/// A sysctl that only a kernel with IPsec has.
const IPSEC: &str = "/proc/sys/net/ipv4/xfrm4_gc_thresh";

/// Masquerades these addresses, except for packets to their own networks and to the exempt ones.
pub fn create(handles: &Handles, key: &Key, addresses: &[IpNet], exempt: &[IpNet]) -> Result<()> {
    let nft = handles.require_nft()?;
    LAYOUT.on(nft).of(&nft_owner::of(key)).take(&elements(addresses, exempt)).map(drop)
}

/// Fails unless the kernel has every element, and each leads to the chain with these exemptions.
pub fn verify(handles: &Handles, key: &Key, addresses: &[IpNet], exempt: &[IpNet]) -> Result<()> {
    let nft = handles.require_nft()?;
    let elements = elements(addresses, exempt);
    let owner = nft_owner::of(key);
    let missing = LAYOUT.on(nft).of(&owner).missing(&elements)?;
    let mut found = ErrorList::default();
    found.push(LAYOUT.on(nft).verify());
    for OwnedElement { set: map, key, chain, .. } in &elements {
        // The chain that the owner's element leads to, if it is another one.
        let there = nft.element(LAYOUT.table, map, key)?;
        let chain_there = there.filter(|it| it.comment == owner.comment).and_then(|it| it.chain);
        let wanted = chain.as_ref().map(|chain| &chain.name);
        if let Some(other) = chain_there.filter(|there| Some(there) != wanted) {
            let problem =
                format!("map {map:?} leads to chain {other:?}, of other nonMasqueradeCIDRs");
            found.push::<()>(Err(Error::check(problem)
                .with_details("attach the container again to apply those of the configuration")));
        } else if missing.iter().any(|it| (it.set, &it.key) == (*map, key)) {
            let address = addresses.iter().find(|net| octets(net.addr()) == *key);
            let address = address.map(|net| net.addr().to_string()).unwrap_or_default();
            let problem =
                format!("address {address} is not masqueraded: no element in map {map:?}");
            found.push::<()>(Err(Error::check(problem)));
        }
    }
    found.finish()
}

/// Removes the elements of an attachment, and the table with the last element of all.
pub fn delete(handles: &Handles, key: &Key) -> Result<()> {
    nft_owner::release(handles, &LAYOUT, &nft_owner::of(key), Search::Ledger).map(drop)
}

/// Removes the elements of this network's attachments that are not valid, and the reference's rules
/// for such attachments.
pub fn collect_garbage(
    handles: &Handles,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<()> {
    let mut errors = ErrorList::default();
    errors.push(nft_owner::release_invalid(handles, &LAYOUT, network, valid));
    // The reference has no GC, but the comments of its rules name their network.
    let Some(nft) = handles.nft()? else { return errors.finish() };
    let start = format!("{}-", hex(&Key::network_hash(network)));
    let is_stale = |comment: &str| comment.starts_with(&start) && !valid.contains_identity(comment);
    for rule in errors.push(REFERENCE.find(nft, is_stale)).unwrap_or_default() {
        let Table { family, name } = REFERENCE.table;
        let stale = || Stale {
            what: format!("rule of table {family} {name}"),
            holder: Holder::of_comment(&rule.comment),
            addresses: rule.compared.iter().filter_map(|value| read_ip(value)).collect(),
            ..Stale::default()
        };
        errors.push(valid.remove(stale, || REFERENCE.delete(nft, &rule)));
    }
    errors.finish()
}

/// Whether the reference made a rule for each of the addresses.
pub fn is_made_by_reference(handles: &Handles, key: &Key, addresses: usize) -> Result<bool> {
    let Some(nft) = handles.nft()? else { return Ok(false) };
    let own = key.identity();
    let rules = REFERENCE.find(nft, |comment| comment.starts_with(&own))?;
    Ok(addresses > 0 && rules.len() >= addresses)
}

/// Removes the rules that the reference made for the same attachment.
pub fn delete_of_reference(handles: &Handles, key: &Key) -> Result<()> {
    let own = key.identity();
    REFERENCE.delete_all(handles, |comment| comment.starts_with(&own))
}

/// An element per address, which leads to the chain of its network.
fn elements(addresses: &[IpNet], exempt: &[IpNet]) -> Vec<OwnedElement> {
    let mut elements = vec![];
    for address in addresses {
        let net = address.trunc();
        let of_family = |exempt: &&IpNet| Family::of_net(**exempt) == Family::of_net(net);
        let exempt: Vec<IpNet> = exempt.iter().filter(of_family).copied().collect();
        let mut rules = vec![];
        for net in [net].iter().chain(&exempt) {
            let mut rule = Expressions::default();
            return_to(&mut rule, *net);
            rules.push(rule);
        }
        let mut rest = Expressions::default();
        rest.masquerade();
        rules.push(rest);
        let map = if address.addr().is_ipv6() { &MASQ6 } else { &MASQ4 };
        let chain = SharedChain { name: chain_name(net, &exempt), rules };
        elements.push(OwnedElement::of(map, octets(address.addr())).leading_to(chain));
    }
    elements
}

/// `net-10.1.0.0/24`, and with exemptions their hash: `nft` accepts letters, digits, `.`, `/`, `-`
/// and `_`, so an IPv6 address has `-` in place of colons.
fn chain_name(net: IpNet, exempt: &[IpNet]) -> String {
    let name = format!("net-{}", net.to_string().replace(':', "-"));
    if exempt.is_empty() {
        return name;
    }
    let list: Vec<String> = exempt.iter().map(IpNet::to_string).collect();
    format!("{name}-{}", hex(&hash8(&list.join(" "))))
}

fn lay_out(batch: &mut Batch, table: Table) {
    batch.base_chain(table, BASE_CHAIN, HOOK).flush_chain(table, BASE_CHAIN);
    jump_to_admin(batch, table, BASE_CHAIN);
    if Path::new(IPSEC).exists() {
        batch.rule(table, BASE_CHAIN, |rule| {
            rule.is_for_ipsec(1).equal(1, &[1]).verdict(&Verdict::Return);
        });
    }
    for family in Family::ALL {
        batch.rule(table, BASE_CHAIN, |rule| return_to(rule, family.multicast()));
    }
    for (family, map) in [(Family::V4, MASQ4), (Family::V6, MASQ6)] {
        batch.rule(table, BASE_CHAIN, |rule| {
            rule.family(family).source(family).verdict_of(map.name, 1);
        });
    }
}

/// `ip daddr NET return`.
fn return_to(rule: &mut Expressions, net: IpNet) {
    let family = Family::of_net(net);
    rule.family(family).destination(family).is_in(net).verdict(&Verdict::Return);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_named_after_their_network() {
        let name = |net: &str, exempt: &[IpNet]| chain_name(net.parse().unwrap(), exempt);
        assert_eq!(name("10.1.0.0/24", &[]), "net-10.1.0.0/24");
        assert_eq!(name("fd00:1::/64", &[]), "net-fd00-1--/64");
        let exempt = ["192.0.2.0/24".parse().unwrap()];
        assert_eq!(name("10.1.0.0/24", &exempt), "net-10.1.0.0/24-1bbe704fd769f167");
    }

    #[test]
    fn an_address_leads_to_the_chain_of_its_network() {
        let addresses = ["10.1.0.7/24".parse().unwrap(), "fd00::7/64".parse().unwrap()];
        let elements = elements(&addresses, &[]);
        let plain: Vec<_> = elements
            .iter()
            .map(|e| (e.set, e.key.len(), e.chain.as_ref().map(|c| c.name.as_str())))
            .collect();
        assert_eq!(
            plain,
            [("masq4", 4, Some("net-10.1.0.0/24")), ("masq6", 16, Some("net-fd00--/64"))]
        );
    }
}
