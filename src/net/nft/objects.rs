//! Tables, chains, rules and elements as the kernel has them. Also flowtables: packets of a flow
//! that is in one go from link to link, past the rules.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::batch::{Batch, Table, element_key, set_name};
use super::meaning;
use super::socket::{Nft, Query};
use super::uapi::*;
use super::wire::{Attributes, read_comment};
use crate::error::Result;
use crate::net::filter_rule::PacketRule;
use crate::net::netlink::attr::{Attrs, read_text};
use crate::net::nfnetlink::{NLM_F_CREATE, NfFamily};

/// NFT_NAME_MAXLEN, including the NUL.
const NAME_MAX: usize = 256;

/// A table as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// The number of its chains, sets and other objects.
    pub uses: u32,
    /// Its comment, possibly empty.
    pub comment: String,
    flags: u32,
}

/// A chain as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainInfo {
    /// The number of its rules and of the references to it, counted together.
    pub uses: u32,
    /// Whether it is a base chain with policy drop.
    pub is_dropping: bool,
    /// Its comment, possibly empty.
    pub comment: String,
}

/// A rule as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    /// The handle that it is removed by.
    pub handle: u64,
    /// Its comment, possibly empty.
    pub comment: String,
    /// The values that it compares fields of a packet with, in order.
    pub compared: Vec<Vec<u8>>,
    /// Its expressions, as the kernel lists them.
    expressions: Vec<u8>,
}

impl RuleInfo {
    fn read(attrs: Attrs<'_>) -> Option<RuleInfo> {
        Some(RuleInfo {
            handle: attrs.be64(NFTA_RULE_HANDLE)?,
            comment: comment(attrs, NFTA_RULE_USERDATA),
            compared: attrs.expressions().filter_map(compared).map(<[u8]>::to_vec).collect(),
            expressions: attrs.bytes(NFTA_RULE_EXPRESSIONS).unwrap_or_default().to_vec(),
        })
    }

    /// Whether it does the same as these expressions.
    pub fn does(&self, expressions: Attrs<'_>) -> bool {
        meaning::is_same(expressions, Attrs::of(&self.expressions))
    }

    /// Whether it does at least the same, as a rule does that nft(8) has listed and loaded again.
    pub fn does_as_listed(&self, expressions: Attrs<'_>) -> bool {
        self.does(expressions)
            || meaning::is_same_as_listed(expressions, Attrs::of(&self.expressions))
    }
}

/// An element as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementInfo {
    /// Its key.
    pub key: Vec<u8>,
    /// The chain that its verdict names.
    pub chain: Option<String>,
    /// Its value, in a map; empty otherwise.
    pub value: Vec<u8>,
    /// Its comment, possibly empty.
    pub comment: String,
}

impl ChainInfo {
    fn read(attrs: Attrs<'_>) -> Option<ChainInfo> {
        let uses = attrs.be32(NFTA_CHAIN_USE).unwrap_or_default();
        let comment = comment(attrs, NFTA_CHAIN_USERDATA);
        Some(ChainInfo { uses, is_dropping: drops(attrs), comment })
    }
}

impl ElementInfo {
    fn read(attrs: Attrs<'_>) -> Option<ElementInfo> {
        let data = attrs.within(NFTA_SET_ELEM_DATA);
        Some(ElementInfo {
            value: data.bytes(NFTA_DATA_VALUE).unwrap_or_default().to_vec(),
            key: attrs.value(NFTA_SET_ELEM_KEY)?.to_vec(),
            chain: data.within(NFTA_DATA_VERDICT).text(NFTA_VERDICT_CHAIN),
            comment: comment(attrs, NFTA_SET_ELEM_USERDATA),
        })
    }
}

/// The comment in an attribute of user data, possibly empty.
fn comment(attrs: Attrs<'_>, kind: u16) -> String {
    attrs.bytes(kind).and_then(read_comment).unwrap_or_default()
}

impl Nft {
    /// Whether the table exists.
    pub fn has_table(&self, table: Table) -> Result<bool> {
        Ok(self.table(table)?.is_some())
    }

    /// The names of a family's tables.
    pub fn tables(&self, family: NfFamily) -> Result<Vec<String>> {
        let query = Query::new(NFT_MSG_GETTABLE, family, format_args!("list tables"), |_| ());
        self.dump(&query, |attrs, names| names.extend(attrs.text(NFTA_TABLE_NAME)))
    }

    /// Whether the table exists and is not dormant (NFT_TABLE_F_DORMANT).
    pub fn is_in_force(&self, table: Table) -> Result<bool> {
        Ok(self.table(table)?.is_some_and(|info| info.flags & NFT_TABLE_F_DORMANT == 0))
    }

    /// The table, if it exists.
    pub fn table(&self, table: Table) -> Result<Option<TableInfo>> {
        let what = format_args!("find table {:?}", table.name);
        let name = |body: &mut Attributes| {
            body.text(NFTA_TABLE_NAME, table.name);
        };
        self.get(&Query::new(NFT_MSG_GETTABLE, table.family, what, name), |attrs| {
            Some(TableInfo {
                uses: attrs.be32(NFTA_TABLE_USE).unwrap_or_default(),
                comment: comment(attrs, NFTA_TABLE_USERDATA),
                flags: attrs.be32(NFTA_TABLE_FLAGS).unwrap_or_default(),
            })
        })
    }

    /// The chain of this name, if it exists. No chain has a name that is too long for the kernel.
    pub fn chain(&self, family: NfFamily, table: &str, chain: &str) -> Result<Option<ChainInfo>> {
        if chain.len() >= NAME_MAX {
            return Ok(None);
        }
        let what = format_args!("find chain {chain:?} of table {table:?}");
        let name = |body: &mut Attributes| {
            body.text(NFTA_CHAIN_TABLE, table).text(NFTA_CHAIN_NAME, chain);
        };
        self.get(&Query::new(NFT_MSG_GETCHAIN, family, what, name), ChainInfo::read)
    }

    /// The base chains of a family on a hook (NF_INET_*) with policy drop, each with its table.
    pub fn dropping_chains(&self, family: NfFamily, hook: u32) -> Result<Vec<(String, String)>> {
        let what = format_args!("list chains");
        let query = Query::new(NFT_MSG_GETCHAIN, family, what, |_| ());
        self.dump(&query, |attrs, list| {
            let at = attrs.within(NFTA_CHAIN_HOOK).be32(NFTA_HOOK_HOOKNUM);
            let name = attrs.text(NFTA_CHAIN_TABLE).zip(attrs.text(NFTA_CHAIN_NAME));
            list.extend(name.filter(|_| at == Some(hook) && drops(attrs)));
        })
    }

    /// Whether a table of this name exists and has rules. It reads no further than necessary.
    pub fn has_rules(&self, family: NfFamily, table: &str) -> Result<bool> {
        let what = format_args!("look into table {table:?}");
        let name = |body: &mut Attributes| {
            body.text(NFTA_RULE_TABLE, table);
        };
        // Kernels that do not filter send the rules of every table.
        self.dump_has(&Query::new(NFT_MSG_GETRULE, family, what, name), |attrs| {
            attrs.is_text(NFTA_RULE_TABLE, table)
        })
    }

    /// The element with this key, if it exists.
    pub fn element(&self, table: Table, set: &str, key: &[u8]) -> Result<Option<ElementInfo>> {
        let what = format_args!("find an element of set {set:?} of table {:?}", table.name);
        let name = |body: &mut Attributes| element_key(body, table, set, key);
        self.get(&Query::new(NFT_MSG_GETSETELEM, table.family, what, name), |attrs| {
            elements_of(attrs).next()
        })
    }

    /// All elements of a set; empty if the set does not exist.
    pub fn elements(&self, table: Table, set: &str) -> Result<Vec<ElementInfo>> {
        let what = format_args!("list set {set:?} of table {:?}", table.name);
        self.dump(&of_set(table, set, what), |attrs, list| list.extend(elements_of(attrs)))
    }

    /// Whether the set has an element that `other` accepts. It reads no further than necessary: a
    /// dump that is not read to its end costs no more than its first page.
    pub fn has_element(
        &self,
        table: Table,
        set: &str,
        other: impl Fn(&ElementInfo) -> bool,
    ) -> Result<bool> {
        let what = format_args!("look into set {set:?} of table {:?}", table.name);
        self.dump_has(&of_set(table, set, what), |attrs| {
            elements_of(attrs).any(|element| other(&element))
        })
    }

    /// The rules of a chain; empty if the chain does not exist.
    pub fn rules(&self, family: NfFamily, table: &str, chain: &str) -> Result<Vec<RuleInfo>> {
        let what = format_args!("list chain {chain:?} of table {table:?}");
        let name = |body: &mut Attributes| {
            body.text(NFTA_RULE_TABLE, table).text(NFTA_RULE_CHAIN, chain);
        };
        self.dump(&Query::new(NFT_MSG_GETRULE, family, what, name), |attrs, list| {
            // Kernels that do not filter send the rules of every chain.
            if attrs.is_text(NFTA_RULE_CHAIN, chain) {
                list.extend(RuleInfo::read(attrs));
            }
        })
    }

    /// The rules of each chain of a table of family ip or ip6, as read at one time.
    pub fn packet_rules(&self, table: Table) -> Result<HashMap<String, Vec<PacketRule>>> {
        let what = format_args!("list table {:?}", table.name);
        let name = |body: &mut Attributes| {
            body.text(NFTA_RULE_TABLE, table.name);
        };
        let query = Query::new(NFT_MSG_GETRULE, table.family, what, name);
        let rules = self.dump(&query, |attrs, list| {
            // Kernels that do not filter send the rules of every table.
            if attrs.is_text(NFTA_RULE_TABLE, table.name) {
                let expressions = attrs.within(NFTA_RULE_EXPRESSIONS);
                let rule = meaning::packet_rule(table.family, expressions);
                list.extend(attrs.text(NFTA_RULE_CHAIN).map(|chain| (chain, rule)));
            }
        })?;
        let mut chains: HashMap<String, Vec<PacketRule>> = HashMap::new();
        for (chain, rule) in rules {
            chains.entry(chain).or_default().push(rule);
        }
        Ok(chains)
    }
}

/// The query for the elements of a set.
fn of_set<'a>(table: Table, set: &str, what: fmt::Arguments<'a>) -> Query<'a> {
    Query::new(NFT_MSG_GETSETELEM, table.family, what, |body| set_name(body, table, set))
}

/// Whether a base chain has policy drop.
fn drops(chain: Attrs<'_>) -> bool {
    chain.be32(NFTA_CHAIN_POLICY) == Some(NF_DROP as u32)
}

/// The value that a `cmp` expression compares with.
fn compared(expression: Attrs<'_>) -> Option<&[u8]> {
    expression.expression("cmp")?.value(NFTA_CMP_DATA)
}

impl Batch {
    /// The keys of the elements that it removes from a set, except those that it adds again.
    pub(super) fn removed_from(&self, set: &str) -> Vec<Vec<u8>> {
        let keys = |kind| {
            let of_set = self.bodies(kind).filter(|body| body.is_text(NFTA_SET_ELEM_LIST_SET, set));
            of_set.flat_map(elements_of).map(|element| element.key)
        };
        let added: HashSet<Vec<u8>> = keys(NFT_MSG_NEWSETELEM).collect();
        keys(NFT_MSG_DELSETELEM).filter(|key| !added.contains(key)).collect()
    }
}

/// The elements in a message about a set.
fn elements_of(attrs: Attrs<'_>) -> impl Iterator<Item = ElementInfo> {
    let elements = attrs.within(NFTA_SET_ELEM_LIST_ELEMENTS).iter();
    elements.filter_map(|(_, element)| ElementInfo::read(Attrs::of(element)))
}

/// How many links a request may have: NFT_NETDEVICE_MAX less one. A flowtable may have more.
pub const LINKS_OF_REQUEST: usize = 255;

impl Batch {
    /// Adds a flowtable unless it exists, and these links to it, which it may have already. Kernels
    /// before 5.8 refuse a flowtable without links, and add none to an existing one.
    pub fn flowtable(&mut self, table: Table, name: &str, links: &[String]) -> &mut Batch {
        self.push(table.message(NFT_MSG_NEWFLOWTABLE).with(NLM_F_CREATE), |body| {
            flowtable_name(body, table, name);
            hook(body, links);
        })
    }

    /// Removes a link from a flowtable.
    pub fn delete_flowtable_link(
        &mut self,
        table: Table,
        flowtable: &str,
        link: &str,
    ) -> &mut Batch {
        self.push(table.message(NFT_MSG_DELFLOWTABLE), |body| {
            flowtable_name(body, table, flowtable);
            hook(body, &[link.to_owned()]);
        })
    }

    /// Removes a flowtable that no rule uses, which ends its flows.
    pub fn delete_flowtable(&mut self, table: Table, name: &str) -> &mut Batch {
        self.push(table.message(NFT_MSG_DELFLOWTABLE), |body| flowtable_name(body, table, name))
    }
}

fn flowtable_name(body: &mut Attributes, table: Table, name: &str) {
    body.text(NFTA_FLOWTABLE_TABLE, table.name).text(NFTA_FLOWTABLE_NAME, name);
}

/// Hook `ingress` with priority `filter`, on these links.
fn hook(body: &mut Attributes, links: &[String]) {
    body.nest(NFTA_FLOWTABLE_HOOK, |hook| {
        hook.be32(NFTA_FLOWTABLE_HOOK_NUM, NF_NETDEV_INGRESS);
        hook.be32(NFTA_FLOWTABLE_HOOK_PRIORITY, 0);
        if !links.is_empty() {
            hook.nest(NFTA_FLOWTABLE_HOOK_DEVS, |devices| {
                for link in links {
                    devices.text(NFTA_DEVICE_NAME, link);
                }
            });
        }
    });
}

impl Nft {
    /// The links of a flowtable; none if it does not exist.
    pub fn links_of_flowtable(&self, table: Table, name: &str) -> Result<Vec<String>> {
        let what = format_args!("list flowtable {name:?}");
        let query = Query::new(NFT_MSG_GETFLOWTABLE, table.family, what, |body| {
            body.text(NFTA_FLOWTABLE_TABLE, table.name);
        });
        self.dump(&query, |attrs, links| {
            let is_of_table = attrs.is_text(NFTA_FLOWTABLE_TABLE, table.name);
            if is_of_table && attrs.is_text(NFTA_FLOWTABLE_NAME, name) {
                links.extend(links_in(attrs));
            }
        })
    }
}

/// The links of a flowtable that the kernel lists.
pub(super) fn links_in(flowtable: Attrs<'_>) -> impl Iterator<Item = String> {
    let devices = flowtable.within(NFTA_FLOWTABLE_HOOK).within(NFTA_FLOWTABLE_HOOK_DEVS);
    let names = devices.iter().filter(|(kind, _)| *kind == NFTA_DEVICE_NAME);
    names.map(|(_, name)| read_text(name))
}
