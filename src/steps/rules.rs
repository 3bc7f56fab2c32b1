//! What the rules of attachments have in common: the [`Backend`] that makes them, where a
//! configuration can choose; the chains of containers in iptables' table `nat`, which portmap and
//! masquerading make under the reference's names, and the rules that lead to them, whose comments
//! name network and container; and the rules that the reference's plugins made in nftables, which
//! have a chain in common, and where the comment of a rule tells whose it is.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::net::IpAddr;
use std::rc::Rc;

use serde::Deserializer;

use crate::cni::attachment::{Key, NetworkName, iptables_chain};
use crate::cni::conf::ValidAttachments;
use crate::cni::decode;
use crate::cni::valid::{Holder, Stale};
use crate::error::{ErrorList, Result, Word, warn};
use crate::net::iptables::{Iptables, Saved};
use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::{Nft, RuleInfo};
use crate::plugin::Handles;

/// The table of the chains.
pub const NAT: &str = "nat";
/// The maximum for the name of a chain.
const NAME_MAX: usize = 28;
/// xt_comment takes 255 bytes.
const COMMENT_MAX: usize = 255;

/// The chains of one purpose: there is one per container and network.
pub struct CniChains {
    /// What their names begin with.
    pub prefix: &'static str,
    /// The chain with the rules that lead to them.
    pub entrance: &'static str,
    /// What the comments of those rules begin with.
    pub comment: &'static str,
    /// How many bytes of a comment that is too long are kept, and what follows them.
    pub cut: (usize, &'static str),
}

impl CniChains {
    /// The name of a container's chain.
    pub fn name(&self, network: &str, container_id: &str) -> String {
        let hash = iptables_chain(network, container_id);
        let CniChains { prefix, .. } = self;
        format!("{prefix}{}", &hash["CNI-".len()..][..NAME_MAX - prefix.len()])
    }

    /// The name of the chain of an attachment's container.
    pub fn of(&self, key: &Key) -> String {
        self.name(key.network.as_str(), key.container_id.as_str())
    }

    /// The comment of the rules that lead to the chain, quoted for iptables-restore.
    pub fn comment_of(&self, key: &Key) -> String {
        let CniChains { comment, cut: (most, dots), .. } = self;
        let mut text = format!("{comment}\"{}\" id: \"{}\"", key.network, key.container_id);
        if text.len() > COMMENT_MAX {
            text.truncate(*most);
            text.push_str(dots);
        }
        quoted(&text)
    }

    /// The chain that a rule leads to, if the rule's comment names this network. Comments cut long
    /// IDs.
    pub fn chain_in<'r>(&self, rule: &'r str, network: &NetworkName) -> Option<&'r str> {
        let start = format!("--comment \"{}\\\"{network}\\\" id: ", self.comment);
        let chain = value_of(rule, "-j").filter(|_| rule.contains(&start))?;
        chain.starts_with(self.prefix).then_some(chain)
    }

    /// Has `delete` remove the chains of this network's containers without a valid attachment. Runs
    /// no program on a host without such chains. `read` lists the entrance, and what `addresses`
    /// needs to list those of a chain's container.
    pub fn collect_garbage(
        &self,
        handles: &Handles,
        network: &NetworkName,
        valid: &ValidAttachments,
        read: impl Fn(&Iptables<'_>) -> Result<Rc<Saved>>,
        addresses: impl Fn(&Saved, &str) -> Vec<IpAddr>,
        mut delete: impl FnMut(&Iptables<'_>, &str) -> Result<()>,
    ) -> Result<()> {
        let mut errors = ErrorList::default();
        // computed only if there is a chain
        let of_valid: OnceCell<HashSet<String>> = OnceCell::new();
        let names = || valid.containers().map(|id| self.name(network.as_str(), id)).collect();
        for iptables in programs_with(handles, self.entrance)? {
            let saved = errors.push(read(&iptables)).unwrap_or_default();
            let rules = saved.rules_in(self.entrance).iter();
            let mut chains: Vec<&str> =
                rules.filter_map(|rule| self.chain_in(rule, network)).collect();
            chains.retain(|chain| !of_valid.get_or_init(names).contains(*chain));
            chains.dedup();
            for chain in chains {
                let stale = || Stale {
                    what: format!("chain {chain} of iptables"),
                    holder: Holder::of_container(container_of(chain, &saved).unwrap_or_default()),
                    addresses: addresses(&saved, chain),
                    ..Stale::default()
                };
                errors.push(valid.remove(stale, || delete(&iptables, chain)));
            }
        }
        errors.finish()
    }
}

/// The programs that may have a chain of this name.
pub fn programs_with<'h>(handles: &'h Handles, chain: &str) -> Result<Vec<Iptables<'h>>> {
    handles.iptables().with_nat_chain(handles.nft()?, chain)
}

/// The ID of a chain's container, from the comments of the rules that lead to the chain.
pub fn container_of<'s>(chain: &str, saved: &'s Saved) -> Option<&'s str> {
    let mut comments = saved
        .leading_to(chain)
        .filter_map(|(_, rule)| rule.split("\\\" id: \\\"").nth(1)?.split('\\').next());
    comments.next()
}

/// The lines that remove the rules that lead to a chain.
pub fn entrances_away(chain: &str, saved: &Saved) -> Vec<String> {
    saved.leading_to(chain).map(|(from, rule)| format!("-D {from} {rule}")).collect()
}

/// The lines that remove a chain to which no rule leads any more, if it is there.
pub fn chain_away(chain: &str, saved: &Saved) -> Vec<String> {
    match saved.chain(chain) {
        Some(_) => vec![format!("-F {chain}"), format!("-X {chain}")],
        None => vec![],
    }
}

/// The word after an option of a rule.
pub fn value_of<'r>(rule: &'r str, option: &str) -> Option<&'r str> {
    let mut words = rule.split_whitespace();
    words.find(|word| *word == option)?;
    words.next()
}

/// A word as iptables-restore reads it and iptables-save writes it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_graphic() && !"\"'\\".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// A way to make rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nftables over netlink.
    Nftables,
    /// The host's iptables programs.
    Iptables,
}

impl Word for Backend {
    const WORDS: &'static [&'static str] = &["nftables", "iptables"];

    fn of(word: &str) -> Option<Backend> {
        match word {
            "nftables" => Some(Backend::Nftables),
            "iptables" => Some(Backend::Iptables),
            _ => None,
        }
    }
}

impl Backend {
    /// For `deserialize_with`. `refusal` is the start of the reference plugin's sentence about an
    /// unknown word.
    pub fn decode<'de, D: Deserializer<'de>>(
        deserializer: D,
        refusal: &'static str,
    ) -> Result<Option<Backend>, D::Error> {
        decode::word_or(deserializer, refusal).map(Some)
    }

    /// This host's default: nftables, or iptables on a kernel without nf_tables. The fallback is
    /// reported, because the operator then has to look for the rules of this `work` elsewhere.
    pub fn of_host(handles: &Handles, work: &str) -> Result<Backend> {
        if handles.nft()?.is_some() {
            return Ok(Backend::Nftables);
        }
        warn(format_args!("{work} with iptables, this kernel has no nf_tables"));
        Ok(Backend::Iptables)
    }
}

/// The rules of one chain.
pub struct ReferenceRules {
    /// The table that the chain is in.
    pub table: Table,
    /// The chain.
    pub chain: &'static str,
    /// How many rules of the layout lead to the chain, which the kernel counts as its uses.
    pub jumps: u32,
    /// What the deletion of one is called in errors.
    pub deletion: &'static str,
}

impl ReferenceRules {
    /// Those whose comment is asked for.
    pub fn find(&self, nft: &Nft, is_asked: impl Fn(&str) -> bool) -> Result<Vec<RuleInfo>> {
        let Table { family, name } = self.table;
        if nft.chain(family, name, self.chain)?.is_none_or(|chain| chain.uses <= self.jumps) {
            return Ok(vec![]);
        }
        let mut rules = nft.rules(family, name, self.chain)?;
        rules.retain(|rule| is_asked(&rule.comment));
        Ok(rules)
    }

    /// Deletes one. It may be gone already.
    pub fn delete(&self, nft: &Nft, rule: &RuleInfo) -> Result<()> {
        let mut batch = Batch::default();
        batch.delete_rule(self.table, self.chain, rule.handle);
        match nft.commit(&batch, self.deletion) {
            Err(e) if e.is_not_found() => Ok(()),
            deleted => deleted,
        }
    }

    /// Deletes those whose comment is asked for, if the kernel has nf_tables.
    pub fn delete_all(&self, handles: &Handles, is_asked: impl Fn(&str) -> bool) -> Result<()> {
        let Some(nft) = handles.nft()? else { return Ok(()) };
        ErrorList::of(self.find(nft, is_asked)?.iter().map(|rule| self.delete(nft, rule)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_leave_their_place() {
        assert_eq!(quoted("10.0.0.0/8"), "10.0.0.0/8");
        assert_eq!(quoted("a b\" -j ACCEPT"), "\"a b\\\" -j ACCEPT\"");
        assert_eq!(quoted(""), "\"\"");
    }
}
