//! D26x: rules of other programs that act on the packets of containers.

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object};
use super::node::{Node, Reader};
use super::policy;
use crate::deadline::Clock;
use crate::error::Result;
use crate::family::Family;
use crate::net::iptables::Programs;
use crate::net::nft::{NfFamily, Nft};
use crate::net::sysctl::Sysctl;

const BOTH: Fault = Fault::warning("D260", "iptables-legacy and iptables-nft have the same table");
const BRIDGED: Fault = Fault::warning("D261", "rules that drop also see packets within a bridge");

/// The examination.
pub const EXAMINATION: Examination = Examination { faults: || vec![&BOTH, &BRIDGED], examine };

/// The tables of iptables that rules of containers are in.
const TABLES: [&str; 2] = ["filter", "nat"];

/// NF_INET_FORWARD.
const FORWARD_HOOK: u32 = 2;

fn examine(node: &Node<'_>, findings: &mut Findings) {
    let Some(nft) = &node.nft else { return };
    for family in Family::ALL {
        let both = Reader(findings).keep(in_both(nft, family));
        if !both.is_empty() {
            findings.add(in_both_finding(family, &both));
        }
        let dropping = Reader(findings).keep(dropping(nft, family));
        let is_bridged = Reader(findings).keep(sees_bridged(family));
        if is_bridged && !dropping.is_empty() && !is_explained(node, family, findings) {
            bridged(node, family, &dropping).into_iter().for_each(|it| findings.add(it));
        }
    }
}

/// The tables that both variants of iptables have.
fn in_both(nft: &Nft, family: Family) -> Result<Vec<&'static str>> {
    let programs = Programs::new(Clock::default());
    let mut both = vec![];
    for table in TABLES {
        let is_legacy = programs.legacy_with(table, family)?.is_some();
        if is_legacy && nft.has_named_table(family.into(), table)? {
            both.push(table);
        }
    }
    Ok(both)
}

fn in_both_finding(family: Family, tables: &[&str]) -> Finding {
    let word = family.word();
    let evidence = format!("{word}tables: {}; a packet has to pass both", tables.join(", "));
    let fix = format!("sudo {word}tables-legacy-save; sudo {word}tables-nft-save");
    Finding::new(&BOTH, Object::Node, evidence).fix(fix)
}

/// The chains on the forward hook that drop what no rule accepts.
fn dropping(nft: &Nft, family: Family) -> Result<Vec<String>> {
    let mut names = vec![];
    for table in [NfFamily::from(family), NfFamily::Inet] {
        let chains = nft.dropping_chains(table, FORWARD_HOOK)?;
        names.extend(chains.iter().map(|(of, chain)| format!("{table} {of} {chain}")));
    }
    let programs = Programs::new(Clock::default());
    if let Some(legacy) = programs.legacy_with("filter", family)?
        && legacy.require().is_ok()
        && legacy.is_dropping("filter", "FORWARD")?
    {
        names.push(format!("FORWARD of {}", legacy.name()));
    }
    Ok(names)
}

/// Whether packets from one port of a bridge to another traverse the rules of the family.
fn sees_bridged(family: Family) -> Result<bool> {
    let setting = Sysctl::bridge_netfilter(family);
    Ok(setting.exists()? && setting.read()? == "1")
}

/// Whether no container of a bridge is hit, or the policy's findings have the cause.
fn is_explained(node: &Node<'_>, family: Family, findings: &mut Findings) -> bool {
    let alone = Reader(findings).keep(policy::drops_bridged_alone(node, family));
    alone == Some(false)
}

/// The finding about networks on a bridge that lack a plugin to accept their packets; None without
/// such a network.
fn bridged(node: &Node<'_>, family: Family, dropping: &[String]) -> Option<Finding> {
    let on_bridge = node.networks.iter().filter(|net| net.has("bridge") && !net.has("firewall"));
    let names: Vec<&str> = on_bridge.map(|network| network.list.name.as_str()).collect();
    if names.is_empty() {
        return None;
    }
    let setting = Sysctl::bridge_netfilter(family);
    let evidence = format!(
        "sysctl {setting} is 1, {} drops, and {} has no firewall plugin: its containers do not reach each other",
        dropping.join(", "),
        names.join(", ")
    );
    Some(Finding::new(&BRIDGED, Object::Node, evidence).fix(format!("sudo sysctl -w {setting}=0")))
}
