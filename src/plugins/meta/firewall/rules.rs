//! The reference's rules in iptables' table `filter`. The module that writes them, `netlink` or
//! `programs`, knows where they are.
//!
//! ```text
//! -A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
//! -A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
//! -A CNI-FORWARD -d <address> -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//! -A CNI-FORWARD -s <address> -j ACCEPT
//! -A CNI-FORWARD -d <address> -m conntrack --ctstate DNAT -j ACCEPT   # ours: acceptPublishedPorts
//! ```

use std::fmt;
use std::net::IpAddr;

use crate::error::{Error, Mistake};
use crate::net::filter_rule::{Connections, FilterRule, Target};
use crate::sys::process::another_runs;

/// Returns CHECK's error for a rule that is not where it should be.
pub fn not_found(place: &str, chain: &str, rule: impl fmt::Display) -> Error {
    let chain_text = if chain == FORWARD { "FORWARD " } else { "" };
    Error::check(format!("{place} has no rule `-A {chain} {rule}`"))
        .saying(format_args!("expected {chain_text}rule [{rule}] not found"))
}

/// The kernel's chain of forwarded packets.
pub const FORWARD: &str = "FORWARD";
/// The chain with the accepts.
pub const CNI_FORWARD: &str = "CNI-FORWARD";
/// The chain for packets from a bridge to elsewhere.
pub const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
/// The chain that drops those of them that go to another bridge.
pub const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";

const JUMP_COMMENT: &str = "CNI firewall plugin rules";
const ADMIN_COMMENT: &str = "CNI firewall plugin admin overrides";
/// XT_EXTENSION_MAXNAMELEN, without the NUL.
const CHAIN_NAME_MAX: usize = 28;
/// Names of other chains, and words that do not lead to a chain.
const TAKEN: &str = "ACCEPT DROP QUEUE RETURN ERROR standard PREROUTING INPUT OUTPUT POSTROUTING";
/// The targets of iptables and of xtables-addons. To iptables, `-j LOG` is never a jump, whatever
/// chains exist.
const TARGETS: &str = "ACCOUNT AUDIT BALANCE CHAOS CHECKSUM CLASSIFY CLUSTERIP CONNMARK CONNSECMARK CT DELUDE DHCPMAC DNAT \
    DNETMAP DNPT DSCP ECHO ECN FLOWOFFLOAD FULLCONENAT HL HMARK IDLETIMER IMQ IPMARK LED LOG LOGMARK MARK MASQUERADE MIRROR \
    NAT NDPI NETFLOW NETMAP NFLOG NFQUEUE NOTRACK PROTO RATEEST RAWDNAT RAWSNAT REDIRECT REJECT SAME SECMARK SET SNAT SNPT \
    STEAL SYNPROXY SYSRQ TARPIT TCPMSS TCPOPTSTRIP TEE TOS TPROXY TRACE TTL ULOG XOR";

/// Returns the jump from FORWARD to the accepts.
pub fn jump() -> FilterRule {
    jump_to(CNI_FORWARD, JUMP_COMMENT)
}

/// Returns the jump from the accepts to the administrator's rules, which comes first.
pub fn admin_jump(admin_chain: &str) -> FilterRule {
    jump_to(admin_chain, ADMIN_COMMENT)
}

fn jump_to(chain: &str, comment: &str) -> FilterRule {
    FilterRule {
        comment: Some(comment.to_owned()),
        ..FilterRule::to(Target::Chain(chain.to_owned()))
    }
}

/// Returns the chains that [`admin_jump`]s among the rules lead to. If no rule has the comment, as
/// after nft(8) has loaded its own listing, the first rule is taken for one.
pub fn admin_chains_of(rules: &[Option<&FilterRule>]) -> Vec<String> {
    let commented = rules.iter().flatten().filter(|rule| rule.comment.is_some());
    let commented: Vec<String> = commented.filter_map(|rule| admin_chain(rule)).collect();
    match rules.first() {
        Some(Some(first)) if commented.is_empty() => admin_chain(first).into_iter().collect(),
        _ => commented,
    }
}

/// Returns the chain that a rule leads to, if the rule is an [`admin_jump`].
fn admin_chain(rule: &FilterRule) -> Option<String> {
    match &rule.target {
        Target::Chain(chain) if rule.does(&admin_jump(chain)) => Some(chain.clone()),
        _ => None,
    }
}

/// Whether a foreign firewall plugin is running, as in the middle of an upgrade: it relies on
/// chains that it has seen, and fails if they are deleted meanwhile. Then the chains stay, as they
/// always do with the reference.
pub fn others_rely_on_chains() -> bool {
    another_runs("firewall")
}

/// Returns the rules that let a container's packets pass: replies to it, and everything that it
/// sends.
pub fn of_address(ip: IpAddr) -> [FilterRule; 2] {
    let accept = FilterRule::to(Target::Accept);
    [
        FilterRule { destination: Some(ip), connections: Connections::Replied, ..accept.clone() },
        FilterRule { source: Some(ip), ..accept },
    ]
}

/// Returns the rule that lets connections to published ports pass.
pub fn of_published_ports(ip: IpAddr) -> FilterRule {
    let connections = Connections::Published;
    FilterRule { destination: Some(ip), connections, ..FilterRule::to(Target::Accept) }
}

/// Returns every rule that an ADD may have made for an address.
pub fn of_any_address(ip: IpAddr) -> impl Iterator<Item = FilterRule> {
    of_address(ip).into_iter().chain([of_published_ports(ip)])
}

/// Returns why a text cannot be the name of the administrator's chain, if it cannot.
pub fn mistake_in_chain_name(name: &str) -> Option<Mistake> {
    let mistake = |problem: &str| Mistake::new(format_args!("chain name {name:?} {problem}"));
    if name.len() > CHAIN_NAME_MAX {
        let problem = format!("has {} bytes", name.len());
        Some(mistake(&problem).expecting(format_args!("at most {CHAIN_NAME_MAX}")))
    } else if !is_plain(name) {
        let expected = "letters, digits, \"_\", \".\" and \"-\", the first a letter or a digit";
        Some(mistake("is none").expecting(expected))
    } else if [FORWARD, CNI_FORWARD, STAGE_1, STAGE_2].contains(&name)
        || [TAKEN, TARGETS].iter().flat_map(|all| all.split(' ')).any(|taken| taken == name)
    {
        Some(mistake("means something else").expecting("one of its own"))
    } else {
        None
    }
}

/// Whether iptables takes the name of a chain or a link as it is.
pub fn is_plain(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_iptables_would_take_for_something_else_are_none() {
        for bad in
            ["ACCEPT", "FORWARD", "CNI-FORWARD", "-j", "!x", "a b", "a\nb", "a\"", "ä", "a;b"]
        {
            assert!(mistake_in_chain_name(bad).is_some(), "{bad:?}");
        }
        for target in [
            "LOG",
            "MARK",
            "SNAT",
            "DNAT",
            "MASQUERADE",
            "REDIRECT",
            "TPROXY",
            "NFLOG",
            "CT",
            "NOTRACK",
            "TCPMSS",
        ] {
            assert!(mistake_in_chain_name(target).is_some(), "{target:?}");
        }
        assert!(mistake_in_chain_name(&"x".repeat(29)).is_some());
        assert_eq!(mistake_in_chain_name(&"x".repeat(28)), None);
        assert_eq!(mistake_in_chain_name("CNI-ADMIN"), None);
    }

    #[test]
    fn an_administrator_s_chain_is_known_by_what_leads_to_it() {
        let ours = admin_jump("X");
        let other = FilterRule::to(Target::Chain("Y".into()));
        let bare = FilterRule { comment: None, ..ours.clone() };
        assert_eq!(admin_chains_of(&[Some(&other), Some(&ours)]), ["X"]);
        assert_eq!(admin_chains_of(&[Some(&bare), Some(&other)]), ["X"]);
        assert!(admin_chains_of(&[None, Some(&bare)]).is_empty());
        assert!(admin_chains_of(&[Some(&jump())]).is_empty());
    }
}
