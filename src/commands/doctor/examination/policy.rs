//! D401: a chain for forwarded packets that drops what no rule accepts. What its rules do is not
//! interpreted: with a container named, packets are followed instead.

use std::collections::BTreeSet;

use super::faults::POLICY_DROP;
use super::finding::{Finding, Findings, Object, quoted};
use super::node::{Node, Reader};
use super::wiring::Wiring;
use crate::error::Result;
use crate::family::Family;
use crate::net::nft::NfFamily;
use crate::net::xtables_legacy;

/// NF_INET_FORWARD.
const FORWARD: u32 = 2;

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    if node.request.sends_packets() {
        return;
    }
    for family in Family::ALL {
        let is_admitted = |it: &Wiring<'_>| {
            let plugins = it.attachment.list.iter().flat_map(|list| &list.plugins);
            plugins.into_iter().any(|plugin| plugin.kind == "firewall")
        };
        let all = Wiring::all(node);
        let all = all.iter().filter(|it| it.router(node, family).is_some() && !is_admitted(it));
        let networks: BTreeSet<&str> = all.map(Wiring::network).collect();
        let chains = Reader(findings).keep(dropping(node, family));
        if let Some((chain, show)) = chains.first().filter(|_| !networks.is_empty()) {
            let networks: Vec<&str> = networks.into_iter().collect();
            let evidence = format!(
                "the policy of {chain} is drop, and {} has no plugin firewall; cni-multi doctor CONTAINER follows packets",
                networks.join(", ")
            );
            // A chain of inet is one of both families.
            if !findings.0.iter().any(|it| it.evidence == evidence) {
                findings.add(Finding::new(&POLICY_DROP, Object::Node, evidence).show(show));
            }
        }
    }
}

/// The chains for forwarded packets of the family with policy drop, each with the command that shows it.
fn dropping(node: &Node<'_>, family: Family) -> Result<Vec<(String, String)>> {
    let mut chains = vec![];
    for (name, of) in [(family.word(), NfFamily::from(family)), ("inet", NfFamily::Inet)] {
        let found = node.nft.as_ref().map_or(Ok(vec![]), |nft| nft.dropping_chains(of, FORWARD))?;
        chains.extend(found.into_iter().map(|(table, chain)| {
            let show = format!("sudo nft list chain {name} {} {}", quoted(&table), quoted(&chain));
            (format!("{name} {table} {chain}"), show)
        }));
    }
    let word = family.word();
    let is_policy = |it: &xtables_legacy::Ending| it.chain == "FORWARD" && it.rule.is_none();
    let legacy = xtables_legacy::endings(family)?.into_iter().filter(is_policy).map(|it| {
        let name = format!("{} {} of {word}tables-legacy", it.table, it.chain);
        (name, format!("sudo {word}tables-legacy -t {} -vS FORWARD", it.table))
    });
    chains.extend(legacy);
    Ok(chains)
}
