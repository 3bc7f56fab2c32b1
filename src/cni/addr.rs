//! Addresses and prefixes as text, the way Go's `net` package reads them.
//!
//! Configurations and results carry addresses as text, and the reference plugins accept and refuse
//! exactly what `net.ParseIP` and `net.ParseCIDR` do. Printing needs nothing special: `Display` of
//! [`IpAddr`] and [`IpNet`] gives Go's text once an IPv4-mapped address has become an IPv4 one,
//! which happens here.
//!
//! Specification 1.1.0, section 5, "ADD Success".

use std::net::IpAddr;

use ipnet::IpNet;

/// The prefix length of `::ffff:0:0/96`, which contains the IPv4-mapped addresses: a mapped prefix
/// loses this much when it becomes IPv4.
const MAPPED_PREFIX_LEN: u8 = 96;

/// Reads an address; empty text means "none", as in Go's `net.IP`.
///
/// An IPv4-mapped address is returned as IPv4. Zones (`fe80::1%eth0`) and octets with leading zeros
/// are refused.
pub fn parse_ip(text: &str) -> Result<Option<IpAddr>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<IpAddr>() {
        Ok(address) => Ok(Some(address.to_canonical())),
        Err(_) => Err(format!("invalid IP address: {text}")),
    }
}

/// Reads an address with its prefix length and keeps the host part.
///
/// An IPv4-mapped address is returned as IPv4 with the prefix counted from there:
/// `::ffff:10.0.0.2/120` is `10.0.0.2/24`, and any prefix up to 96 becomes 0. The prefix length
/// itself may have leading zeros, as in Go.
pub fn parse_cidr(text: &str) -> Result<IpNet, String> {
    let parse = || {
        let (address, prefix_len) = text.split_once('/')?;
        // Rust would accept "+8".
        if !prefix_len.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let (address, prefix_len): (IpAddr, u8) = (address.parse().ok()?, prefix_len.parse().ok()?);
        let as_written = IpNet::new(address, prefix_len).ok()?;
        // Go's `IPNet` does not distinguish an IPv4-mapped prefix from an IPv4 one.
        let canonical = address.to_canonical();
        if canonical == address {
            return Some(as_written);
        }
        IpNet::new(canonical, prefix_len.saturating_sub(MAPPED_PREFIX_LEN)).ok()
    };
    parse().ok_or_else(|| format!("invalid CIDR address: {text}"))
}

/// `#[serde(with = "addr::ip")]` for an `Option<IpAddr>`: text, `""` or null. Add `default` if it
/// may be absent.
pub mod ip {
    use std::net::IpAddr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    /// Encodes as text; no address becomes an empty text.
    pub fn serialize<S: Serializer>(
        address: &Option<IpAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_str(""),
        }
    }

    /// Decodes with [`parse_ip`](super::parse_ip).
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<IpAddr>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
        super::parse_ip(&text).map_err(D::Error::custom)
    }
}

/// `#[serde(with = "addr::ips")]` for a list of addresses that is only read.
pub mod ips {
    use std::net::IpAddr;

    use serde::de::{Deserialize, Deserializer, Error};

    /// Decodes each with [`parse_ip`](super::parse_ip); none may be empty.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<IpAddr>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let parse = |text: &String| match super::parse_ip(text) {
            Ok(Some(address)) => Ok(address),
            _ => Err(D::Error::custom(format_args!("invalid IP address: {text}"))),
        };
        texts.iter().map(parse).collect()
    }
}

/// `#[serde(with = "addr::cidr")]` for an `IpNet`.
pub mod cidr {
    use ipnet::IpNet;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    /// Encodes as text.
    pub fn serialize<S: Serializer>(net: &IpNet, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(net)
    }

    /// Decodes with [`parse_cidr`](super::parse_cidr).
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNet, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse_cidr(&text).map_err(D::Error::custom)
    }
}

/// `#[serde(with = "addr::opt_cidr")]` for an `Option<IpNet>`: text or null. Add `default` if it
/// may be absent.
///
/// Empty text is an error here, unlike in [`ip`]: Go's CIDR type has no empty form.
pub mod opt_cidr {
    use ipnet::IpNet;
    use serde::de::{Deserialize, Deserializer, Error};

    /// Decodes with [`parse_cidr`](super::parse_cidr).
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<IpNet>, D::Error> {
        Option::<String>::deserialize(deserializer)?
            .map(|text| super::parse_cidr(&text))
            .transpose()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Fields {
        #[serde(default, with = "ip")]
        gateway: Option<IpAddr>,
        #[serde(with = "cidr")]
        address: IpNet,
        #[serde(default, with = "opt_cidr")]
        subnet: Option<IpNet>,
    }

    fn decode(json: &str) -> Result<Fields, String> {
        serde_json::from_str(json).map_err(|err| err.to_string())
    }

    // The right side is what the reference `static` plugin (Debian sid) printed for the left.
    #[test]
    fn cidr_text_is_read_and_printed_like_the_reference() {
        for (text, printed) in [
            ("1.2.3.4/24", "1.2.3.4/24"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("1.2.3.4/0024", "1.2.3.4/24"),
            ("abcd:2345::/64", "abcd:2345::/64"),
            ("fd00:0:0::5/64", "fd00::5/64"),
            ("1:2:3:4:5:6:7::/64", "1:2:3:4:5:6:7:0/64"),
            ("2001:db8:0:0:1:0:0:1/64", "2001:db8::1:0:0:1/64"),
            ("2001:DB8:0:1:1:1:1:1/64", "2001:db8:0:1:1:1:1:1/64"),
            ("::1.2.3.4/96", "::102:304/96"),
            ("64:ff9b::1.2.3.4/96", "64:ff9b::102:304/96"),
            ("::ffff:10.0.0.2/120", "10.0.0.2/24"),
            ("::ffff:1.2.3.4/96", "1.2.3.4/0"),
            ("::ffff:1.2.3.4/0", "1.2.3.4/0"),
        ] {
            assert_eq!(
                parse_cidr(text).map(|net| net.to_string()),
                Ok(printed.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn bad_cidr_text_is_refused_like_the_reference() {
        for text in [
            "",
            "/8",
            "1.2.3.4",
            "1.2.3.4/",
            "1.2.3/45",
            "1.2.3.4/99",
            "1.2.3.4/+8",
            "1.2.3.4/-1",
            "1.2.3.4/8/9",
            "1.2.3.4/99999999999999999999",
            "1.2.3.4/١",
            " 1.2.3.4/8",
            "1.2.3.4/8 ",
            "10.0.0.02/24",
            "::/129",
            "::ffff:1.2.3.4/129",
            "::ffff:1.2.3.04/120",
            "00001::/64",
            "1:2:3:4::5:6:7:8/64",
            "fe80::1%eth0/64",
        ] {
            assert_eq!(parse_cidr(text), Err(format!("invalid CIDR address: {text}")));
        }
    }

    #[test]
    fn ip_text_is_read_and_printed_like_the_reference() {
        assert_eq!(parse_ip(""), Ok(None));
        for (text, printed) in [
            ("10.1.2.1", "10.1.2.1"),
            ("FD00::1", "fd00::1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("::1.2.3.4", "::102:304"),
        ] {
            assert_eq!(parse_ip(text).unwrap().unwrap().to_string(), printed);
        }
        for text in ["1.2.3.x", "1.2.3.04", "fe80::1%eth0", "1.2.3.4/24", " 1.2.3.4"] {
            assert_eq!(parse_ip(text), Err(format!("invalid IP address: {text}")));
        }
    }

    #[test]
    fn fields_decode_with_null_and_empty_as_none() {
        let fields = decode(r#"{"address":"10.0.0.2/24","gateway":"","subnet":null}"#).unwrap();
        assert_eq!((fields.gateway, fields.subnet), (None, None));
        assert_eq!(fields.address.to_string(), "10.0.0.2/24");
        let fields =
            decode(r#"{"address":"10.0.0.2/24","gateway":"fd00::1","subnet":"10.0.0.0/8"}"#)
                .unwrap();
        assert_eq!(fields.gateway.unwrap().to_string(), "fd00::1");
        assert_eq!(fields.subnet.unwrap().to_string(), "10.0.0.0/8");
    }

    #[test]
    fn bad_fields_say_what_is_wrong() {
        for (json, message) in [
            (r#"{"address":"1.2.3/45"}"#, "invalid CIDR address: 1.2.3/45"),
            (r#"{"address":""}"#, "invalid CIDR address: "),
            (r#"{"address":5}"#, "invalid type: integer `5`, expected a string"),
            (r#"{"address":"::/0","subnet":""}"#, "invalid CIDR address: "),
            (r#"{"address":"::/0","gateway":"1.2.3.x"}"#, "invalid IP address: 1.2.3.x"),
            (r#"{"gateway":"1.2.3.4"}"#, "missing field `address`"),
        ] {
            let err = decode(json).unwrap_err();
            assert!(err.starts_with(message), "{json}: {err}");
        }
    }
}
