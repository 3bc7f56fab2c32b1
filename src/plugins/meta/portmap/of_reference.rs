//! Rules of published ports that the reference plugin made with nftables. They name the container's
//! ID and nothing else.

use super::mapping::Forward;
use super::publication::Publication;
use crate::cni::attachment::Key;
use crate::error::{ErrorList, Result};
use crate::family::Family;
use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::wire::read_ip;
use crate::net::nft::{NfFamily, Nft, RuleInfo};
use crate::plugin::Handles;

/// Its tables, and the chains in them with rules of containers.
const TABLES: [Table; 2] = [
    Table { family: NfFamily::Ip, name: "cni_hostport" },
    Table { family: NfFamily::Ip6, name: "cni_hostport" },
];
const CHAINS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];

/// Whether the reference made as many rules as there are ports: its rules name the container's ID
/// only.
pub fn is_complete(nft: &Nft, ports: &Publication<'_>) -> Result<bool> {
    for (table, family) in TABLES.into_iter().zip(Family::ALL) {
        let wanted = ports.of_family(family).count();
        if rules_of(nft, table, CHAINS[0], ports.key)?.len() < wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Refuses with code 102 a port that a rule of the reference leads elsewhere.
pub fn refuse_taken(handles: &Handles, ports: &Publication<'_>) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    for (table, family) in TABLES.into_iter().zip(Family::ALL) {
        let rules = rules_of_others(nft, table, ports.key)?;
        for forward in ports.of_family(family) {
            if let Some(rule) = rules.iter().find(|rule| redirects(rule, forward)) {
                return Err(forward.taken(&format!("container {}", rule.comment)));
            }
        }
    }
    Ok(())
}

/// Returns the rules of ports that name another container's ID.
fn rules_of_others(nft: &Nft, table: Table, key: &Key) -> Result<Vec<RuleInfo>> {
    // The jump to the chain counts as a use.
    if nft.chain(table.family, table.name, CHAINS[0])?.is_none_or(|chain| chain.uses <= 1) {
        return Ok(vec![]);
    }
    let mut rules = nft.rules(table.family, table.name, CHAINS[0])?;
    rules.retain(|rule| rule.comment != key.container_id.as_str());
    Ok(rules)
}

/// Whether a rule of the reference matches the forward's port. The rule is `[ip daddr A] tcp dport
/// P dnat to …`.
fn redirects(rule: &RuleInfo, forward: &Forward) -> bool {
    let has = |value: &[u8]| rule.compared.iter().any(|compared| compared == value);
    let at = rule.compared.iter().find_map(|compared| read_ip(compared));
    has(&[forward.protocol as u8])
        && has(&forward.host_port.to_be_bytes())
        && (at.is_none() || forward.at.is_none() || at == forward.at)
}

/// Removes the rules that the reference made for the same container.
pub fn delete(handles: &Handles, key: &Key) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let mut errors = ErrorList::default();
    for (table, chain) in TABLES.into_iter().flat_map(|table| CHAINS.map(|chain| (table, chain))) {
        for handle in errors.push(rules_of(nft, table, chain, key)).unwrap_or_default() {
            errors.push(delete_rule(nft, table, chain, handle));
        }
    }
    errors.finish()
}

fn delete_rule(nft: &Nft, table: Table, chain: &str, handle: u64) -> Result<()> {
    let mut batch = Batch::default();
    batch.delete_rule(table, chain, handle);
    match nft.commit(&batch, "delete a port rule of the reference plugins") {
        Err(e) if e.is_not_found() => Ok(()),
        deleted => deleted,
    }
}

fn rules_of(nft: &Nft, table: Table, chain: &str, key: &Key) -> Result<Vec<u64>> {
    if nft.chain(table.family, table.name, chain)?.is_none() {
        return Ok(vec![]);
    }
    let rules = nft.rules(table.family, table.name, chain)?;
    let own = rules.iter().filter(|rule| rule.comment == key.container_id.as_str());
    Ok(own.map(|rule| rule.handle).collect())
}
