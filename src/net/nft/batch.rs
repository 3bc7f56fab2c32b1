//! A transaction of nf_tables: all of it happens, or nothing.

use super::Family;
use super::expr::{Expressions, Verdict};
use super::wire::Attributes;
use crate::net::netlink::attr::Attrs;

/// nfgenmsg: family, version, resource id.
const NFGENMSG: usize = 4;
const NLM_F_REQUEST: u16 = 1;
pub(super) const NLM_F_ACK: u16 = 4;
const NLM_F_ECHO: u16 = 8;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

/// NFNL_SUBSYS_NFTABLES in the upper byte of a message's type.
pub(super) const SUBSYSTEM: u16 = 10 << 8;
/// NFNL_MSG_BATCH_BEGIN and END.
const BEGIN: u16 = 0x10;
const END: u16 = 0x11;

// enum nf_tables_msg_types
const NEWTABLE: u16 = 0;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const DELCHAIN: u16 = 5;
const NEWRULE: u16 = 6;
const DELRULE: u16 = 8;
const NEWSET: u16 = 9;
const NEWSETELEM: u16 = 12;
const DELSETELEM: u16 = 14;

/// NFT_SET_MAP.
const SET_MAP: u32 = 8;
/// The data type of verdict maps.
const DATA_VERDICT: u32 = 0xffff_ff00;

/// User data that tells nft(8) how to read keys of one `ifname`: NFTNL_UDATA_SET_KEYBYTEORDER, four
/// bytes, 1.
const HOST_BYTE_ORDER: [u8; 6] = {
    let order = 1_u32.to_ne_bytes();
    [0, 4, order[0], order[1], order[2], order[3]]
};

/// A table's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The family it sees packets of.
    pub family: Family,
    /// Its name.
    pub name: &'static str,
}

/// Where a base chain hooks in.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// `nat` or `filter`.
    pub kind: &'static str,
    /// NF_INET_* or NF_BR_*: 0 prerouting, 4 postrouting.
    pub number: u32,
    /// Lower comes first.
    pub priority: i32,
}

/// The types of nft(8) that a set's keys are listed as; a number each.
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
    /// The bytes that a key takes in a register: fields are padded to whole words.
    fn length(self) -> u32 {
        match self {
            KeyType::Ipv4 | KeyType::Protocol | KeyType::Service | KeyType::Mark => 4,
            KeyType::Ether => 8,
            KeyType::Ipv6 | KeyType::IfName => 16,
        }
    }
}

/// What the elements of a set have besides their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing: it is a set.
    Keys,
    /// A verdict each: it is a verdict map.
    Verdicts,
    /// A value each, of these fields: it is a map.
    Values(&'static [KeyType]),
}

/// A set or a map.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// Its name.
    pub name: &'static str,
    /// The fields of its keys.
    pub key: &'static [KeyType],
    /// What else its elements have.
    pub holds: Holds,
}

impl Set {
    fn key_length(&self) -> u32 {
        // One field alone is not padded: ether_addr has 6 bytes then.
        match self.key {
            [KeyType::Ether] => 6,
            fields => fields.iter().map(|field| field.length()).sum(),
        }
    }
}

/// How nft(8) writes down a concatenation of types: six bits each.
fn concatenation(fields: &[KeyType]) -> u32 {
    fields.iter().fold(0, |types, field| types << 6 | *field as u32)
}

/// What an element has besides its key.
#[derive(Clone, Copy, Debug)]
pub enum Holding<'a> {
    /// Nothing.
    Key,
    /// What becomes of a packet.
    Verdict(&'a Verdict),
    /// The fields of a map's value, each padded to whole words.
    Value(&'a [u8]),
}

#[derive(Debug)]
struct Operation {
    kind: u16,
    flags: u16,
    family: Family,
    body: Attributes,
}

/// Operations to be done together.
#[derive(Debug, Default)]
pub struct Batch {
    operations: Vec<Operation>,
    generation: Option<u32>,
    sets: u32,
}

impl Batch {
    /// A batch that only happens while the rules are those of this generation.
    pub fn of_generation(generation: u32) -> Batch {
        Batch { generation: Some(generation), ..Batch::default() }
    }

    fn push(
        &mut self,
        kind: u16,
        flags: u16,
        family: Family,
        fill: impl FnOnce(&mut Attributes),
    ) -> &mut Batch {
        let mut body = Attributes::default();
        fill(&mut body);
        self.operations.push(Operation { kind, flags, family, body });
        self
    }

    /// Adds a table unless it is there. One that somebody has switched off works again.
    pub fn table(&mut self, table: Table, comment: &str) -> &mut Batch {
        self.push(NEWTABLE, NLM_F_CREATE, table.family, |body| {
            body.text(1, table.name).be32(2, 0).comment(6, comment);
        })
    }

    /// Removes a table with all that is in it.
    pub fn delete_table(&mut self, table: Table) -> &mut Batch {
        self.push(DELTABLE, 0, table.family, |body| {
            body.text(1, table.name);
        })
    }

    /// Adds a chain that packets enter by themselves, unless it is there; what no rule decides is
    /// accepted.
    pub fn base_chain(&mut self, table: Table, name: &str, hook: Hook) -> &mut Batch {
        self.push(NEWCHAIN, NLM_F_CREATE, table.family, |body| {
            body.text(1, table.name).text(3, name).text(7, hook.kind).be32(5, 1).nest(
                4,
                |attributes| {
                    attributes.be32(1, hook.number).be32(2, hook.priority as u32);
                },
            );
        })
    }

    /// Adds a chain unless it is there.
    pub fn chain(&mut self, table: Table, name: &str) -> &mut Batch {
        self.push(NEWCHAIN, NLM_F_CREATE, table.family, |body| {
            body.text(1, table.name).text(3, name);
        })
    }

    /// Removes a chain with its rules.
    pub fn delete_chain(&mut self, table: Table, name: &str) -> &mut Batch {
        self.push(DELCHAIN, 0, table.family, |body| {
            body.text(1, table.name).text(3, name);
        })
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, table: Table, name: &str) -> &mut Batch {
        self.push(DELRULE, 0, table.family, |body| {
            body.text(1, table.name).text(2, name);
        })
    }

    /// Adds a rule at the end of a chain.
    pub fn rule(
        &mut self,
        table: Table,
        chain: &str,
        fill: impl FnOnce(&mut Expressions),
    ) -> &mut Batch {
        let mut expressions = Expressions::default();
        fill(&mut expressions);
        self.rule_of(table, chain, &expressions)
    }

    /// Adds a rule that is written already at the end of a chain.
    pub fn rule_of(&mut self, table: Table, chain: &str, expressions: &Expressions) -> &mut Batch {
        self.push(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, table.family, |body| {
            body.text(1, table.name).text(2, chain).raw(4 | 0x8000, expressions.bytes());
        })
    }

    /// Adds a rule to a chain of iptables, as its first or its last one. The kernel tells it back,
    /// with its handle.
    pub fn xtables_rule(
        &mut self,
        table: Table,
        chain: &str,
        is_first: bool,
        fill: impl FnOnce(&mut Expressions),
    ) -> &mut Batch {
        let mut expressions = Expressions::default();
        fill(&mut expressions);
        let flags = if is_first { NLM_F_CREATE } else { NLM_F_CREATE | NLM_F_APPEND };
        self.push(NEWRULE, flags | NLM_F_ECHO, table.family, |body| {
            body.text(1, table.name).text(2, chain).raw(4 | 0x8000, expressions.bytes());
            // What the extensions of x_tables are told of the rule's own protocol: any.
            body.nest(5, |compat| {
                compat.be32(1, 0).be32(2, 0);
            });
        })
    }

    /// Removes one rule.
    pub fn delete_rule(&mut self, table: Table, chain: &str, handle: u64) -> &mut Batch {
        self.push(DELRULE, 0, table.family, |body| {
            body.text(1, table.name).text(2, chain).be64(3, handle);
        })
    }

    /// Adds a set or a map unless it is there.
    pub fn set(&mut self, table: Table, set: &Set) -> &mut Batch {
        self.sets += 1;
        let id = self.sets;
        self.push(NEWSET, NLM_F_CREATE, table.family, |body| {
            let flags = if set.holds == Holds::Keys { 0 } else { SET_MAP };
            body.text(1, table.name).text(2, set.name).be32(3, flags);
            body.be32(4, concatenation(set.key)).be32(5, set.key_length());
            match set.holds {
                Holds::Keys => (),
                Holds::Verdicts => {
                    body.be32(6, DATA_VERDICT).be32(7, 0);
                }
                Holds::Values(fields) => {
                    let length = fields.iter().map(|field| field.length()).sum();
                    body.be32(6, concatenation(fields)).be32(7, length);
                }
            }
            body.be32(10, id);
            if let [KeyType::IfName] = set.key {
                body.raw(13, &HOST_BYTE_ORDER);
            }
        })
    }

    /// Adds an element; one with its key must not be there.
    pub fn element(
        &mut self,
        table: Table,
        set: &str,
        key: &[u8],
        holding: Holding<'_>,
        comment: &str,
    ) -> &mut Batch {
        self.push(NEWSETELEM, NLM_F_CREATE | NLM_F_EXCL, table.family, |body| {
            one_element(body, table, set, |element| {
                element.nest(1, |data| {
                    data.raw(1, key);
                });
                match holding {
                    Holding::Key => (),
                    Holding::Verdict(verdict) => {
                        element.nest(2, |data| verdict.write(data));
                    }
                    Holding::Value(value) => {
                        element.nest(2, |data| {
                            data.raw(1, value);
                        });
                    }
                }
                element.comment(6, comment);
            });
        })
    }

    /// Adds an element that may be there already, as somebody else may have added it.
    pub fn shared_element(
        &mut self,
        table: Table,
        set: &str,
        key: &[u8],
        comment: &str,
    ) -> &mut Batch {
        self.push(NEWSETELEM, NLM_F_CREATE, table.family, |body| {
            one_element(body, table, set, |element| {
                element.nest(1, |data| {
                    data.raw(1, key);
                });
                element.comment(6, comment);
            });
        })
    }

    /// Removes an element.
    pub fn delete_element(&mut self, table: Table, set: &str, key: &[u8]) -> &mut Batch {
        self.push(DELSETELEM, 0, table.family, |body| element_key(body, table, set, key))
    }

    /// The bytes to be sent in one piece; the messages are numbered from `first`. The last
    /// operation alone asks for an acknowledgement: errors come anyway, and thousands of
    /// acknowledgements would overflow the socket.
    pub(super) fn serialize(&self, first: u32) -> Serialized {
        let mut begin = Attributes::default();
        if let Some(generation) = self.generation {
            begin.be32(1, generation);
        }
        let mut bytes = vec![];
        message(&mut bytes, BEGIN, 0, first, Family::Unspec, 10, begin.bytes());
        let last = first.wrapping_add(self.operations.len() as u32);
        for (operation, seq) in self.operations.iter().zip(first.wrapping_add(1)..) {
            let ack = if seq == last { NLM_F_ACK } else { 0 };
            message(
                &mut bytes,
                SUBSYSTEM | operation.kind,
                operation.flags | ack,
                seq,
                operation.family,
                0,
                operation.body.bytes(),
            );
        }
        let end = bytes.len();
        message(&mut bytes, END, 0, last.wrapping_add(1), Family::Unspec, 10, &[]);
        Serialized { bytes, last, end }
    }

    /// The rules that it adds to a chain, in their order.
    pub(super) fn rules_of(&self, chain: &str) -> impl Iterator<Item = Attrs<'_>> {
        let bodies = self.operations.iter().filter(|operation| operation.kind == NEWRULE);
        let bodies = bodies.map(|operation| Attrs::of(operation.body.bytes()));
        bodies
            .filter(move |body| body.text(2).as_deref() == Some(chain))
            .filter_map(|body| body.nested(4))
    }

    /// How many sequence numbers the batch takes.
    pub(super) fn messages(&self) -> u32 {
        self.operations.len() as u32 + 2
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

/// A batch as the kernel takes it.
pub(super) struct Serialized {
    pub bytes: Vec<u8>,
    /// The number of the operation that is acknowledged.
    pub last: u32,
    /// Where the message begins that makes the kernel keep what it did.
    end: usize,
}

impl Serialized {
    /// What the kernel takes back again.
    pub fn without_end(mut self) -> Serialized {
        self.bytes.truncate(self.end);
        self
    }
}

/// Attributes that name one element by its key, as DELSETELEM and GETSETELEM take them.
pub(super) fn element_key(body: &mut Attributes, table: Table, set: &str, key: &[u8]) {
    one_element(body, table, set, |element| {
        element.nest(1, |data| {
            data.raw(1, key);
        });
    });
}

fn one_element(body: &mut Attributes, table: Table, set: &str, fill: impl FnOnce(&mut Attributes)) {
    body.text(1, table.name).text(2, set).nest(3, |list| {
        list.nest(1, fill);
    });
}

/// Appends one netlink message.
pub(in crate::net) fn message(
    bytes: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    seq: u32,
    family: Family,
    resource: u16,
    body: &[u8],
) {
    let length = 16 + NFGENMSG + body.len();
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    bytes.extend(seq.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family as u8, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(body);
}
