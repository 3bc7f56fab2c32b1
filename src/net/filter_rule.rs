//! Rules of the table `filter` of iptables, of the few forms that are written here. The programs of
//! iptables and netlink have the same.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Where a packet goes that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// It is accepted.
    Accept,
    /// It goes through another chain and comes back.
    Chain(String),
}

/// A rule of the table `filter`, of the few forms that the reference has for a container's packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilterRule {
    /// Packets from this address.
    pub source: Option<IpAddr>,
    /// Packets to this address.
    pub destination: Option<IpAddr>,
    /// Packets of connections that have been accepted before, or that belong to such.
    pub is_of_replies: bool,
    /// Words for people, which tell one rule from another.
    pub comment: Option<String>,
    /// What becomes of them.
    pub target: Target,
}

impl FilterRule {
    /// A rule for every packet.
    pub fn to(target: Target) -> FilterRule {
        FilterRule { source: None, destination: None, is_of_replies: false, comment: None, target }
    }

    /// Whether it does what the other one does. nft(8) leaves the comments of iptables out of what
    /// it lists, so a rule that was loaded from there has none.
    pub fn does(&self, wanted: &FilterRule) -> bool {
        self == wanted
            || self.comment.is_none() && *self == FilterRule { comment: None, ..wanted.clone() }
    }
}

/// As `iptables -S` lists it, without the chain that it is in.
impl fmt::Display for FilterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (option, address) in [("-s", self.source), ("-d", self.destination)] {
            if let Some(address) = address {
                write!(f, "{option} {} ", IpNet::from(address))?;
            }
        }
        if let Some(comment) = &self.comment {
            write!(f, "-m comment --comment \"{comment}\" ")?;
        }
        if self.is_of_replies {
            f.write_str("-m conntrack --ctstate RELATED,ESTABLISHED ")?;
        }
        match &self.target {
            Target::Accept => f.write_str("-j ACCEPT"),
            Target::Chain(chain) => write!(f, "-j {chain}"),
        }
    }
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
            is_of_replies: true,
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
