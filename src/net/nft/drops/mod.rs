//! Which rule, or which policy, drops a packet.
//!
//! The base chains of a hook are walked as the kernel walks them, for one packet: a new TCP
//! connection of a container, or the answer to one. Ports, and the address of the other side, are
//! values that no rule names. A rule with an expression that cannot be decoded may match or not; if
//! it might decide, nothing is said about the chain.

mod expressions;
mod packet;
mod set;
mod walk;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

pub use self::packet::{Packet, Port};
use self::set::Sets;
use super::socket::{Nft, Query};
use super::uapi::*;
use crate::error::Result;
use crate::net::netlink::attr::Attrs;
use crate::net::nfnetlink::NfFamily;

/// The families with chains that IP packets pass.
const FAMILIES: [NfFamily; 4] = [NfFamily::Inet, NfFamily::Ip, NfFamily::Ip6, NfFamily::Bridge];

/// A hook of linux/netfilter.h; those of bridges have the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Before the routing decision.
    Prerouting = 0,
    /// For packets to the host itself.
    Input = 1,
    /// For packets that the host forwards.
    Forward = 2,
    /// For packets of the host itself.
    Output = 3,
    /// After the routing decision.
    Postrouting = 4,
}

/// The rulesets of a namespace, as read at one time.
pub struct Ruleset {
    nft: Nft,
    chains: Vec<Chain>,
    /// The position of each chain, by table and name.
    places: HashMap<TableName, HashMap<String, usize>>,
    sets: RefCell<Sets>,
}

/// A family's number and the name of one of its tables.
type TableName = (u8, String);

/// A chain with its rules.
#[derive(Debug)]
struct Chain {
    family: NfFamily,
    table: String,
    name: String,
    /// None for a chain that others jump to.
    base: Option<Base>,
    rules: Vec<Rule>,
}

/// Where a base chain is, and what it does to packets at its end.
#[derive(Clone, Copy, Debug)]
struct Base {
    hook: u32,
    priority: i32,
    drops: bool,
}

/// A rule: its handle, and its expressions in the kernel's form.
#[derive(Debug)]
struct Rule {
    handle: u64,
    expressions: Vec<u8>,
}

/// What drops a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The family of its table.
    pub family: NfFamily,
    /// Its table.
    pub table: String,
    /// The base chain at the hook.
    pub base: String,
    /// The chain of the rule.
    pub chain: String,
    /// The rule's handle; None for the policy of the base chain.
    pub handle: Option<u64>,
    /// Whether the sender is notified.
    pub rejects: bool,
    /// Whether a rule on the way to it compares with the packet's address or link.
    pub is_specific: bool,
}

/// `inet filter forward, handle 12: "drop"`.
impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Culprit { family, table, chain, .. } = self;
        match (self.handle, self.rejects) {
            (None, _) => write!(f, "{family} {table} {chain}: policy \"drop\""),
            (Some(handle), true) => {
                write!(f, "{family} {table} {chain}, handle {handle}: \"reject\"")
            }
            (Some(handle), false) => {
                write!(f, "{family} {table} {chain}, handle {handle}: \"drop\"")
            }
        }
    }
}

impl Ruleset {
    /// Reads the chains and rules of this thread's namespace; None if the kernel lacks nf_tables.
    pub fn read() -> Result<Option<Ruleset>> {
        let Some(nft) = Nft::open_if_there()? else { return Ok(None) };
        let mut ruleset =
            Ruleset { nft, chains: vec![], places: HashMap::new(), sets: RefCell::default() };
        FAMILIES.iter().try_for_each(|family| ruleset.add(*family))?;
        Ok(Some(ruleset))
    }

    fn add(&mut self, family: NfFamily) -> Result<()> {
        let dormant = self.dormant_tables(family)?;
        let query = Query::new(NFT_MSG_GETCHAIN, family, format_args!("list chains"), |_| ());
        let chains =
            self.nft.dump(&query, |attrs, list| list.extend(Chain::read(family, attrs)))?;
        for mut chain in chains {
            if dormant.contains(&chain.table) {
                chain.base = None;
            }
            let table = (family as u8, chain.table.clone());
            self.places.entry(table).or_default().insert(chain.name.clone(), self.chains.len());
            self.chains.push(chain);
        }
        self.add_rules(family)
    }

    fn add_rules(&mut self, family: NfFamily) -> Result<()> {
        let query = Query::new(NFT_MSG_GETRULE, family, format_args!("list rules"), |_| ());
        let rules = self.nft.dump(&query, |attrs, list| list.extend(read_rule(attrs)))?;
        for (table, chain, rule) in rules {
            let places = self.places.get(&(family as u8, table));
            if let Some(place) = places.and_then(|places| places.get(&chain)) {
                self.chains[*place].rules.push(rule);
            }
        }
        Ok(())
    }

    /// The tables with base chains that are switched off.
    fn dormant_tables(&self, family: NfFamily) -> Result<Vec<String>> {
        let query = Query::new(NFT_MSG_GETTABLE, family, format_args!("list tables"), |_| ());
        self.nft.dump(&query, |attrs, list| {
            let flags = attrs.be32(NFTA_TABLE_FLAGS).unwrap_or_default();
            list.extend(attrs.text(NFTA_TABLE_NAME).filter(|_| flags & NFT_TABLE_F_DORMANT != 0));
        })
    }

    /// What drops the packet at a hook of IP, if anything certainly does.
    pub fn culprit(&self, hook: Hook, packet: &Packet) -> Result<Option<Culprit>> {
        let own = NfFamily::from(packet.family());
        self.first_culprit(&[NfFamily::Inet, own], hook, packet)
    }

    /// What drops the packet at a hook of bridges, if anything certainly does.
    pub fn culprit_on_bridge(&self, hook: Hook, packet: &Packet) -> Result<Option<Culprit>> {
        self.first_culprit(&[NfFamily::Bridge], hook, packet)
    }

    fn first_culprit(
        &self,
        families: &[NfFamily],
        hook: Hook,
        packet: &Packet,
    ) -> Result<Option<Culprit>> {
        for (chain, base) in self.bases(families, hook) {
            if let Some(culprit) = walk::culprit(self, packet, chain, base)? {
                return Ok(Some(culprit));
            }
        }
        Ok(None)
    }

    /// The base chains of a hook in the order of packets.
    fn bases(&self, families: &[NfFamily], hook: Hook) -> Vec<(&Chain, Base)> {
        let at_hook = |chain: &Chain| chain.base.filter(|base| base.hook == hook as u32);
        let of_families = self.chains.iter().filter(|chain| families.contains(&chain.family));
        let mut bases: Vec<(&Chain, Base)> =
            of_families.filter_map(|chain| Some((chain, at_hook(chain)?))).collect();
        bases.sort_by_key(|(_, base)| base.priority);
        bases
    }

    /// Another chain of the same table.
    fn sibling(&self, chain: &Chain, name: &str) -> Option<&Chain> {
        let places = self.places.get(&(chain.family as u8, chain.table.clone()))?;
        self.chains.get(*places.get(name)?)
    }
}

impl Chain {
    fn read(family: NfFamily, attrs: Attrs<'_>) -> Option<Chain> {
        let drops = attrs.be32(NFTA_CHAIN_POLICY) == Some(NF_DROP as u32);
        let base = attrs.nested(NFTA_CHAIN_HOOK).and_then(|hook| {
            let priority = hook.be32(NFTA_HOOK_PRIORITY)? as i32;
            Some(Base { hook: hook.be32(NFTA_HOOK_HOOKNUM)?, priority, drops })
        });
        Some(Chain {
            family,
            table: attrs.text(NFTA_CHAIN_TABLE)?,
            name: attrs.text(NFTA_CHAIN_NAME)?,
            base,
            rules: vec![],
        })
    }
}

/// A rule, with its table and its chain.
fn read_rule(attrs: Attrs<'_>) -> Option<(String, String, Rule)> {
    let rule = Rule {
        handle: attrs.be64(NFTA_RULE_HANDLE)?,
        expressions: attrs.bytes(NFTA_RULE_EXPRESSIONS).unwrap_or_default().to_vec(),
    };
    Some((attrs.text(NFTA_RULE_TABLE)?, attrs.text(NFTA_RULE_CHAIN)?, rule))
}
