//! Messages of DHCPv6 between a client and servers (RFC 8415, section 8), and addresses from router
//! advertisements alone (RFC 4862).

pub mod lease;
pub mod options;
pub mod router;

use std::net::Ipv6Addr;

use self::options::{Options, read_addresses, read_domains};
use crate::plugins::ipam::dhcp::reader::Reader;

/// The group of all servers and relays on the link (section 7.1).
pub const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// The type of a message (section 7.3), of those that a client for addresses sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client looks for servers.
    Solicit = 1,
    /// A server answers a Solicit with an offer.
    Advertise = 2,
    /// The client requests the offer.
    Request = 3,
    /// The client asks its server to extend the lease.
    Renew = 5,
    /// The client asks any server to extend the lease.
    Rebind = 6,
    /// A server's answer to everything but Solicit.
    Reply = 7,
    /// The client releases its address.
    Release = 8,
    /// The client reports that another host uses its address.
    Decline = 9,
}

/// The status of a message or of an association (section 21.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// Success.
    pub const SUCCESS: Status = Status(0);
    /// The server has no address for the client.
    pub const NO_ADDRESSES: Status = Status(2);
    /// The server does not know the association.
    pub const NO_BINDING: Status = Status(3);
    /// The address does not belong to the client's link.
    pub const NOT_ON_LINK: Status = Status(4);

    /// The status in these options; without one, success.
    fn within(options: &Options) -> Status {
        let value = options.get(options::STATUS_CODE);
        value.and_then(|value| Reader::new(value).u16()).map_or(Status::SUCCESS, Status)
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The message's type.
    pub kind: Kind,
    /// The transaction id of 24 bits, which matches answers to requests.
    pub transaction: u32,
    /// Its options.
    pub options: Options,
}

/// An identity association (section 21.4): what a server grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// Seconds until Renew; 0 leaves it to the client.
    pub t1: u32,
    /// Seconds until Rebind; 0 leaves it to the client.
    pub t2: u32,
    /// The granted addresses, without those that have an error status.
    pub addresses: Vec<Grant>,
    /// The first address, granted or not, for messages.
    pub offered: Option<Ipv6Addr>,
    /// The status of the association.
    pub status: Status,
}

/// An address and how long it may be used (section 21.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The address.
    pub address: Ipv6Addr,
    /// Seconds for which it may be used for new connections.
    pub preferred: u32,
    /// Seconds for which it may be used at all; [`u32::MAX`] is infinity.
    pub valid: u32,
}

impl Message {
    /// Parses a packet; `None` if it is truncated, or of a type that a client ignores.
    pub fn decode(packet: &[u8]) -> Option<Message> {
        use Kind::{Advertise, Decline, Rebind, Release, Renew, Reply, Request, Solicit};
        let all = [Solicit, Advertise, Request, Renew, Rebind, Reply, Release, Decline];
        let mut packet = Reader::new(packet);
        let head = packet.u32()?;
        let kind = all.into_iter().find(|kind| *kind as u32 == head >> 24)?;
        let options = Options::decode(packet.rest())?;
        Some(Message { kind, transaction: head & 0xff_ffff, options })
    }

    /// Encodes the packet.
    pub fn encode(&self) -> Vec<u8> {
        let mut packet =
            ((self.kind as u32) << 24 | self.transaction & 0xff_ffff).to_be_bytes().to_vec();
        self.options.encode(&mut packet);
        packet
    }

    /// The status of the whole message.
    pub fn status(&self) -> Status {
        Status::within(&self.options)
    }

    /// The server's preference.
    pub fn preference(&self) -> u8 {
        let value = self.options.get(options::PREFERENCE);
        value.and_then(|value| value.first()).copied().unwrap_or_default()
    }

    /// The association with this id.
    pub fn association(&self, iaid: u32) -> Option<Association> {
        let mut values = self.options.all(options::IA_NA).map(Reader::new);
        let value = values.find_map(|mut value| (value.u32()? == iaid).then_some(value))?;
        Association::read(value)
    }

    /// The name servers that the server sends.
    pub fn name_servers(&self) -> Vec<String> {
        self.options.get(options::DNS_SERVERS).map(read_addresses).unwrap_or_default()
    }

    /// The search domains that the server sends.
    pub fn domains(&self) -> Vec<String> {
        self.options.get(options::DOMAIN_LIST).map(read_domains).unwrap_or_default()
    }
}

impl Association {
    /// Parses an association behind its id. One with T1 after T2 is invalid (section 21.4).
    fn read(mut value: Reader<'_>) -> Option<Association> {
        let t1 = value.u32()?;
        let t2 = value.u32()?;
        let within = Options::decode(value.rest())?;
        let offered = within.get(options::IA_ADDRESS).and_then(|value| Reader::new(value).ipv6());
        (t1 <= t2 || t2 == 0).then(|| Association {
            t1,
            t2,
            addresses: within.all(options::IA_ADDRESS).filter_map(Grant::read).collect(),
            offered,
            status: Status::within(&within),
        })
    }
}

impl Grant {
    /// Parses an address. It is invalid if no host can have it, if it has an error status, or if it
    /// is preferred for longer than it is valid (section 21.6).
    fn read(value: &[u8]) -> Option<Grant> {
        let mut value = Reader::new(value);
        let grant = Grant { address: value.ipv6()?, preferred: value.u32()?, valid: value.u32()? };
        let status = Status::within(&Options::decode(value.rest())?);
        let address = grant.address;
        let is_for_a_host = !address.is_unspecified()
            && !address.is_loopback()
            && !address.is_multicast()
            && !address.is_unicast_link_local();
        let is_valid = is_for_a_host && grant.preferred <= grant.valid;
        (is_valid && status == Status::SUCCESS).then_some(grant)
    }
}

/// The value of an IA_NA option that requests this address, or any.
pub fn asking_for(iaid: u32, address: Option<Ipv6Addr>) -> Vec<u8> {
    let mut within = Options::default();
    if let Some(address) = address {
        // The lifetimes are the server's to choose (section 18.2).
        within.push(options::IA_ADDRESS, [&address.octets()[..], &[0; 8]].concat());
    }
    let mut value = [&iaid.to_be_bytes()[..], &[0; 8]].concat(); // so are T1 and T2
    within.encode(&mut value);
    value
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plugins::ipam::dhcp::tests::{bytes, changed};

    /// A Reply of kea-dhcp6 2.2.0 to a Request.
    const REPLY: &str = "07a1b2c4 0001 0012 0004d41d8cd98f008204a9800998ecf8427e 0002 000c 0002000009bf2fdfca648402
        0003 0028 00000001 0000001e 00000030 0005 0018 20010db8000000000000000000000010 0000003c 00000078
        0017 0010 20010db8000000000000000000000053 0018 0012 036c616e00076578616d706c65036f726700";
    /// Its Reply to a Release.
    const RELEASED: &str = "07a1b2c6 0001 0012 0004d41d8cd98f008204a9800998ecf8427e 0002 000c 0002000009bf2fdfca648402
        0003 003f 00000001 00000000 00000000 000d 002f
        00004c656173652072656c65617365642e205468616e6b20796f752c20706c6561736520636f6d6520616761696e2e
        000d 0029 000053756d6d6172792073746174757320666f7220616c6c2070726f6365737365642049415f4e4173";

    fn address(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    #[test]
    fn a_reply_of_kea_is_understood() {
        let reply = Message::decode(&bytes(REPLY)).unwrap();
        assert_eq!(
            (reply.kind, reply.transaction, reply.status()),
            (Kind::Reply, 0xa1_b2c4, Status::SUCCESS)
        );
        let granted = Grant { address: address("2001:db8::10"), preferred: 60, valid: 120 };
        let association = Association {
            t1: 30,
            t2: 48,
            addresses: vec![granted],
            offered: Some(granted.address),
            status: Status::SUCCESS,
        };
        assert_eq!(reply.association(1), Some(association));
        assert_eq!(reply.association(2), None);
        assert_eq!(reply.name_servers(), ["2001:db8::53"]);
        assert_eq!(reply.domains(), ["lan", "example.org"]);
        assert_eq!(reply.encode(), bytes(REPLY));
        let released = Message::decode(&bytes(RELEASED)).unwrap();
        let none =
            Association { t1: 0, t2: 0, addresses: vec![], offered: None, status: Status::SUCCESS };
        assert_eq!((released.status(), released.association(1)), (Status::SUCCESS, Some(none)));
    }

    /// An association of id 1 in a Reply, with these bytes for its options.
    fn association(t1: u32, t2: u32, within: &[u8]) -> Option<Association> {
        let mut options = Options::default();
        options.push(
            options::IA_NA,
            [&[0, 0, 0, 1], &t1.to_be_bytes()[..], &t2.to_be_bytes(), within].concat(),
        );
        Message { kind: Kind::Reply, transaction: 0, options }.association(1)
    }

    fn grant(ip: &str, preferred: u32, valid: u32, options: &[u8]) -> Vec<u8> {
        let value =
            [&address(ip).octets()[..], &preferred.to_be_bytes(), &valid.to_be_bytes(), options]
                .concat();
        [&[0, 5, 0, value.len() as u8], &value[..]].concat()
    }

    #[test]
    fn what_the_rfc_says_to_discard_is_not_granted() {
        let complaint = [0, 13, 0, 2, 0, 4];
        let refused = [
            grant("2001:db8::1", 61, 60, &[]),
            grant("2001:db8::1", 60, 60, &complaint),
            grant("fe80::1", 60, 60, &[]),
            grant("::", 60, 60, &[]),
            grant("ff02::1", 60, 60, &[]),
            grant("::1", 60, 60, &[]),
            grant("2001:db8::1", 60, 60, &[0]), // cut off
            vec![0, 5, 0, 1, 9],
        ];
        for within in refused {
            assert_eq!(association(30, 48, &within).unwrap().addresses, [], "{within:?}");
        }
        let good = grant("2001:db8::1", 60, 60, &[]);
        assert_eq!(association(30, 48, &good).unwrap().addresses.len(), 1);
        assert_eq!(
            association(30, 0, &good).unwrap().addresses.len(),
            1,
            "T2 is the client's choice"
        );
        assert_eq!(association(49, 48, &good), None, "T1 behind T2");
        assert_eq!(association(30, 48, &complaint).unwrap().status, Status::NOT_ON_LINK);
        assert_eq!(association(30, 48, &[0, 5, 9]), None);
    }

    #[test]
    fn what_a_client_has_no_use_for_is_no_message() {
        for packet in [
            &[][..],
            &[7],
            &[7, 0, 0],
            &[0, 0, 0, 1],
            &[4, 0, 0, 1],
            &[11, 0, 0, 1],
            &[12, 0, 0, 1],
            &[7, 0, 0, 1, 0],
        ] {
            assert_eq!(Message::decode(packet), None, "{packet:?}");
        }
        assert_eq!(Message::decode(&[7, 0xff, 0xff, 0xff]).unwrap().transaction, 0xff_ffff);
    }

    #[test]
    fn an_association_asks_for_an_address_or_for_any() {
        assert_eq!(asking_for(1, None), bytes("00000001 00000000 00000000"));
        let one = "00000001 00000000 00000000 0005 0018 20010db8000000000000000000000010 00000000 00000000";
        assert_eq!(asking_for(1, Some(address("2001:db8::10"))), bytes(one));
    }

    #[test]
    fn whatever_comes_is_read_without_a_panic_and_written_as_it_was() {
        let mut understood = 0;
        for packet in changed([bytes(REPLY), bytes(RELEASED)]) {
            let Some(message) = Message::decode(&packet) else { continue };
            understood += 1;
            let _ = (message.association(1), message.status(), message.preference());
            let _ = (message.name_servers(), message.domains());
            assert_eq!(message.encode(), packet);
        }
        assert!((1_000..19_000).contains(&understood), "{understood} of the packets were messages");
    }
}
