//! Hardware addresses.

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};

use crate::error::Mistake;
use crate::hex;

/// A hardware address: six octets on Ethernet, eight or twenty elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacAddr(Vec<u8>);

impl MacAddr {
    /// The address with these octets.
    pub fn new(octets: &[u8]) -> MacAddr {
        MacAddr(octets.to_vec())
    }

    /// Generates a random unicast address, locally administered. A link that is created with an
    /// address keeps it: udev's MACAddressPolicy only replaces addresses that the kernel chose.
    pub fn random() -> MacAddr {
        // The standard library's only access to the kernel's random numbers; it works without /dev.
        let random = RandomState::new().build_hasher().finish().to_ne_bytes();
        let mut octets = [0; 6];
        octets.copy_from_slice(&random[..6]);
        octets[0] = octets[0] & 0xfc | 0x02;
        MacAddr(octets.to_vec())
    }

    /// An address for the interface that has this IP address: `0a:58:` and the four octets of IPv4, or
    /// the first four of the SHA-256 of the text of IPv6. Tools of Kubernetes derive it so.
    pub fn of_ip(ip: IpAddr) -> MacAddr {
        let octets = match ip {
            IpAddr::V4(ip) => ip.octets(),
            IpAddr::V6(ip) => {
                let mut first = [0; 4];
                first.copy_from_slice(&Sha256::digest(ip.to_string())[..4]);
                first
            }
        };
        MacAddr([&[0x0a, 0x58], &octets[..]].concat())
    }

    /// Generates a random address for a bridge port: locally administered, and greater than nearly
    /// all others. A bridge without an address of its own uses the lowest of its ports', so this
    /// port does not change it.
    pub fn random_of_port() -> MacAddr {
        let MacAddr(mut octets) = MacAddr::random();
        octets[0] = 0xfe;
        MacAddr(octets)
    }

    /// The octets.
    pub fn octets(&self) -> &[u8] {
        &self.0
    }

    /// Whether all octets are zero, an address that no link can be given.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|octet| *octet == 0)
    }

    /// Whether it is a group address, which no link can have.
    pub fn is_multicast(&self) -> bool {
        self.0.first().is_some_and(|octet| octet & 1 == 1)
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, octet) in self.0.iter().enumerate() {
            write!(f, "{}{octet:02x}", if index == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

/// Pairs of hex digits separated by `:` or `-`, or groups of four separated by `.`: what Go's
/// ParseMAC accepts.
impl FromStr for MacAddr {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<MacAddr, Mistake> {
        let octets = octets_in(text).filter(|octets| matches!(octets.len(), 6 | 8 | 20));
        octets.map(MacAddr).ok_or_else(|| {
            Mistake::new(format_args!("{text:?} is not a hardware address"))
                .expecting("one like 0a:58:0a:01:02:03")
        })
    }
}

/// The octets of a text of hex digits in groups, all of the length that belongs to the separator.
fn octets_in(text: &str) -> Option<Vec<u8>> {
    let separator = [':', '-', '.'].into_iter().find(|s| text.contains(*s))?;
    let length = if separator == '.' { 2 } else { 1 };
    let mut octets = vec![];
    for group in text.split(separator) {
        octets.extend(hex::decode(group).filter(|group| group.len() == length)?);
    }
    Some(octets)
}

/// For `deserialize_with`: an empty string means no address.
pub fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MacAddr>, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|mistake: Mistake| mistake.refuse()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_reads_is_read() {
        for text in ["0a:58:0A:01:02:03", "0a-58-0a-01-02-03", "0a58.0a01.0203"] {
            assert_eq!(text.parse::<MacAddr>().unwrap().to_string(), "0a:58:0a:01:02:03");
        }
        assert_eq!("00:00:00:00:00:00:00:01".parse::<MacAddr>().unwrap().octets().len(), 8);
        for bad in [
            "",
            "0a",
            "0a:58",
            "0a:58:0a:01:02:0g",
            "0a:58:0a:01:02:003",
            "0a:58-0a:01:02:03",
            "äb:cd:ef:01:02:03",
        ] {
            assert!(bad.parse::<MacAddr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_random_address_is_unicast_and_local() {
        let one = MacAddr::random();
        let other = MacAddr::random();
        assert_eq!(one.octets()[0] & 3, 2);
        assert_ne!(one, other);
    }
}
