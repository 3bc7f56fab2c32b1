//! D260: rules of other programs that act on the packets of containers.

use super::faults::BOTH_IPTABLES;
use super::finding::{Finding, Findings, Object};
use super::node::{Node, Reader};
use crate::error::Result;
use crate::family::Family;
use crate::net::nft::{self, Nft};
use crate::net::xtables_legacy::{self, Table};
use crate::plugins::meta::firewall::MADE;

/// The tables of iptables that rules of containers are in.
const TABLES: [&str; 2] = ["filter", "nat"];

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    for family in Family::ALL {
        let both = node.nft.as_ref().map(|nft| in_both(nft, family));
        let both = Reader(findings).keep(both.unwrap_or(Ok(vec![])));
        if !both.is_empty() {
            findings.add(in_both_finding(family, &both));
        }
    }
}

/// The tables with rules that both variants of iptables have. A listing alone creates tables
/// without rules.
fn in_both(nft: &Nft, family: Family) -> Result<Vec<&'static str>> {
    let legacy = xtables_legacy::tables(family)?;
    let mut both = vec![];
    for name in TABLES.into_iter().filter(|name| legacy.iter().any(|table| table == name)) {
        let chains = xtables_legacy::read(Table { family, name })?;
        let has_rules = chains.iter().any(|chain| !chain.entries.is_empty());
        let table = nft.table(nft::batch::Table { family: family.into(), name })?;
        let is_ours = table.is_some_and(|table| table.comment == MADE);
        if has_rules && !is_ours && nft.has_rules(family.into(), name)? {
            both.push(name);
        }
    }
    Ok(both)
}

fn in_both_finding(family: Family, tables: &[&str]) -> Finding {
    let word = family.word();
    let evidence = format!("{word}tables: {}; a packet has to pass both", tables.join(", "));
    let fix = format!("sudo {word}tables-legacy-save; sudo {word}tables-nft-save");
    Finding::new(&BOTH_IPTABLES, Object::Node, evidence).fix(fix)
}
