//! Addresses: `ip address`.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::AddressMessageBuilder;
use rtnetlink::packet_core::DefaultNla;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};

use super::attr::{Attrs, read_u32};
use super::link::Link;
use super::socket::{Netlink, RTM_DELADDR, RTM_GETADDR, RTM_NEWADDR, Request};
use crate::error::Result;
use crate::family::Family;
use crate::hex;

/// ifaddrmsg.
const HEADER: usize = 8;
/// The offsets of its fields.
const IFA_PREFIXLEN: usize = 1;
const IFA_INDEX: usize = 4;

// linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;
const IFA_RT_PRIORITY: u16 = 9;
const IFA_PROTO: u16 = 11; // since Linux 5.18
const IFA_F_MANAGETEMPADDR: u32 = 0x100;
/// IFAPROT_KERNEL_LO, _RA and _LL.
const OF_KERNEL: std::ops::RangeInclusive<u8> = 1..=3;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_PERMANENT: u32 = 0x80;

/// The attributes that the creator of an address chose; the kernel derives the others.
const KEPT: [u16; 6] =
    [IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_BROADCAST, IFA_FLAGS, IFA_RT_PRIORITY];

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// ifindex of its link.
    pub link: u32,
    /// The address with its prefix.
    pub net: IpNet,
    /// Duplicate address detection still runs.
    pub tentative: bool,
    /// Duplicate address detection found another owner.
    pub dad_failed: bool,
    /// A program added it for good: it is not of the kernel or of a router, and has no end.
    pub is_lasting: bool,
}

impl Address {
    fn read(payload: &[u8]) -> Option<Address> {
        let attrs = Attrs::after(payload, HEADER);
        let ip = attrs.ip(IFA_LOCAL).or(attrs.ip(IFA_ADDRESS))?;
        let net = IpNet::new(ip, *payload.get(IFA_PREFIXLEN)?).ok()?;
        let flags = attrs.u32(IFA_FLAGS).unwrap_or_default();
        let is_set = |flag| flags & flag != 0;
        let tentative = is_set(IFA_F_TENTATIVE);
        let dad_failed = is_set(IFA_F_DADFAILED);
        let is_of_kernel = attrs.u8(IFA_PROTO).is_some_and(|by| OF_KERNEL.contains(&by));
        let is_lasting = is_set(IFA_F_PERMANENT) && !is_set(IFA_F_MANAGETEMPADDR) && !is_of_kernel;
        let link = read_u32(payload, IFA_INDEX)?;
        Some(Address { link, net, tentative, dad_failed, is_lasting })
    }
}

/// An address with everything that belongs to it (label, peer, broadcast, flags), as text that can
/// be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAddress(String);

impl KeptAddress {
    /// Wraps stored text, unchecked.
    pub fn from_text(text: &str) -> KeptAddress {
        KeptAddress(text.to_owned())
    }

    /// The text: family, prefix length and scope, then each attribute with its type, in hex.
    pub fn as_text(&self) -> &str {
        &self.0
    }

    /// Reads an address that stays until it is removed; None for one that the kernel or a router
    /// gave the link.
    fn read(payload: &[u8], index: u32) -> Option<KeptAddress> {
        let attrs = Attrs::after(payload, HEADER);
        let is_permanent = attrs.u32(IFA_FLAGS)? & IFA_F_PERMANENT != 0;
        // The kernel gives a link such an address by itself.
        let is_link_local =
            matches!(attrs.ip(IFA_ADDRESS)?, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if read_u32(payload, IFA_INDEX)? != index || !is_permanent || is_link_local {
            return None;
        }
        let [family, prefix, _, scope, ..] = payload else { return None };
        let mut text = hex::encode(&[*family, *prefix, *scope]);
        for (kind, value) in attrs.iter().filter(|(kind, _)| KEPT.contains(kind)) {
            text += &format!(" {kind:02x}{}", hex::encode(value));
        }
        Some(KeptAddress(text))
    }

    fn message(&self, index: u32) -> Option<AddressMessage> {
        let mut words = self.0.split(' ').map(hex::decode);
        let header = words.next()??;
        let [family, prefix_len, scope, ..] = header[..] else { return None };
        let mut message = AddressMessage::default();
        message.header.family = family.into();
        message.header.prefix_len = prefix_len;
        message.header.scope = scope.into();
        message.header.index = index;
        for word in words {
            let word = word?;
            let (kind, value) = word.split_first()?;
            let attribute = DefaultNla::new(u16::from(*kind), value.to_vec());
            message.attributes.push(AddressAttribute::Other(attribute));
        }
        Some(message)
    }
}

/// How an address is added.
#[derive(Clone, Copy, Debug)]
pub struct AddressOptions {
    /// IPv6: run duplicate address detection before the address is used.
    pub detect_duplicates: bool,
    /// Route the address's subnet to the link.
    pub subnet_on_link: bool,
}

impl Netlink {
    /// Adds an address. An IPv6 address without duplicate address detection is usable at once.
    pub fn add_address(&self, link: &Link, net: IpNet, options: AddressOptions) -> Result<()> {
        let mut message = message(link, net);
        let is_v6 = Family::of_net(net) == Family::V6;
        let mut flags = AddressFlags::empty();
        flags.set(AddressFlags::Nodad, is_v6 && !options.detect_duplicates);
        flags.set(AddressFlags::Noprefixroute, !options.subnet_on_link);
        if !flags.is_empty() {
            message.attributes.push(AddressAttribute::Flags(flags));
        }
        let what = format_args!("add address {net} to link {:?}", link.name);
        self.add(&Request::new(RTM_NEWADDR, &message), what)
    }

    /// Removes an address if it is there.
    pub fn delete_address(&self, link: &Link, net: IpNet) -> Result<()> {
        let what = format_args!("delete address {net} of link {:?}", link.name);
        self.remove(&Request::new(RTM_DELADDR, &message(link, net)), what)
    }

    /// The addresses of a link, for [`Netlink::restore_address`], in the order to restore them in.
    pub fn keep_addresses(&self, link: &Link) -> Result<Vec<KeptAddress>> {
        let mut all =
            self.list_addresses(link, |payload| KeptAddress::read(payload, link.index))?;
        // The kernel adds a new address after the others in IPv4 and before them in IPv6, where the
        // first one counts. The text begins with AF_INET6.
        let v6 = all.iter().position(|kept| kept.0.starts_with("0a")).unwrap_or(all.len());
        all[v6..].reverse();
        Ok(all)
    }

    /// Adds an address that was kept. Text in another format adds nothing.
    pub fn restore_address(&self, link: &Link, address: &KeptAddress) -> Result<()> {
        let Some(message) = address.message(link.index) else { return Ok(()) };
        let what = format_args!("give link {:?} an address back", link.name);
        self.add(&Request::new(RTM_NEWADDR, &message), what)
    }

    /// The addresses of a link, of both families.
    pub fn addresses(&self, link: &Link) -> Result<Vec<Address>> {
        // Kernels without strict checking send the addresses of all links.
        let is_of_link = |payload: &&[u8]| read_u32(payload, IFA_INDEX) == Some(link.index);
        self.list_addresses(link, |payload| {
            Some(payload).filter(is_of_link).and_then(Address::read)
        })
    }

    /// The addresses of all links, of both families, in one dump.
    pub fn all_addresses(&self) -> Result<Vec<Address>> {
        let every = Request::new(RTM_GETADDR, &AddressMessage::default());
        self.dump(&every, format_args!("list the addresses of all links"), Address::read)
    }

    fn list_addresses<T>(&self, link: &Link, read: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>> {
        let what = format_args!("list the addresses of link {:?}", link.name);
        let mut all = vec![];
        for family in Family::ALL {
            all.extend(self.dump(&listing(family, link.index), what, &read)?);
        }
        Ok(all)
    }
}

/// The request for the addresses of one family on a link.
pub(super) fn listing(family: Family, index: u32) -> Request {
    let mut message = AddressMessage::default();
    message.header.family = family.into();
    message.header.index = index;
    Request::new(RTM_GETADDR, &message)
}

fn message(link: &Link, net: IpNet) -> AddressMessage {
    match net.addr() {
        IpAddr::V4(ip) => AddressMessageBuilder::<std::net::Ipv4Addr>::new()
            .index(link.index)
            .address(ip, net.prefix_len())
            .build(),
        IpAddr::V6(ip) => AddressMessageBuilder::<std::net::Ipv6Addr>::new()
            .index(link.index)
            .address(ip, net.prefix_len())
            .build(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn address_keeps_its_attributes_without_the_kernel_s_own() {
        // 10.1.2.3/24 of link 7, permanent, label eth0, and IFA_CACHEINFO, which is not kept
        let mut payload = vec![2, 24, 0x80, 0, 7, 0, 0, 0];
        payload.extend([
            8, 0, 1, 0, 10, 1, 2, 3, 8, 0, 2, 0, 10, 1, 2, 3, 9, 0, 3, 0, b'e', b't', b'h', b'0',
            0, 0, 0, 0,
        ]);
        payload.extend([8, 0, 8, 0, 0x80, 0, 0, 0, 8, 0, 6, 0, 1, 1, 1, 1]);
        let kept = KeptAddress::read(&payload, 7).unwrap();
        assert_eq!(kept.as_text(), "021800 010a010203 020a010203 036574683000 0880000000");
        let message = kept.message(9).unwrap();
        assert_eq!(
            (message.header.index, message.header.prefix_len, message.attributes.len()),
            (9, 24, 4)
        );
        assert_eq!(KeptAddress::read(&payload, 8), None, "another link's");
        for torn in ["", "02", "021800 01zz", "021800 "] {
            assert!(KeptAddress::from_text(torn).message(9).is_none(), "{torn:?}");
        }
    }
}
