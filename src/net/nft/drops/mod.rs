//! Which rule, or which policy, drops a packet.
//!
//! The base chains of each hook are walked as the kernel walks them, for one packet: a new TCP
//! connection of a container, or the answer to one. Its mark and its addresses are kept from hook to
//! hook. Ports, and the address of the other side, are values that no rule names. A rule with an
//! expression that cannot be decoded may match or not; if it might decide, nothing is said about the
//! chain. Tables of iptables-legacy are walked as those of nf_tables are.

mod expressions;
mod extensions;
mod legacy;
mod matches;
mod packet;
mod passage;
mod scene;
mod set;
mod state;
mod tracking;
mod walk;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

pub use self::packet::{Packet, Port};
pub use self::passage::{Passage, Verdict};
use self::set::Sets;
use super::socket::{Nft, Query};
use super::uapi::*;
use crate::error::Result;
use crate::family::Family;
use crate::net::netlink::attr::Attrs;
use crate::net::netlink::never_consistent;
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

/// How often the ruleset is read again because it changed in between.
const TRIES: usize = 20;

/// NF_INET_INGRESS.
const INGRESS: u32 = 5;

/// The rulesets of a namespace, as read at one time.
pub struct Ruleset {
    /// None if the kernel lacks nf_tables.
    nft: Option<Nft>,
    chains: Vec<Chain>,
    /// The position of each chain, by table and name.
    places: HashMap<TableName, HashMap<String, usize>>,
    sets: RefCell<Sets>,
    /// Whether rules see packets before all that are read here, and may mark them.
    has_ingress: bool,
    /// The families with a rule that has connections tracked: chains of type nat see no packets
    /// without them.
    tracked: [bool; 2],
}

/// A family's number and the name of one of its tables; those of iptables-legacy have
/// [`OF_LEGACY`] as well.
type TableName = (u8, String);

const OF_LEGACY: u8 = 0x80;

/// A chain with its rules.
#[derive(Debug)]
struct Chain {
    family: NfFamily,
    /// Whether it is one of iptables-legacy.
    is_legacy: bool,
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
    /// Whether it is of type nat.
    is_nat: bool,
}

/// A rule: its handle, or in a chain of iptables-legacy its number, and its expressions in the
/// kernel's form.
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
    /// Whether it is a table of iptables-legacy, which `nft` does not show.
    pub is_legacy: bool,
    /// Its table.
    pub table: String,
    /// The base chain at the hook.
    pub base: String,
    /// The chain of the rule.
    pub chain: String,
    /// The rule's handle, or in a table of iptables-legacy its number in the chain; None for the
    /// policy of the base chain.
    pub handle: Option<u64>,
    /// Whether the sender is notified.
    pub rejects: bool,
    /// Whether a rule on the way to it compares with the packet's address or link.
    pub is_specific: bool,
}

/// `inet filter forward, handle 12: "drop"`.
impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Culprit { family, table, chain, is_legacy, .. } = self;
        let number = match (is_legacy, family) {
            (false, _) => {
                write!(f, "{family} {table} {chain}")?;
                "handle"
            }
            (true, family) => {
                write!(f, "{family}tables-legacy {table} {chain}")?;
                "rule"
            }
        };
        match (self.handle, self.rejects) {
            (None, _) => f.write_str(": policy \"drop\""),
            (Some(handle), true) => write!(f, ", {number} {handle}: \"reject\""),
            (Some(handle), false) => write!(f, ", {number} {handle}: \"drop\""),
        }
    }
}

impl Ruleset {
    /// What `look` finds in the chains and rules of this thread's namespace. If they change
    /// meanwhile, it looks again.
    pub fn look<T>(look: impl Fn(&Ruleset) -> Result<T>) -> Result<T> {
        let mut nft = Nft::open_if_there()?;
        let generation = |nft: &Option<Nft>| nft.as_ref().map(Nft::generation).transpose();
        for _ in 0..TRIES {
            let before = generation(&nft)?;
            let ruleset = Ruleset::read(nft)?;
            let found = look(&ruleset);
            nft = ruleset.nft;
            if generation(&nft)? == before {
                return found;
            }
        }
        Err(never_consistent("read the rules of the packet filters", TRIES))
    }

    fn read(nft: Option<Nft>) -> Result<Ruleset> {
        let mut ruleset = Ruleset {
            nft,
            chains: vec![],
            places: HashMap::new(),
            sets: RefCell::default(),
            has_ingress: false,
            tracked: [false; 2],
        };
        if ruleset.nft.is_some() {
            FAMILIES.iter().try_for_each(|family| ruleset.add(*family))?;
            ruleset.has_ingress = ruleset.sees_ingress()?;
        }
        for family in Family::ALL {
            legacy::chains(family)?.into_iter().for_each(|chain| ruleset.push(chain));
        }
        ruleset.tracked = Family::ALL.map(|family| {
            let sees = |chain: &&Chain| [NfFamily::Inet, family.into()].contains(&chain.family);
            ruleset.chains.iter().filter(sees).any(Chain::tracks)
        });
        Ok(ruleset)
    }

    /// Whether chains are at the ingress of a link.
    fn sees_ingress(&self) -> Result<bool> {
        let is_ingress = |chain: &Chain| chain.base.is_some_and(|base| base.hook == INGRESS);
        let query =
            Query::new(NFT_MSG_GETCHAIN, NfFamily::Netdev, format_args!("list chains"), |_| ());
        let of_links = self.dump(&query, |_, list| list.push(()))?;
        Ok(!of_links.is_empty() || self.chains.iter().any(is_ingress))
    }

    /// A dump of nf_tables; empty if the kernel lacks that.
    fn dump<T>(&self, query: &Query<'_>, read: impl Fn(Attrs<'_>, &mut Vec<T>)) -> Result<Vec<T>> {
        self.nft.as_ref().map_or(Ok(vec![]), |nft| nft.dump(query, read))
    }

    fn push(&mut self, chain: Chain) {
        let places = self.places.entry(chain.table_name()).or_default();
        places.insert(chain.name.clone(), self.chains.len());
        self.chains.push(chain);
    }

    fn add(&mut self, family: NfFamily) -> Result<()> {
        let dormant = self.dormant_tables(family)?;
        let query = Query::new(NFT_MSG_GETCHAIN, family, format_args!("list chains"), |_| ());
        let chains = self.dump(&query, |attrs, list| list.extend(Chain::read(family, attrs)))?;
        for mut chain in chains {
            if dormant.contains(&chain.table) {
                chain.base = None;
            }
            self.push(chain);
        }
        self.add_rules(family)
    }

    fn add_rules(&mut self, family: NfFamily) -> Result<()> {
        let query = Query::new(NFT_MSG_GETRULE, family, format_args!("list rules"), |_| ());
        let rules = self.dump(&query, |attrs, list| list.extend(read_rule(attrs)))?;
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
        self.dump(&query, |attrs, list| {
            let flags = attrs.be32(NFTA_TABLE_FLAGS).unwrap_or_default();
            list.extend(attrs.text(NFTA_TABLE_NAME).filter(|_| flags & NFT_TABLE_F_DORMANT != 0));
        })
    }

    /// The base chains of a hook in the order of packets.
    fn bases(&self, families: &[NfFamily], hook: Hook) -> Vec<(&Chain, Base)> {
        let at_hook = |chain: &Chain| chain.base.filter(|base| base.hook == hook as u32);
        let of_families = self.chains.iter().filter(|chain| families.contains(&chain.family));
        let mut bases: Vec<(&Chain, Base)> =
            of_families.filter_map(|chain| Some((chain, at_hook(chain)?))).collect();
        bases.sort_by_key(|(_, base)| (base.place(hook), base.priority));
        bases
    }

    /// Whether the policy of this chain of a table `filter` is drop.
    pub fn drops_rest(&self, family: NfFamily, is_legacy: bool, name: &str) -> bool {
        self.chains.iter().any(|chain| {
            chain.table_name() == table_name(family, is_legacy, "filter")
                && chain.name == name
                && chain.base.is_some_and(|base| base.drops)
        })
    }

    /// Another chain of the same table.
    fn sibling(&self, chain: &Chain, name: &str) -> Option<&Chain> {
        let places = self.places.get(&chain.table_name())?;
        self.chains.get(*places.get(name)?)
    }
}

impl Chain {
    fn table_name(&self) -> TableName {
        table_name(self.family, self.is_legacy, &self.table)
    }

    /// Whether one of its rules has connections tracked.
    fn tracks(&self) -> bool {
        self.rules.iter().any(|rule| tracking::track(Attrs::of(&rule.expressions)))
    }

    fn read(family: NfFamily, attrs: Attrs<'_>) -> Option<Chain> {
        let drops = attrs.be32(NFTA_CHAIN_POLICY) == Some(NF_DROP as u32);
        let base = attrs.nested(NFTA_CHAIN_HOOK).and_then(|hook| {
            let priority = hook.be32(NFTA_HOOK_PRIORITY)? as i32;
            let is_nat = attrs.is_text(NFTA_CHAIN_TYPE, "nat");
            Some(Base { hook: hook.be32(NFTA_HOOK_HOOKNUM)?, priority, drops, is_nat })
        });
        Some(Chain {
            family,
            is_legacy: false,
            table: attrs.text(NFTA_CHAIN_TABLE)?,
            name: attrs.text(NFTA_CHAIN_NAME)?,
            base,
            rules: vec![],
        })
    }
}

fn table_name(family: NfFamily, is_legacy: bool, table: &str) -> TableName {
    let family = family as u8;
    (if is_legacy { family | OF_LEGACY } else { family }, table.to_owned())
}

/// A rule, with its table and its chain.
fn read_rule(attrs: Attrs<'_>) -> Option<(String, String, Rule)> {
    let rule = Rule {
        handle: attrs.be64(NFTA_RULE_HANDLE)?,
        expressions: attrs.bytes(NFTA_RULE_EXPRESSIONS).unwrap_or_default().to_vec(),
    };
    Some((attrs.text(NFTA_RULE_TABLE)?, attrs.text(NFTA_RULE_CHAIN)?, rule))
}
