//! A transaction of nf_tables, which the kernel applies as a whole or not at all.

use super::expr::{Expressions, Verdict};
use super::uapi::*;
use super::wire::Attributes;
use crate::net::netlink::attr::Attrs;
use crate::net::nfnetlink::{
    Header, NFNL_BATCH_GENID, NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFNL_SUBSYS_NFTABLES,
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NfFamily,
};

/// User data that tells nft(8) the byte order of keys that are one `ifname`: the machine's.
const HOST_BYTE_ORDER: [u8; 6] = {
    let order = 1_u32.to_ne_bytes();
    [NFTNL_UDATA_SET_KEYBYTEORDER, 4, order[0], order[1], order[2], order[3]]
};

/// A table: its family and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The family of packets that it sees.
    pub family: NfFamily,
    /// Its name.
    pub name: &'static str,
}

impl Table {
    /// The header of a message about the table or something in it (NFT_MSG_*).
    pub(super) fn message(self, kind: u16) -> Header {
        Header::new(NFNL_SUBSYS_NFTABLES, kind, self.family)
    }
}

/// Where a base chain hooks in.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// `nat` or `filter`.
    pub kind: &'static str,
    /// NF_INET_* or NF_BR_*: 0 prerouting, 4 postrouting.
    pub number: u32,
    /// Chains with a lower priority come first.
    pub priority: i32,
}

/// The types of nft(8) that a set's keys are listed as, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    /// `ipv4_addr`, 4 bytes.
    Ipv4 = 7,
    /// `ipv6_addr`, 16 bytes.
    Ipv6 = 8,
    /// `ether_addr`, 6 bytes.
    Ether = 9,
    /// `inet_proto`, one byte.
    Protocol = 12,
    /// `inet_service`, 2 bytes.
    Service = 13,
    /// `mark`, 4 bytes.
    Mark = 19,
    /// `ifname`, 16 bytes.
    IfName = 41,
}

impl KeyType {
    /// The bytes that a key field takes in a register: fields are padded to whole words.
    fn length(self) -> u32 {
        match self {
            KeyType::Ipv4 | KeyType::Protocol | KeyType::Service | KeyType::Mark => 4,
            KeyType::Ether => 8,
            KeyType::Ipv6 | KeyType::IfName => 16,
        }
    }
}

/// What the elements of a set hold besides their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing: a plain set.
    Keys,
    /// A verdict each: a verdict map.
    Verdicts,
    /// A value each, of these fields: a map.
    Values(&'static [KeyType]),
}

/// A set or a map.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// Its name.
    pub name: &'static str,
    /// The fields of its keys.
    pub key: &'static [KeyType],
    /// What its elements hold besides their keys.
    pub holds: Holds,
}

fn length_of(fields: &[KeyType]) -> u32 {
    fields.iter().map(|field| field.length()).sum()
}

/// The number of a concatenation of types in nft(8): six bits for each.
fn concatenation(fields: &[KeyType]) -> u32 {
    fields.iter().fold(0, |types, field| types << 6 | *field as u32)
}

/// What an element holds besides its key.
#[derive(Clone, Copy, Debug)]
pub enum Holding<'a> {
    /// Nothing.
    Key,
    /// What happens to a packet.
    Verdict(&'a Verdict),
    /// The fields of a map's value, each padded to whole words.
    Value(&'a [u8]),
}

/// An element to add.
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    /// The name of its set.
    pub set: &'a str,
    /// Its key: the fields, each padded to whole words.
    pub key: &'a [u8],
    /// What it holds besides.
    pub holding: Holding<'a>,
    /// Its comment.
    pub comment: &'a str,
}

impl Element<'_> {
    fn write(&self, body: &mut Attributes, table: Table) {
        one_element(body, table, self.set, |element| {
            element.value(NFTA_SET_ELEM_KEY, self.key);
            self.holding.write(element);
            element.comment(NFTA_SET_ELEM_USERDATA, self.comment);
        });
    }
}

impl Holding<'_> {
    fn write(self, element: &mut Attributes) {
        match self {
            Holding::Key => element,
            Holding::Verdict(verdict) => {
                element.nest(NFTA_SET_ELEM_DATA, |data| verdict.write(data))
            }
            Holding::Value(value) => element.value(NFTA_SET_ELEM_DATA, value),
        };
    }
}

#[derive(Debug)]
struct Operation {
    header: Header,
    body: Attributes,
}

/// Operations that the kernel applies together.
#[derive(Debug, Default)]
pub struct Batch {
    operations: Vec<Operation>,
    generation: Option<u32>,
    sets: u32,
}

impl Batch {
    /// A batch that is only applied while the ruleset is of this generation.
    pub fn of_generation(generation: u32) -> Batch {
        Batch { generation: Some(generation), ..Batch::default() }
    }

    pub(super) fn push(
        &mut self,
        header: Header,
        fill: impl FnOnce(&mut Attributes),
    ) -> &mut Batch {
        let mut body = Attributes::default();
        fill(&mut body);
        self.operations.push(Operation { header, body });
        self
    }

    /// Adds a table unless it exists. A dormant one becomes active again.
    pub fn table(&mut self, table: Table, comment: &str) -> &mut Batch {
        self.push(table.message(NFT_MSG_NEWTABLE).with(NLM_F_CREATE), |body| {
            body.text(NFTA_TABLE_NAME, table.name).be32(NFTA_TABLE_FLAGS, 0);
            body.comment(NFTA_TABLE_USERDATA, comment);
        })
    }

    /// Removes a table with everything in it.
    pub fn delete_table(&mut self, table: Table) -> &mut Batch {
        self.push(table.message(NFT_MSG_DELTABLE), |body| {
            body.text(NFTA_TABLE_NAME, table.name);
        })
    }

    /// Adds a base chain, which packets enter from a hook, with policy accept, unless it exists.
    pub fn base_chain(&mut self, table: Table, name: &str, hook: Hook) -> &mut Batch {
        self.push(table.message(NFT_MSG_NEWCHAIN).with(NLM_F_CREATE), |body| {
            base_chain(body, table, name, hook);
        })
    }

    /// The same, with a comment. Linux 5.10 and newer keep it.
    pub fn commented_base_chain(
        &mut self,
        table: Table,
        name: &str,
        hook: Hook,
        comment: &str,
    ) -> &mut Batch {
        self.push(table.message(NFT_MSG_NEWCHAIN).with(NLM_F_CREATE), |body| {
            base_chain(body, table, name, hook);
            body.comment(NFTA_CHAIN_USERDATA, comment);
        })
    }

    /// Adds a chain unless it exists.
    pub fn chain(&mut self, table: Table, name: &str) -> &mut Batch {
        self.push(table.message(NFT_MSG_NEWCHAIN).with(NLM_F_CREATE), |body| {
            chain_name(body, table, name);
        })
    }

    /// Removes a chain with its rules.
    pub fn delete_chain(&mut self, table: Table, name: &str) -> &mut Batch {
        self.push(table.message(NFT_MSG_DELCHAIN), |body| chain_name(body, table, name))
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, table: Table, name: &str) -> &mut Batch {
        self.push(table.message(NFT_MSG_DELRULE), |body| rule_chain(body, table, name))
    }

    /// Adds a rule at the end of a chain.
    pub fn rule(
        &mut self,
        table: Table,
        chain: &str,
        fill: impl FnOnce(&mut Expressions),
    ) -> &mut Batch {
        self.rule_of(table, chain, &Expressions::of(fill))
    }

    /// Adds a rule of these expressions at the end of a chain.
    pub fn rule_of(&mut self, table: Table, chain: &str, expressions: &Expressions) -> &mut Batch {
        self.push(table.message(NFT_MSG_NEWRULE).with(NLM_F_CREATE | NLM_F_APPEND), |body| {
            rule_chain(body, table, chain);
            body.nested(NFTA_RULE_EXPRESSIONS, expressions.bytes());
        })
    }

    /// Adds a rule to a chain of iptables, as the first or the last one. The kernel echoes it with
    /// its handle.
    pub fn xtables_rule(
        &mut self,
        table: Table,
        chain: &str,
        is_first: bool,
        fill: impl FnOnce(&mut Expressions),
    ) -> &mut Batch {
        let expressions = Expressions::of(fill);
        let flags = if is_first { NLM_F_CREATE } else { NLM_F_CREATE | NLM_F_APPEND };
        self.push(table.message(NFT_MSG_NEWRULE).with(flags | NLM_F_ECHO), |body| {
            rule_chain(body, table, chain);
            body.nested(NFTA_RULE_EXPRESSIONS, expressions.bytes());
            // The protocol that extensions of x_tables see: any.
            body.nest(NFTA_RULE_COMPAT, |compat| {
                compat.be32(NFTA_RULE_COMPAT_PROTO, 0).be32(NFTA_RULE_COMPAT_FLAGS, 0);
            });
        })
    }

    /// Removes one rule.
    pub fn delete_rule(&mut self, table: Table, chain: &str, handle: u64) -> &mut Batch {
        self.push(table.message(NFT_MSG_DELRULE), |body| {
            rule_chain(body, table, chain);
            body.be64(NFTA_RULE_HANDLE, handle);
        })
    }

    /// Adds a set or a map unless it exists.
    pub fn set(&mut self, table: Table, set: &Set) -> &mut Batch {
        self.sets += 1;
        let id = self.sets;
        self.push(table.message(NFT_MSG_NEWSET).with(NLM_F_CREATE), |body| {
            body.text(NFTA_SET_TABLE, table.name).text(NFTA_SET_NAME, set.name);
            let flags = if set.holds == Holds::Keys { 0 } else { NFT_SET_MAP };
            body.be32(NFTA_SET_FLAGS, flags);
            body.be32(NFTA_SET_KEY_TYPE, concatenation(set.key));
            // A single field is not padded: ether_addr has 6 bytes then.
            let length = if set.key == [KeyType::Ether] { 6 } else { length_of(set.key) };
            body.be32(NFTA_SET_KEY_LEN, length);
            let data = match set.holds {
                Holds::Keys => None,
                Holds::Verdicts => Some((NFT_DATA_VERDICT, 0)),
                Holds::Values(fields) => Some((concatenation(fields), length_of(fields))),
            };
            if let Some((kind, length)) = data {
                body.be32(NFTA_SET_DATA_TYPE, kind).be32(NFTA_SET_DATA_LEN, length);
            }
            body.be32(NFTA_SET_ID, id);
            if let [KeyType::IfName] = set.key {
                body.raw(NFTA_SET_USERDATA, &HOST_BYTE_ORDER);
            }
        })
    }

    /// Adds an element; fails if one with its key exists.
    pub fn element(&mut self, table: Table, element: &Element<'_>) -> &mut Batch {
        let header = table.message(NFT_MSG_NEWSETELEM).with(NLM_F_CREATE | NLM_F_EXCL);
        self.push(header, |body| element.write(body, table))
    }

    /// Adds an element that may exist already, because another process may have added it.
    pub fn shared_element(&mut self, table: Table, element: &Element<'_>) -> &mut Batch {
        let header = table.message(NFT_MSG_NEWSETELEM).with(NLM_F_CREATE);
        self.push(header, |body| element.write(body, table))
    }

    /// Removes an element.
    pub fn delete_element(&mut self, table: Table, set: &str, key: &[u8]) -> &mut Batch {
        self.push(table.message(NFT_MSG_DELSETELEM), |body| element_key(body, table, set, key))
    }

    /// Serializes the batch to be sent in one piece, with messages numbered from `first`. Only the
    /// last operation requests an acknowledgement: errors are sent anyway, and thousands of
    /// acknowledgements would overflow the socket.
    pub(super) fn serialize(&self, first: u32) -> Serialized {
        let mut body = Attributes::default();
        if let Some(generation) = self.generation {
            body.be32(NFNL_BATCH_GENID, generation);
        }
        let mut bytes = vec![];
        let header = Header::of_batch(NFNL_MSG_BATCH_BEGIN, NFNL_SUBSYS_NFTABLES);
        header.append(first, body.bytes(), &mut bytes);
        let last = first.wrapping_add(self.operations.len() as u32);
        for (operation, seq) in self.operations.iter().zip(first.wrapping_add(1)..) {
            let ack = if seq == last { NLM_F_ACK } else { 0 };
            operation.header.with(ack).append(seq, operation.body.bytes(), &mut bytes);
        }
        let end = bytes.len();
        let ends = Header::of_batch(NFNL_MSG_BATCH_END, NFNL_SUBSYS_NFTABLES);
        ends.append(last.wrapping_add(1), &[], &mut bytes);
        Serialized { bytes, last, end }
    }

    pub(super) fn bodies(&self, kind: u16) -> impl Iterator<Item = Attrs<'_>> {
        let of_kind =
            self.operations.iter().filter(move |operation| operation.header.kind() == kind);
        of_kind.map(|operation| Attrs::of(operation.body.bytes()))
    }

    /// The names of the chains that it adds, in order.
    pub(super) fn chains(&self) -> impl Iterator<Item = String> {
        self.bodies(NFT_MSG_NEWCHAIN).filter_map(|body| body.text(NFTA_CHAIN_NAME))
    }

    /// The rules that it adds to a chain, in order.
    pub(super) fn rules_of(&self, chain: &str) -> impl Iterator<Item = Attrs<'_>> {
        self.bodies(NFT_MSG_NEWRULE)
            .filter(move |body| body.is_text(NFTA_RULE_CHAIN, chain))
            .filter_map(|body| body.nested(NFTA_RULE_EXPRESSIONS))
    }

    /// Whether it removes a table.
    pub(super) fn removes_table(&self) -> bool {
        self.bodies(NFT_MSG_DELTABLE).next().is_some()
    }

    /// The use count of a chain as the kernel computes it: its rules, and those that lead to it.
    pub(super) fn uses_of(&self, chain: &str) -> u32 {
        let expressions = self.bodies(NFT_MSG_NEWRULE).flat_map(Attrs::expressions);
        let leads_to_it = |expression: &Attrs<'_>| {
            let immediate = expression.within(NFTA_EXPR_DATA).within(NFTA_IMMEDIATE_DATA);
            immediate.within(NFTA_DATA_VERDICT).is_text(NFTA_VERDICT_CHAIN, chain)
        };
        (self.rules_of(chain).count() + expressions.filter(leads_to_it).count()) as u32
    }

    /// Discards the operations but keeps the generation.
    pub(super) fn clear(&mut self) {
        self.operations.clear();
    }

    /// How many sequence numbers the batch needs.
    pub(super) fn messages(&self) -> u32 {
        self.operations.len() as u32 + 2
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

/// A batch in the form that the kernel receives.
pub(super) struct Serialized {
    pub bytes: Vec<u8>,
    /// The number of the operation that is acknowledged.
    pub last: u32,
    /// The offset of the message that makes the kernel commit the batch.
    end: usize,
}

impl Serialized {
    /// The batch without its end, which the kernel rolls back.
    pub fn without_end(mut self) -> Serialized {
        self.bytes.truncate(self.end);
        self
    }
}

/// Attributes that name one element by its key, as DELSETELEM and GETSETELEM take them.
pub(super) fn element_key(body: &mut Attributes, table: Table, set: &str, key: &[u8]) {
    one_element(body, table, set, |element| {
        element.value(NFTA_SET_ELEM_KEY, key);
    });
}

/// Attributes that name a set, for messages about its elements.
pub(super) fn set_name(body: &mut Attributes, table: Table, set: &str) {
    body.text(NFTA_SET_ELEM_LIST_TABLE, table.name).text(NFTA_SET_ELEM_LIST_SET, set);
}

/// Attributes of a base chain with policy accept.
fn base_chain(body: &mut Attributes, table: Table, name: &str, hook: Hook) {
    chain_name(body, table, name);
    body.text(NFTA_CHAIN_TYPE, hook.kind).be32(NFTA_CHAIN_POLICY, NF_ACCEPT as u32);
    body.nest(NFTA_CHAIN_HOOK, |attributes| {
        attributes.be32(NFTA_HOOK_HOOKNUM, hook.number);
        attributes.be32(NFTA_HOOK_PRIORITY, hook.priority as u32);
    });
}

/// Attributes that name a chain.
fn chain_name(body: &mut Attributes, table: Table, chain: &str) {
    body.text(NFTA_CHAIN_TABLE, table.name).text(NFTA_CHAIN_NAME, chain);
}

/// Attributes that name a chain, for messages about its rules.
pub(super) fn rule_chain(body: &mut Attributes, table: Table, chain: &str) {
    body.text(NFTA_RULE_TABLE, table.name).text(NFTA_RULE_CHAIN, chain);
}

fn one_element(body: &mut Attributes, table: Table, set: &str, fill: impl FnOnce(&mut Attributes)) {
    set_name(body, table, set);
    body.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
        list.nest(NFTA_LIST_ELEM, fill);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_a_chain_are_its_rules_and_those_that_lead_to_it() {
        let table = Table { family: NfFamily::Inet, name: "t" };
        let mut batch = Batch::default();
        batch.chain(table, "ports").chain(table, "input");
        for verdict in [Verdict::Goto("ports".into()), Verdict::Jump("ports".into()), Verdict::Drop]
        {
            batch.rule(table, "input", |rule| {
                rule.counter().verdict(&verdict);
            });
        }
        batch.rule(table, "ports", |rule| {
            rule.in_set("ports", 1, false).masquerade();
        });
        let uses: Vec<_> = batch.chains().map(|chain| (batch.uses_of(&chain), chain)).collect();
        assert_eq!(uses, [(3, "ports".to_owned()), (3, "input".to_owned())]);
    }
}
