//! Rules in the tables of iptables-nft, `ip filter` and `ip6 filter`, written and read over netlink
//! in iptables' own form: `iptables -S` lists them, `iptables -D` removes them.

use std::fmt;

use super::batch::{Batch, Table, rule_chain};
use super::expr::{Expressions, Header, Verdict};
use super::socket::{Nft, Query};
use super::uapi::*;
use super::wire::{Attributes, octets, read_comment};
use crate::error::Result;
use crate::family::Family;
use crate::net::filter_rule::{Connections, FilterRule, Target};
use crate::net::netlink::attr::{Attrs, read_u16};
use crate::net::nfnetlink;

/// The size of `struct xt_comment_info`.
const COMMENT_INFO: usize = 256;
/// The size of `struct xt_conntrack_mtinfo3`, and the offsets of the fields that we set.
const CONNTRACK_INFO: usize = 168;
const MATCH_FLAGS: usize = 146;
const STATE_MASK: usize = 150;
/// XT_CONNTRACK_STATE.
const BY_STATE: u16 = 1;
/// ESTABLISHED and RELATED as XT_CONNTRACK_STATE_BIT has them.
const REPLIES: u16 = 0b110;
/// XT_CONNTRACK_STATE_DNAT.
const PUBLISHED: u16 = 1 << 7;
/// IPS_DST_NAT.
const DST_NAT: u32 = 1 << 5;

/// A rule as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listed {
    /// The handle that it is removed by.
    pub handle: u64,
    /// Its content; None if it has more than our rules do.
    pub rule: Option<FilterRule>,
}

/// The table `filter` of one address family.
pub fn filter_table(family: Family) -> Table {
    Table { family: family.into(), name: "filter" }
}

impl Nft {
    /// Applies a batch as a whole or not at all. Returns the handles of the rules that it adds to
    /// chains of iptables, in order.
    pub fn commit_rules(&self, batch: &Batch, what: impl fmt::Display) -> Result<Vec<u64>> {
        let mut handles = vec![];
        self.commit_with(batch, what, |echo| {
            let attrs = Attrs::after(echo.payload, nfnetlink::HEADER);
            handles.extend(attrs.be64(NFTA_RULE_HANDLE));
        })?;
        Ok(handles)
    }

    /// The rule of an iptables chain that has this handle, if it exists.
    pub fn filter_rule(&self, table: Table, chain: &str, handle: u64) -> Result<Option<Listed>> {
        let what = format_args!("find rule {handle} of chain {chain:?} of table {:?}", table.name);
        let name = |body: &mut Attributes| {
            rule_chain(body, table, chain);
            body.be64(NFTA_RULE_HANDLE, handle);
        };
        self.get(&Query::new(NFT_MSG_GETRULE, table.family, what, name), |attrs| {
            Some(Listed { handle, rule: read_rule(attrs) })
        })
    }

    /// Whether an iptables chain has the rule. It reads no further than necessary: a rule at the
    /// top of a long chain is found in the first page of a dump.
    pub fn has_filter_rule(&self, table: Table, chain: &str, rule: &FilterRule) -> Result<bool> {
        let what = format_args!("look into chain {chain:?} of table {:?}", table.name);
        self.dump_has(&of_chain(table, chain, what), |attrs| {
            is_in(attrs, table, chain) && read_rule(attrs).is_some_and(|found| found.does(rule))
        })
    }

    /// The rules of an iptables chain; empty if the chain does not exist.
    pub fn filter_rules(&self, table: Table, chain: &str) -> Result<Vec<Listed>> {
        let what = format_args!("list chain {chain:?} of table {:?}", table.name);
        self.dump(&of_chain(table, chain, what), |attrs, list| {
            if is_in(attrs, table, chain) {
                let handle = attrs.be64(NFTA_RULE_HANDLE);
                list.extend(handle.map(|handle| Listed { handle, rule: read_rule(attrs) }));
            }
        })
    }
}

/// The query for the rules of a chain.
fn of_chain<'a>(table: Table, chain: &str, what: fmt::Arguments<'a>) -> Query<'a> {
    Query::new(NFT_MSG_GETRULE, table.family, what, |body| rule_chain(body, table, chain))
}

/// Whether a rule is in this chain: kernels that do not filter send the rules of every chain.
fn is_in(attrs: Attrs<'_>, table: Table, chain: &str) -> bool {
    attrs.is_text(NFTA_RULE_TABLE, table.name) && attrs.is_text(NFTA_RULE_CHAIN, chain)
}

/// Adds a rule to a chain, as the first or the last one.
pub fn add_rule(batch: &mut Batch, table: Table, chain: &str, is_first: bool, rule: &FilterRule) {
    batch.xtables_rule(table, chain, is_first, |expressions| write_rule(expressions, rule));
}

/// Writes a rule in the order of iptables: addresses, extensions, the counter, the target.
fn write_rule(expressions: &mut Expressions, rule: &FilterRule) {
    for (address, offsets) in [(rule.source, SOURCE), (rule.destination, DESTINATION)] {
        if let Some(address) = address {
            let bytes = octets(address);
            let offset = offsets[Family::of(address) as usize];
            let field = expressions.payload(Header::Network, offset, bytes.len() as u32, 1);
            field.equal(1, &bytes);
        }
    }
    if let Some(comment) = &rule.comment {
        let mut info = comment.as_bytes().to_vec();
        info.resize(COMMENT_INFO, 0);
        expressions.xtables_match("comment", 0, &info);
    }
    let mask = match rule.connections {
        Connections::Any => None,
        Connections::Replied => Some(REPLIES),
        Connections::Published => Some(PUBLISHED),
    };
    if let Some(mask) = mask {
        expressions.xtables_match("conntrack", 3, &state(mask));
    }
    expressions.counter().verdict(&Verdict::from(&rule.target));
}

/// `struct xt_conntrack_mtinfo3` with states.
fn state(mask: u16) -> [u8; CONNTRACK_INFO] {
    let mut info = [0; CONNTRACK_INFO];
    info[MATCH_FLAGS..MATCH_FLAGS + 2].copy_from_slice(&BY_STATE.to_ne_bytes());
    info[STATE_MASK..STATE_MASK + 2].copy_from_slice(&mask.to_ne_bytes());
    info
}

impl From<&Target> for Verdict {
    fn from(target: &Target) -> Verdict {
        match target {
            Target::Accept => Verdict::Accept,
            Target::Chain(chain) => Verdict::Jump(chain.clone()),
        }
    }
}

/// The offsets of the source address in the headers of IPv4 and IPv6.
const SOURCE: [u32; 2] = [12, 8];
/// The offsets of the destination address.
const DESTINATION: [u32; 2] = [16, 24];

/// Reads a rule from a message of the kernel; None if it has more than our rules do.
fn read_rule(attrs: Attrs<'_>) -> Option<FilterRule> {
    let mut rule = FilterRule::to(Target::Accept);
    // Some versions of iptables store the comment as user data of the rule.
    rule.comment = attrs.bytes(NFTA_RULE_USERDATA).and_then(read_comment);
    let mut target = None;
    let mut loaded = None; // the header and the offset of the field that was loaded last
    let mut expressions = attrs.expressions();
    while let Some(expression) = expressions.next() {
        let of = expression.within(NFTA_EXPR_DATA);
        match expression.text(NFTA_EXPR_NAME)?.as_str() {
            "ct" => {
                let state = [expressions.next()?, expressions.next()?];
                rule.connections = read_state(of, state)?;
            }
            "payload" => {
                loaded = Some((of.be32(NFTA_PAYLOAD_BASE)?, of.be32(NFTA_PAYLOAD_OFFSET)?));
            }
            "cmp" => read_address(&mut rule, loaded.take()?, of)?,
            "match" => match (of.text(NFTA_MATCH_NAME)?.as_str(), of.be32(NFTA_MATCH_REV)?) {
                ("comment", _) => rule.comment = of.text(NFTA_MATCH_INFO),
                ("conntrack", 3) => rule.connections = connections_of(of.bytes(NFTA_MATCH_INFO)?)?,
                _ => return None,
            },
            "counter" => (),
            "immediate" => {
                let verdict = of.nested(NFTA_IMMEDIATE_DATA)?.nested(NFTA_DATA_VERDICT)?;
                target = Some(match verdict.be32(NFTA_VERDICT_CODE)? as i32 {
                    NF_ACCEPT => Target::Accept,
                    NFT_JUMP => Target::Chain(verdict.text(NFTA_VERDICT_CHAIN)?),
                    _ => return None,
                });
            }
            _ => return None,
        }
    }
    Some(FilterRule { target: target?, ..rule })
}

fn read_address(rule: &mut FilterRule, (header, offset): (u32, u32), cmp: Attrs<'_>) -> Option<()> {
    let address = cmp.nested(NFTA_CMP_DATA)?.ip(NFTA_DATA_VALUE)?;
    if header != Header::Network as u32 || cmp.be32(NFTA_CMP_OP)? != NFT_CMP_EQ {
        return None;
    }
    let family = Family::of(address) as usize;
    let field = match offset {
        offset if offset == SOURCE[family] => &mut rule.source,
        offset if offset == DESTINATION[family] => &mut rule.destination,
        _ => return None,
    };
    field.replace(address).is_none().then_some(())
}

/// The connections that a conntrack match with states, and no other condition, is for.
fn connections_of(info: &[u8]) -> Option<Connections> {
    let mask = read_u16(info, STATE_MASK)?;
    if info != state(mask) {
        return None;
    }
    match mask {
        REPLIES => Some(Connections::Replied),
        PUBLISHED => Some(Connections::Published),
        _ => None,
    }
}

/// Reads the form that nft(8) gives the conntrack match when it loads its own listing: `ct state
/// established,related`, or `ct status dnat`.
fn read_state(load: Attrs<'_>, [bitwise, cmp]: [Attrs<'_>; 2]) -> Option<Connections> {
    let bitwise = bitwise.expression("bitwise")?;
    let mask = u32::from_ne_bytes(bitwise.value(NFTA_BITWISE_MASK)?.try_into().ok()?);
    let cmp = cmp.expression("cmp")?;
    let is_not_zero = cmp.be32(NFTA_CMP_OP)? == NFT_CMP_NEQ && cmp.value(NFTA_CMP_DATA)? == [0; 4];
    if bitwise.value(NFTA_BITWISE_XOR)? != [0; 4] || !is_not_zero {
        return None;
    }
    match (load.be32(NFTA_CT_KEY)?, mask) {
        (NFT_CT_STATE, mask) if mask == u32::from(REPLIES) => Some(Connections::Replied),
        (NFT_CT_STATUS, DST_NAT) => Some(Connections::Published),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(rule: &FilterRule) -> Option<FilterRule> {
        let mut expressions = Expressions::default();
        write_rule(&mut expressions, rule);
        let mut message = Attributes::default();
        message.raw(NFTA_RULE_EXPRESSIONS, expressions.bytes());
        read_rule(Attrs::of(message.bytes()))
    }

    #[test]
    fn what_is_written_is_read_back() {
        let to = |target: &str| FilterRule::to(Target::Chain(target.into()));
        for rule in [
            FilterRule { comment: Some("a comment".into()), ..to("CNI-ADMIN") },
            FilterRule { source: "10.1.0.7".parse().ok(), ..FilterRule::to(Target::Accept) },
            FilterRule {
                destination: "fd00::7".parse().ok(),
                connections: Connections::Replied,
                ..FilterRule::to(Target::Accept)
            },
            FilterRule { connections: Connections::Published, ..FilterRule::to(Target::Accept) },
        ] {
            assert_eq!(read_back(&rule), Some(rule));
        }
    }

    #[test]
    fn a_rule_that_says_more_is_not_ours() {
        let mut more = Expressions::default();
        more.counter().masquerade();
        let mut message = Attributes::default();
        message.raw(NFTA_RULE_EXPRESSIONS, more.bytes());
        assert_eq!(read_rule(Attrs::of(message.bytes())), None);
    }
}
