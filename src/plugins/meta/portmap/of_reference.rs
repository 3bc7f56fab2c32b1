//! Rules of published ports that the reference plugin made with nftables. They name the container's
//! ID and nothing else.

use super::mapping::Forward;
use super::publication::Publication;
use crate::cni::attachment::Key;
use crate::error::{ErrorList, Result};
use crate::family::Family;
use crate::net::nft::batch::Table;
use crate::net::nft::wire::read_ip;
use crate::net::nft::{NfFamily, Nft, RuleInfo};
use crate::plugin::Handles;
use crate::steps::rules::ReferenceRules;

const fn rules(family: NfFamily, chain: &'static str, jumps: u32) -> ReferenceRules {
    ReferenceRules {
        table: Table { family, name: "cni_hostport" },
        chain,
        jumps,
        deletion: "delete a port rule of the reference plugins",
    }
}

/// The rules that redirect, of each family.
const PORTS: [ReferenceRules; 2] =
    [rules(NfFamily::Ip, "hostports", 1), rules(NfFamily::Ip6, "hostports", 1)];
/// Those at one address of the host, and those that masquerade.
const OTHERS: [ReferenceRules; 4] = [
    rules(NfFamily::Ip, "hostip_hostports", 0),
    rules(NfFamily::Ip, "masquerading", 0),
    rules(NfFamily::Ip6, "hostip_hostports", 0),
    rules(NfFamily::Ip6, "masquerading", 0),
];

/// Whether the reference made as many rules as there are ports: its rules name the container's ID
/// only.
pub fn is_complete(nft: &Nft, ports: &Publication<'_>) -> Result<bool> {
    let id = ports.key.container_id.as_str();
    for (rules, family) in PORTS.iter().zip(Family::ALL) {
        if rules.find(nft, |comment| comment == id)?.len() < ports.of_family(family).count() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Refuses with code 102 a port that a rule of the reference leads elsewhere.
pub fn refuse_taken(handles: &Handles, ports: &Publication<'_>) -> Result<()> {
    let Some(nft) = handles.nft()? else { return Ok(()) };
    let id = ports.key.container_id.as_str();
    for (rules, family) in PORTS.iter().zip(Family::ALL) {
        let others = rules.find(nft, |comment| comment != id)?;
        for forward in ports.of_family(family) {
            if let Some(rule) = others.iter().find(|rule| redirects(rule, forward)) {
                return Err(forward.taken(&format!("container {}", rule.comment)));
            }
        }
    }
    Ok(())
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
    let id = key.container_id.as_str();
    let all = PORTS.iter().chain(&OTHERS);
    ErrorList::of(all.map(|rules| rules.delete_all(handles, |comment| comment == id)))
}
