//! Rules of the iptables table `filter`, in the few forms that are written here. Shared by the code
//! that runs the iptables programs and the code that uses netlink.
//!
//! Also [`PacketRule`], a rule of a packet filter, as far as a packet's addresses and links decide
//! about it: what rules of nf_tables and of iptables-legacy have in common.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::nft::expr::Verdict;

/// Where a matching packet goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The packet is accepted.
    Accept,
    /// The packet traverses another chain and returns.
    Chain(String),
}

/// Which connections a rule's packets belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Connections {
    /// Any, or none.
    #[default]
    Any,
    /// Established or related ones.
    Replied,
    /// Those whose destination was translated, as to a published port.
    Published,
}

/// As an argument of `-j`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Target::Accept => "ACCEPT",
            Target::Chain(chain) => chain,
        })
    }
}

/// A rule of the table `filter`, in one of the few forms that the reference uses for a container's
/// packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilterRule {
    /// Match only packets from this address.
    pub source: Option<IpAddr>,
    /// Match only packets to this address.
    pub destination: Option<IpAddr>,
    /// Match only packets of these connections.
    pub connections: Connections,
    /// A comment for people, which distinguishes the rule from others.
    pub comment: Option<String>,
    /// What happens to matching packets.
    pub target: Target,
}

impl FilterRule {
    /// A rule that matches every packet.
    pub fn to(target: Target) -> FilterRule {
        let connections = Connections::Any;
        FilterRule { source: None, destination: None, connections, comment: None, target }
    }

    /// Whether it does the same as `wanted`. nft(8) omits the comments of iptables rules from its
    /// listings, so a rule that was loaded from one has none.
    pub fn does(&self, wanted: &FilterRule) -> bool {
        self == wanted
            || self.comment.is_none() && *self == FilterRule { comment: None, ..wanted.clone() }
    }
}

/// As `iptables -S` lists it, without the chain.
impl fmt::Display for FilterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(f, "-s", self.source)?;
        write_address(f, "-d", self.destination)?;
        if let Some(comment) = &self.comment {
            write!(f, "-m comment --comment \"{comment}\" ")?;
        }
        match self.connections {
            Connections::Any => (),
            Connections::Replied => f.write_str("-m conntrack --ctstate RELATED,ESTABLISHED ")?,
            Connections::Published => f.write_str("-m conntrack --ctstate DNAT ")?,
        }
        write!(f, "-j {}", self.target)
    }
}

fn write_address(f: &mut fmt::Formatter<'_>, option: &str, address: Option<IpAddr>) -> fmt::Result {
    match address {
        Some(address) => write!(f, "{option} {} ", IpNet::from(address)),
        None => Ok(()),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_as_iptables_lists_them() {
        let jump = FilterRule {
            comment: Some("two words".into()),
            ..FilterRule::to(Target::Chain("CNI-X".into()))
        };
        assert_eq!(jump.to_string(), r#"-m comment --comment "two words" -j CNI-X"#);
        let accept = FilterRule::to(Target::Accept);
        let to = FilterRule {
            destination: "10.1.0.7".parse().ok(),
            connections: Connections::Replied,
            ..accept.clone()
        };
        assert_eq!(
            to.to_string(),
            "-d 10.1.0.7/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
        );
        let from = FilterRule { source: "fd00::7".parse().ok(), ..accept };
        assert_eq!(from.to_string(), "-s fd00::7/128 -j ACCEPT");
    }
}
