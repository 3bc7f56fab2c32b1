//! Addresses: `ip address`.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::AddressMessageBuilder;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use super::Netlink;
use super::attr::{Attrs, read_u32};
use super::link::{Link, none_if_gone};
use crate::error::Result;

/// ifaddrmsg.
const HEADER: usize = 8;

// linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_PERMANENT: u32 = 0x80;

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address with its prefix.
    pub net: IpNet,
    /// Duplicate address detection still runs.
    pub tentative: bool,
    /// Duplicate address detection found another owner.
    pub dad_failed: bool,
    /// It stays until it is removed; none that a router announced.
    pub permanent: bool,
}

impl Address {
    /// The address if the message is about the link `index`: kernels without strict checking send those of all links.
    fn read(payload: &[u8], index: u32) -> Option<Address> {
        let attrs = Attrs::after(payload, HEADER);
        let ip = attrs.ip(IFA_LOCAL).or(attrs.ip(IFA_ADDRESS))?;
        let net = IpNet::new(ip, *payload.get(1)?).ok()?;
        let flags = attrs.u32(IFA_FLAGS).unwrap_or_default();
        let is_set = |flag| flags & flag != 0;
        let (tentative, dad_failed) = (is_set(IFA_F_TENTATIVE), is_set(IFA_F_DADFAILED));
        let address = Address { net, tentative, dad_failed, permanent: is_set(IFA_F_PERMANENT) };
        (read_u32(payload, 4)? == index).then_some(address)
    }
}

/// How an address is added.
#[derive(Clone, Copy, Debug)]
pub struct AddressOptions {
    /// IPv6: look for another owner before the address is used.
    pub detect_duplicates: bool,
    /// Route the address's subnet to the link.
    pub subnet_on_link: bool,
}

impl Netlink {
    /// Adds an address. IPv6 without duplicate address detection can be used at once.
    pub fn add_address(&self, link: &Link, net: IpNet, options: AddressOptions) -> Result<()> {
        let mut message = message(link, net);
        let mut flags = AddressFlags::empty();
        flags.set(AddressFlags::Nodad, net.addr().is_ipv6() && !options.detect_duplicates);
        flags.set(AddressFlags::Noprefixroute, !options.subnet_on_link);
        if !flags.is_empty() {
            message.attributes.push(AddressAttribute::Flags(flags));
        }
        let what = format_args!("add address {net} to link {:?}", link.name);
        self.request(Message::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL, what)
    }

    /// Removes an address if it is there.
    pub fn delete_address(&self, link: &Link, net: IpNet) -> Result<()> {
        let what = format_args!("delete address {net} of link {:?}", link.name);
        none_if_gone(self.request(Message::DelAddress(message(link, net)), 0, what)).map(drop)
    }

    /// The addresses of a link, of both families.
    pub fn addresses(&self, link: &Link) -> Result<Vec<Address>> {
        let mut all = vec![];
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = AddressMessage::default();
            message.header.family = family;
            message.header.index = link.index;
            let what = format_args!("list the addresses of link {:?}", link.name);
            all.extend(
                self.dump(Message::GetAddress(message), what, |reply| Address::read(reply.payload, link.index))?,
            );
        }
        Ok(all)
    }
}

fn message(link: &Link, net: IpNet) -> AddressMessage {
    match net.addr() {
        IpAddr::V4(ip) => {
            AddressMessageBuilder::<std::net::Ipv4Addr>::new().index(link.index).address(ip, net.prefix_len()).build()
        }
        IpAddr::V6(ip) => {
            AddressMessageBuilder::<std::net::Ipv6Addr>::new().index(link.index).address(ip, net.prefix_len()).build()
        }
    }
}
