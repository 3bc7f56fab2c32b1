//! nf_tables over netlink: what `nft` does, without `nft`. All or nothing by batch; lookups by key,
//! never whole tables.

pub mod batch;
pub mod expr;
mod meaning;
pub mod owned;
pub mod wire;
pub mod xtables;

use std::fmt;
use std::os::fd::OwnedFd;

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

use self::batch::{Batch, NLM_F_ACK, SUBSYSTEM, Serialized, Table, element_key, message};
use self::wire::{Attributes, read_comment};
use crate::error::{Code, Error, Result};
use crate::net::netlink::attr::Attrs;
use crate::net::netlink::refused;
use crate::net::netlink::transport::{Message, Transport};

/// nfgenmsg.
const HEADER: usize = 4;
const NLM_F_DUMP: u16 = 0x300;
/// NFT_NAME_MAXLEN, with the NUL.
const NAME_MAX: usize = 256;

// enum nf_tables_msg_types
const GETTABLE: u16 = 1;
const GETCHAIN: u16 = 4;
const GETRULE: u16 = 7;
const GETSETELEM: u16 = 13;
const GETGEN: u16 = 16;

/// NF_DROP.
const DROP: u32 = 0;
/// NFT_TABLE_F_DORMANT.
const DORMANT: u32 = 1;

/// How often a dump is begun again that another transaction interrupted.
const DUMP_TRIES: usize = 20;

impl fmt::Display for Family {
    /// As nft(8) has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Unspec => "unspec",
            Family::Inet => "inet",
            Family::Ip => "ip",
            Family::Bridge => "bridge",
            Family::Ip6 => "ip6",
        })
    }
}

/// The packets that a table sees (NFPROTO_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// For messages that are about no table.
    Unspec = 0,
    /// IPv4 and IPv6.
    Inet = 1,
    /// IPv4.
    Ip = 2,
    /// Frames that a bridge forwards.
    Bridge = 7,
    /// IPv6.
    Ip6 = 10,
}

/// A chain as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainInfo {
    /// Its rules and the references to it, counted together.
    pub uses: u32,
    /// Whether packets enter by it and it drops what no rule of its decides.
    pub is_dropping: bool,
}

/// A rule as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    /// What it is removed by.
    pub handle: u64,
    /// Its comment, perhaps empty.
    pub comment: String,
    /// What it compares something of a packet with, one after the other.
    pub compared: Vec<Vec<u8>>,
    /// Its expressions, as the kernel lists them.
    expressions: Vec<u8>,
}

impl RuleInfo {
    /// Whether it does what these expressions say.
    pub fn does(&self, expressions: Attrs<'_>) -> bool {
        meaning::is_same(expressions, Attrs::of(&self.expressions))
    }

    /// Whether it does at least that, as a rule does that nft(8) has listed and loaded again.
    pub fn does_as_listed(&self, expressions: Attrs<'_>) -> bool {
        self.does(expressions)
            || meaning::is_same_as_listed(expressions, Attrs::of(&self.expressions))
    }

    /// Whether it does that to packets of one family, and no others get to it.
    pub fn does_within_family(&self, expressions: Attrs<'_>) -> bool {
        meaning::is_same_within_family(expressions, Attrs::of(&self.expressions))
    }
}

/// An element as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementInfo {
    /// Its key.
    pub key: Vec<u8>,
    /// The chain that its verdict names.
    pub chain: Option<String>,
    /// Its value, in a map; empty elsewhere.
    pub value: Vec<u8>,
    /// Its comment, perhaps empty.
    pub comment: String,
}

impl ElementInfo {
    fn read(attrs: Attrs<'_>) -> Option<ElementInfo> {
        let data = attrs.nested(2);
        let verdict = data.and_then(|data| data.nested(2));
        Some(ElementInfo {
            value: data.and_then(|data| data.bytes(1)).unwrap_or_default().to_vec(),
            key: attrs.nested(1)?.bytes(1)?.to_vec(),
            chain: verdict.and_then(|verdict| verdict.text(2)),
            comment: attrs.bytes(6).and_then(read_comment).unwrap_or_default(),
        })
    }
}

/// A socket to nf_tables of one namespace, the one it was opened in.
pub struct Nft {
    transport: Transport,
}

impl Nft {
    /// Opens a socket in the namespace of this thread.
    pub fn open() -> Result<Nft> {
        let transport = Transport::open(NETLINK_NETFILTER)
            .map_err(|e| Error::kernel("open a netfilter socket", e))?;
        Ok(Nft { transport })
    }

    /// Asks somebody else than the kernel, see [`Transport::over`].
    pub fn over(socket: OwnedFd) -> Nft {
        Nft { transport: Transport::over(socket) }
    }

    /// The number of the rule set, which every transaction changes; fails where the kernel has no
    /// nf_tables.
    pub fn generation(&self) -> Result<u32> {
        let what = "read the generation of nf_tables";
        let found = self.get(GETGEN, Family::Unspec, what, |_| (), |attrs| attrs.be32(1))?;
        found.ok_or_else(|| Error::kernel(what, Errno::EBADMSG))
    }

    /// Does all of a batch or nothing; `what` names it in the error.
    pub fn commit(&self, batch: &Batch, what: impl fmt::Display) -> Result<()> {
        self.commit_with(batch, what, |_| ())
    }

    /// Whether the kernel would do a batch. One that has no end it looks at and takes back, as for
    /// `nft --check`: nothing changes, and who watches the ruleset is told nothing.
    pub fn rehearse(&self, batch: &Batch, what: impl fmt::Display) -> Result<()> {
        self.send_batch(batch, Serialized::without_end, what, |_| ())
    }

    /// The same as [`Nft::commit`]; what the kernel tells back goes to `each`.
    fn commit_with(
        &self,
        batch: &Batch,
        what: impl fmt::Display,
        each: impl FnMut(Message<'_>),
    ) -> Result<()> {
        self.send_batch(batch, |serialized| serialized, what, each)
    }

    fn send_batch(
        &self,
        batch: &Batch,
        as_sent: impl FnOnce(Serialized) -> Serialized,
        what: impl fmt::Display,
        each: impl FnMut(Message<'_>),
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let first = self.transport.next_seqs(batch.messages());
        let serialized = as_sent(batch.serialize(first));
        self.transport.send(&serialized.bytes).map_err(|e| Error::kernel(&what, e))?;
        let numbers = first..first.wrapping_add(batch.messages());
        self.transport
            .batch_acknowledged(numbers, serialized.last, each)
            .map_err(|refusal| refused(&what, refusal))
    }

    /// Whether there is such a table.
    pub fn has_table(&self, table: Table) -> Result<bool> {
        Ok(self.table_flags(table)?.is_some())
    }

    /// Whether there is such a table, and nobody has switched it off (NFT_TABLE_F_DORMANT).
    pub fn is_in_force(&self, table: Table) -> Result<bool> {
        Ok(self.table_flags(table)?.is_some_and(|flags| flags & DORMANT == 0))
    }

    fn table_flags(&self, table: Table) -> Result<Option<u32>> {
        let what = format_args!("find table {:?}", table.name);
        let name = |body: &mut Attributes| {
            body.text(1, table.name);
        };
        self.get(GETTABLE, table.family, what, name, |attrs| {
            Some(attrs.be32(2).unwrap_or_default())
        })
    }

    /// The chain of this name, if there is one. A longer name than the kernel takes is none's.
    pub fn chain(&self, family: Family, table: &str, chain: &str) -> Result<Option<ChainInfo>> {
        if chain.len() >= NAME_MAX {
            return Ok(None);
        }
        let what = format_args!("find chain {chain:?} of table {table:?}");
        let name = |body: &mut Attributes| {
            body.text(1, table).text(3, chain);
        };
        let read = |attrs: Attrs<'_>| {
            Some(ChainInfo {
                uses: attrs.be32(6).unwrap_or_default(),
                is_dropping: attrs.be32(5) == Some(DROP),
            })
        };
        self.get(GETCHAIN, family, what, name, read)
    }

    /// The chains of a family, each with its table, that packets enter by a hook (NF_INET_*) and
    /// that drop what no rule of theirs decides.
    pub fn dropping_chains(&self, family: Family, hook: u32) -> Result<Vec<(String, String)>> {
        let read = |attrs: Attrs<'_>| {
            let is_dropping = attrs.nested(4)?.be32(1)? == hook && attrs.be32(5)? == DROP;
            is_dropping.then_some((attrs.text(1)?, attrs.text(3)?))
        };
        self.dump(GETCHAIN, family, "list chains", |_| (), |attrs, list| list.extend(read(attrs)))
    }

    /// The element with this key, if there is one.
    pub fn element(&self, table: Table, set: &str, key: &[u8]) -> Result<Option<ElementInfo>> {
        let what = format_args!("find an element of set {set:?} of table {:?}", table.name);
        let name = |body: &mut Attributes| element_key(body, table, set, key);
        self.get(GETSETELEM, table.family, what, name, |attrs| elements_of(attrs).next())
    }

    /// All elements of a set; none where it is not there.
    pub fn elements(&self, table: Table, set: &str) -> Result<Vec<ElementInfo>> {
        let what = format_args!("list set {set:?} of table {:?}", table.name);
        let name = |body: &mut Attributes| {
            body.text(1, table.name).text(2, set);
        };
        self.dump(GETSETELEM, table.family, what, name, |attrs, list| {
            list.extend(elements_of(attrs))
        })
    }

    /// Whether the set has an element that `other` accepts, looking no further than it must: a dump
    /// that is not read to its end costs no more than its first page.
    pub fn has_element(
        &self,
        table: Table,
        set: &str,
        other: impl Fn(&ElementInfo) -> bool,
    ) -> Result<bool> {
        // The rest of the dump stays in the socket, so it gets one of its own.
        let page = Nft::open()?;
        let what = format_args!("look into set {set:?} of table {:?}", table.name);
        let mut body = Attributes::default();
        body.text(1, table.name).text(2, set);
        let seq = page
            .send(GETSETELEM, NLM_F_DUMP, table.family, &body)
            .map_err(|e| Error::kernel(what, e))?;
        let mut found = false;
        let looked = page.transport.dump_until(seq, |reply| {
            found |=
                elements_of(Attrs::after(reply.payload, HEADER)).any(|element| other(&element));
            found
        });
        match looked {
            Ok(()) => Ok(found),
            Err(refusal) if refusal.errno == Errno::ENOENT => Ok(false),
            Err(refusal) => Err(refused(what, refusal)),
        }
    }

    /// The rules of a chain; none where it is not there.
    pub fn rules(&self, family: Family, table: &str, chain: &str) -> Result<Vec<RuleInfo>> {
        let what = format_args!("list chain {chain:?} of table {table:?}");
        let name = |body: &mut Attributes| {
            body.text(1, table).text(2, chain);
        };
        let rule = |attrs: Attrs<'_>| {
            let handle = u64::from_be_bytes(attrs.bytes(3)?.try_into().ok()?);
            let comment = attrs.bytes(7).and_then(read_comment).unwrap_or_default();
            // Kernels that do not filter send the rules of every chain.
            let expressions = attrs.bytes(4).unwrap_or_default().to_vec();
            let info = RuleInfo { handle, comment, compared: compared(attrs), expressions };
            (attrs.text(2).as_deref() == Some(chain)).then_some(info)
        };
        self.dump(GETRULE, family, what, name, |attrs, list| list.extend(rule(attrs)))
    }

    /// Asks for one object; None where the kernel says that there is none.
    fn get<T>(
        &self,
        kind: u16,
        family: Family,
        what: impl fmt::Display,
        name: impl FnOnce(&mut Attributes),
        read: impl Fn(Attrs<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut body = Attributes::default();
        name(&mut body);
        let seq = self.send(kind, 0, family, &body).map_err(|e| Error::kernel(&what, e))?;
        let mut found = None;
        match self.transport.one(seq, |reply| found = read(Attrs::after(reply.payload, HEADER))) {
            Ok(()) => Ok(found),
            Err(refusal) if refusal.errno == Errno::ENOENT => Ok(None),
            Err(refusal) => Err(refused(&what, refusal)),
        }
    }

    /// Reads a list that is consistent.
    fn dump<T>(
        &self,
        kind: u16,
        family: Family,
        what: impl fmt::Display,
        name: impl FnOnce(&mut Attributes),
        read: impl Fn(Attrs<'_>, &mut Vec<T>),
    ) -> Result<Vec<T>> {
        let mut body = Attributes::default();
        name(&mut body);
        for _ in 0..DUMP_TRIES {
            let seq =
                self.send(kind, NLM_F_DUMP, family, &body).map_err(|e| Error::kernel(&what, e))?;
            let mut list = vec![];
            let each = |reply: Message<'_>| read(Attrs::after(reply.payload, HEADER), &mut list);
            match self.transport.dump(seq, each) {
                Ok(true) => return Ok(list),
                Ok(false) => (),
                Err(refusal) if refusal.errno == Errno::ENOENT => return Ok(vec![]),
                Err(refusal) => return Err(refused(&what, refusal)),
            }
        }
        Err(Error::system(Code::TRY_AGAIN, &what, Errno::EINTR as i32)
            .with_details(format_args!("it changed during each of {DUMP_TRIES} tries")))
    }

    fn send(&self, kind: u16, flags: u16, family: Family, body: &Attributes) -> Result<u32, Errno> {
        let seq = self.transport.next_seq();
        let mut bytes = vec![];
        message(&mut bytes, SUBSYSTEM | kind, flags & !NLM_F_ACK, seq, family, 0, body.bytes());
        self.transport.send(&bytes)?;
        Ok(seq)
    }
}

/// The values in the `cmp` expressions of a rule.
fn compared(rule: Attrs<'_>) -> Vec<Vec<u8>> {
    let value = |expression: Attrs<'_>| {
        let is_cmp = expression.text(1).as_deref() == Some("cmp");
        expression.nested(2)?.nested(3)?.bytes(1).filter(|_| is_cmp).map(<[u8]>::to_vec)
    };
    let expressions = rule.nested(4).into_iter().flat_map(Attrs::iter);
    expressions.filter_map(|(_, expression)| value(Attrs::of(expression))).collect()
}

fn elements_of(attrs: Attrs<'_>) -> impl Iterator<Item = ElementInfo> {
    attrs
        .nested(3)
        .into_iter()
        .flat_map(Attrs::iter)
        .filter_map(|(_, element)| ElementInfo::read(Attrs::of(element)))
}
