//! Neighbour discovery, as far as a host needs it to find its network: Router Solicitation and
//! Advertisement (RFC 4861, section 4), with the options of RFC 4191 and RFC 8106. DHCPv6 has no
//! gateway and no prefix; routers advertise them.

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

use super::options::{read_addresses, read_domains};
use crate::net::mac::MacAddr;
use crate::net::packet_socket::{self, source_link_address};
use crate::plugins::ipam::dhcp::reader::Reader;

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

// options
const PREFIX_INFORMATION: u8 = 3;
const MTU: u8 = 5;
const ROUTE_INFORMATION: u8 = 24;
const NAME_SERVERS: u8 = 25;
const DOMAINS: u8 = 31;

/// The smallest MTU of a link with IPv6 (RFC 8200, section 5).
const SMALLEST_MTU: u32 = 1280;

/// The group of all routers on the link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// A router's advertisement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// Its link-local address.
    pub router: Ipv6Addr,
    /// Seconds for which it is a default router; 0 if it is not one.
    pub lifetime: u16,
    /// Its preference: 1, 0 or -1 (RFC 4191).
    pub preference: i8,
    /// The link's MTU in bytes, if advertised.
    pub mtu: Option<u32>,
    /// The link's prefixes.
    pub prefixes: Vec<Prefix>,
    /// Further prefixes that are reached through this router.
    pub routes: Vec<Ipv6Net>,
    /// Name servers.
    pub name_servers: Vec<String>,
    /// Domains to search.
    pub domains: Vec<String>,
}

/// A prefix of the link (RFC 4861, section 4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The prefix.
    pub net: Ipv6Net,
    /// Its addresses are reached without a router.
    pub on_link: bool,
    /// Hosts may make addresses from it.
    pub autonomous: bool,
    /// Seconds for which such an address may be used for new connections.
    pub preferred: u32,
    /// Seconds for which such an address may be used at all; [`u32::MAX`] is infinity.
    pub valid: u32,
}

/// A message that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A router's advertisement.
    Router(Advertisement),
    /// A neighbour claims this address.
    Claim(Ipv6Addr),
}

/// Parses an ICMPv6 message; `None` if it is neither, or breaks the rules of RFC 4861, section
/// 6.1.2. The socket must check the hop limit of 255 and the checksum.
pub fn decode(packet: &[u8], source: Ipv6Addr) -> Option<Heard> {
    match packet {
        [ROUTER_ADVERTISEMENT, 0, ..] if source.is_unicast_link_local() => {
            Advertisement::read(packet, source).map(Heard::Router)
        }
        [NEIGHBOUR_ADVERTISEMENT, 0, ..] => Reader::new(packet.get(8..)?).ipv6().map(Heard::Claim),
        _ => None,
    }
}

impl Advertisement {
    /// Parses an advertisement; `None` if an option is truncated, or has a length of 0.
    fn read(packet: &[u8], router: Ipv6Addr) -> Option<Advertisement> {
        let mut told = Advertisement {
            router,
            lifetime: Reader::new(packet.get(6..)?).u16()?,
            preference: match packet.get(5)? >> 3 & 3 {
                1 => 1,
                3 => -1,
                _ => 0, // 2 is reserved and counts as medium
            },
            mtu: None,
            prefixes: vec![],
            routes: vec![],
            name_servers: vec![],
            domains: vec![],
        };
        let mut rest = Reader::new(packet.get(16..)?);
        while let [kind, length, ..] = rest.rest() {
            let option = rest.take(usize::from(*length) * 8)?;
            told.take(*kind, option.get(2..)?);
        }
        rest.is_empty().then_some(told)
    }

    /// Takes an option's value, without its type and length. Ignores a truncated one, and one with
    /// a lifetime of 0.
    fn take(&mut self, kind: u8, option: &[u8]) {
        match kind {
            PREFIX_INFORMATION => self.prefixes.extend(Prefix::read(option)),
            MTU => {
                let mtu = option.get(2..).and_then(|option| Reader::new(option).u32());
                self.mtu = mtu.filter(|mtu| *mtu >= SMALLEST_MTU);
            }
            ROUTE_INFORMATION => self.routes.extend(read_route(option)),
            NAME_SERVERS => {
                let servers = read_lasting(option).map(read_addresses);
                self.name_servers.extend(servers.unwrap_or_default());
            }
            DOMAINS => {
                let domains = read_lasting(option).map(read_domains);
                self.domains.extend(domains.unwrap_or_default());
            }
            _ => (),
        }
    }
}

/// The entries of an option after its lifetime; `None` if the lifetime is 0.
fn read_lasting(option: &[u8]) -> Option<&[u8]> {
    let mut option = Reader::new(option.get(2..)?);
    (option.u32()? != 0).then_some(option.rest())
}

impl Prefix {
    fn read(option: &[u8]) -> Option<Prefix> {
        let mut option = Reader::new(option);
        let prefix_len = option.u8()?;
        let flags = option.u8()?;
        let valid = option.u32()?;
        let preferred = option.u32()?;
        option.u32()?; // reserved
        let net = Ipv6Net::new(option.ipv6()?, prefix_len).ok()?.trunc();
        let is_hosts = !net.addr().is_unicast_link_local() && !net.addr().is_multicast();
        let prefix = Prefix {
            net,
            on_link: flags & 0x80 != 0,
            autonomous: flags & 0x40 != 0,
            preferred,
            valid,
        };
        (is_hosts && preferred <= valid).then_some(prefix)
    }
}

/// A route with a lifetime of 0 or the reserved preference is ignored (RFC 4191, section 2.3). The
/// default route has a lifetime of its own, in the header.
fn read_route(option: &[u8]) -> Option<Ipv6Net> {
    let told = read_lasting(option)?;
    let [prefix_len, flags] = *option.first_chunk()?;
    // The prefix has as many octets as the option has room for, which may be more than an address.
    let mut prefix = [0; 16];
    let given = told.len().min(prefix.len());
    prefix[..given].copy_from_slice(&told[..given]);
    let net = Ipv6Net::new(prefix.into(), prefix_len).ok()?.trunc();
    let is_whole = usize::from(prefix_len) <= told.len() * 8;
    (is_whole && prefix_len > 0 && flags >> 3 & 3 != 2).then_some(net)
}

/// A Router Solicitation.
pub fn solicitation(mac: &MacAddr) -> Vec<u8> {
    [&[ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0], &source_link_address(mac)[..]].concat()
}

/// A Neighbour Solicitation that the owner of the address will answer, and the multicast group to
/// send it to.
pub fn probe(address: Ipv6Addr, mac: &MacAddr) -> (Vec<u8>, Ipv6Addr) {
    (packet_socket::solicitation(address, Some(mac)), packet_socket::solicited_group(address))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plugins::ipam::dhcp::tests::{bytes, changed};

    /// What dnsmasq 2.90 advertises with `--enable-ra` and a range for `slaac`.
    const SLAAC: &str = "86001dfd 40 00 0708 00000000 00000000
        0304 40c0 00000708 00000708 00000000 20010db8000000000000000000000000 0501 0000000005dc
        0101 2229deeaffd8 1f02 0000 00000708 036c616e00000000 1903 0000 00000708 20010db8000000000000000000000053";
    /// What dnsmasq advertises with a range for DHCPv6.
    const MANAGED: &str = "86001d7d 40 c0 0708 00000000 00000000
        0304 4080 00000708 00000708 00000000 20010db8000000000000000000000000 0501 0000000005dc
        0101 2229deeaffd8 1f02 0000 00000708 036c616e00000000 1903 0000 00000708 20010db8000000000000000000000053";

    fn router() -> Ipv6Addr {
        "fe80::2029:deff:feea:ffd8".parse().unwrap()
    }

    fn read(packet: &[u8]) -> Option<Advertisement> {
        match decode(packet, router())? {
            Heard::Router(told) => Some(told),
            Heard::Claim(_) => None,
        }
    }

    #[test]
    fn an_advertisement_of_dnsmasq_is_understood() {
        let net = "2001:db8::/64".parse().unwrap();
        let told = Advertisement {
            router: router(),
            lifetime: 1800,
            preference: 0,
            mtu: Some(1500),
            prefixes: vec![Prefix {
                net,
                on_link: true,
                autonomous: true,
                preferred: 1800,
                valid: 1800,
            }],
            routes: vec![],
            name_servers: vec!["2001:db8::53".to_owned()],
            domains: vec!["lan".to_owned()],
        };
        assert_eq!(read(&bytes(SLAAC)), Some(told.clone()));
        let managed = Prefix { autonomous: false, ..told.prefixes[0] };
        assert_eq!(read(&bytes(MANAGED)), Some(Advertisement { prefixes: vec![managed], ..told }));
    }

    /// An advertisement with these flags and options.
    fn advertised(flags: u8, options: &str) -> Option<Advertisement> {
        read(
            &[&[134, 0, 0, 0, 64, flags, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0][..], &bytes(options)]
                .concat(),
        )
    }

    #[test]
    fn routers_have_preferences_and_routes() {
        for (flags, preference) in [(0x08, 1), (0x00, 0), (0x18, -1), (0x10, 0)] {
            assert_eq!(advertised(flags, "").unwrap().preference, preference, "{flags:#x}");
        }
        let cases: [(&str, &[&str]); 6] = [
            ("1801 0000 00000708 1802 2008 00000708 20010db900000000", &["2001:db9::/32"]),
            ("1803 8000 00000708 20010db8000000000000000000000001", &["2001:db8::1/128"]),
            ("1802 2000 00000000 20010db900000000", &[]), // lifetime over
            ("1802 2010 00000708 20010db900000000", &[]), // the reserved preference
            ("1802 8100 00000708 20010db900000000", &[]), // 129 bits
            ("1801 2000 00000708", &[]),                  // too short for its prefix,
        ];
        for (options, routes) in cases {
            let told: Vec<String> =
                advertised(0, options).unwrap().routes.iter().map(ToString::to_string).collect();
            assert_eq!(told, routes, "{options}");
        }
    }

    #[test]
    fn bad_option_is_left_out_and_torn_option_list_fails_the_packet() {
        let told =
            advertised(0, "0501 0000 000004ff 0304 8180 00000708 00000708 00000000 20010db8000000000000000000000000")
                .unwrap();
        assert_eq!(
            (told.mtu, told.prefixes),
            (None, vec![]),
            "an MTU of 1279, a prefix of 129 bits"
        );
        for prefix in
            ["40c0 00000707 00000708 00000000 20010db8", "40c0 00000708 00000708 00000000 fe800000"]
        {
            let told =
                advertised(0, &format!("0304 {prefix} 0000 0000 0000 0000 0000 0000")).unwrap();
            assert_eq!(told.prefixes, [], "{prefix}");
        }
        for torn in ["0300", "0304 40c0", "05", "0501 0000 000005dc 01"] {
            assert_eq!(advertised(0, torn), None, "{torn}");
        }
        assert_eq!(
            advertised(0, "0301 40c0 00000708 1901 0000 00000708").unwrap().prefixes,
            [],
            "too short"
        );
        assert_eq!(decode(&bytes(SLAAC), "2001:db8::1".parse().unwrap()), None, "no router");
        assert_eq!(read(&bytes(SLAAC)[..15]), None);
    }

    #[test]
    fn a_neighbour_claims_an_address() {
        let mut claim = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
        let address: Ipv6Addr = "2001:db8::10".parse().unwrap();
        claim.extend(address.octets());
        assert_eq!(decode(&claim, address), Some(Heard::Claim(address)));
        assert_eq!(decode(&claim[..23], address), None);
        assert_eq!(decode(&[135, 0], address), None);
    }

    #[test]
    fn questions_are_written_as_the_rfc_has_them() {
        let mac = "0a:58:0a:01:02:03".parse().unwrap();
        assert_eq!(solicitation(&mac), bytes("85000000 00000000 0101 0a580a010203"));
        let (message, group) = probe("2001:db8::12:3456".parse().unwrap(), &mac);
        assert_eq!(
            message,
            bytes("87000000 00000000 20010db8000000000000000000123456 0101 0a580a010203")
        );
        assert_eq!(group.to_string(), "ff02::1:ff12:3456");
        assert_eq!(solicitation(&MacAddr::new(&[])).len(), 8, "a link without addresses");
    }

    #[test]
    fn whatever_comes_is_read_without_a_panic() {
        let packets = changed([bytes(SLAAC), bytes(MANAGED)]);
        let understood = packets.filter(|packet| decode(packet, router()).is_some()).count();
        assert!(
            (1_000..19_000).contains(&understood),
            "{understood} of the packets were advertisements"
        );
    }
}
