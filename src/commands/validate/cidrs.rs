//! What to write in place of an invalid subnet.

use std::net::{IpAddr, Ipv4Addr};

use crate::cni::addr;

/// The keys with an address and its prefix length, and those of lists of them.
const KEYS: [&str; 5] = ["subnet", "dst", "address", "shapedSubnets", "unshapedSubnets"];

const EXPECTED: &str = "write an address and its prefix length, such as \"10.88.0.0/24\"";

/// The advice for the text at this path, if it is an invalid address with a prefix length; else
/// empty.
pub fn advice(path: &str, text: &str) -> String {
    let key = path.rsplit('.').next().and_then(|last| last.split('[').next());
    if !KEYS.contains(&key.unwrap_or_default()) || addr::parse_cidr(text).is_ok() {
        return String::new();
    }
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    let Ok(address) = address.parse::<IpAddr>() else {
        return EXPECTED.to_owned();
    };
    if !text.contains('/') {
        let usual = if address.is_ipv4() { 24 } else { 64 };
        return format!("add the prefix length, such as \"{address}/{usual}\"");
    }
    // The prefix length may be a mask such as `255.255.0.0`.
    let mask = length.parse::<Ipv4Addr>().map(u32::from);
    match mask {
        Ok(mask) if mask.leading_ones() + mask.trailing_zeros() == u32::BITS => {
            format!("write \"{address}/{}\"", mask.leading_ones())
        }
        _ if address.is_ipv4() => "the prefix length is a number from 0 to 32".to_owned(),
        _ => "the prefix length is a number from 0 to 128".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_subnet_has_its_own_advice() {
        for (text, expected) in [
            ("10.88.0.0", "add the prefix length, such as \"10.88.0.0/24\""),
            ("fd00::", "add the prefix length, such as \"fd00::/64\""),
            ("10.88.0.0/255.255.0.0", "write \"10.88.0.0/16\""),
            ("10.88.0.0/255.0.255.0", "the prefix length is a number from 0 to 32"),
            ("10.88.0.0/33", "the prefix length is a number from 0 to 32"),
            ("fd00::/129", "the prefix length is a number from 0 to 128"),
            ("10.88.0/24", EXPECTED),
            ("", EXPECTED),
            ("10.88.0.0/24", ""),
        ] {
            assert_eq!(advice("ipam.ranges[0][0].subnet", text), expected, "{text}");
        }
        assert_eq!(advice("shapedSubnets[1]", "x"), EXPECTED);
        assert_eq!(advice("ipam.gateway", "x"), "");
    }
}
