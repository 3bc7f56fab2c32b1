//! A rule of a packet filter, as far as a packet's addresses and links decide about it: what rules of
//! nf_tables and of iptables-legacy have in common.

use super::nft::expr::Verdict;

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketRule {
    /// Its conditions, all of which have to hold; None if it has conditions of another kind.
    pub conditions: Option<Vec<Condition>>,
    /// What it does, where REJECT is a drop; None if the packet continues with the next rule.
    pub verdict: Option<Verdict>,
}

/// A field that has, or with `is_inverted` lacks, a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The field.
    pub field: Field,
    /// The value of the field's first bytes.
    pub value: Vec<u8>,
    /// The bits of the value that count; as long as the value.
    pub mask: Vec<u8>,
    /// Whether the rule is for packets with another value.
    pub is_inverted: bool,
}

/// What a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The source address and, directly behind it, the destination address, from this byte on.
    Addresses(usize),
    /// The ifindex of the link that the packet came in by, in the machine's byte order.
    Iif,
    /// The ifindex of the link that it goes out by.
    Oif,
    /// The name of the link that it came in by, padded with NUL.
    IifName,
    /// The name of the link that it goes out by.
    OifName,
}
