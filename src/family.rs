//! The two families of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// An address family. Journals and messages between processes have the number of the IP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u8", into = "u8")]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

/// `224.0.0.0/4` and `ff00::/8`.
const MULTICAST_V4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4);
const MULTICAST_V6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8);

impl Family {
    /// Both families, in the order in which they are configured.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(ip: IpAddr) -> Family {
        if ip.is_ipv6() { Family::V6 } else { Family::V4 }
    }

    /// The family of a network, or of an address with its prefix length.
    pub fn of_net(net: IpNet) -> Family {
        Family::of(net.addr())
    }

    /// The unspecified address: `0.0.0.0` or `::`.
    pub fn unspecified(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// All addresses, as the destination of default routes: `0.0.0.0/0` or `::/0`.
    pub fn whole(self) -> IpNet {
        match self {
            Family::V4 => IpNet::V4(Default::default()),
            Family::V6 => IpNet::V6(Default::default()),
        }
    }

    /// The multicast addresses.
    pub fn multicast(self) -> IpNet {
        match self {
            Family::V4 => IpNet::V4(MULTICAST_V4),
            Family::V6 => IpNet::V6(MULTICAST_V6),
        }
    }

    /// `ip` or `ip6`: the word of nft(8), and how the names of iptables begin.
    pub fn word(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }
}

/// `IPv4` or `IPv6`.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv{}", u8::from(*self))
    }
}

impl From<u8> for Family {
    fn from(version: u8) -> Family {
        if version == 6 { Family::V6 } else { Family::V4 }
    }
}

impl From<Family> for u8 {
    fn from(family: Family) -> u8 {
        match family {
            Family::V4 => 4,
            Family::V6 => 6,
        }
    }
}

/// The bits of an address.
pub fn width(family: Family) -> u8 {
    family.whole().max_prefix_len()
}

/// An address as a number.
pub fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// The address of a number that came from one of this family.
pub fn address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from(number as u32).into(),
        Family::V6 => Ipv6Addr::from(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_has_its_names_and_addresses() {
        let shown = Family::ALL.map(|family| {
            format!("{family} {} {} {}", family.word(), family.unspecified(), family.whole())
        });
        assert_eq!(shown, ["IPv4 ip 0.0.0.0 0.0.0.0/0", "IPv6 ip6 :: ::/0"]);
        for family in Family::ALL {
            assert_eq!(Family::of(family.unspecified()), family);
            assert_eq!(Family::of_net(family.whole()), family);
            assert!(family.multicast().addr().is_multicast());
            assert_eq!(Family::from(u8::from(family)), family);
        }
    }
}
