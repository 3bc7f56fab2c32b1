//! Addresses and routes with everything that the kernel reports. One that is restored, or copied to
//! another table, loses nothing, not even attributes that only a newer kernel knows.

use std::cmp::Reverse;
use std::net::IpAddr;

use ipnet::IpNet;
use nix::libc::RTM_F_CLONED;
use rtnetlink::packet_core::{DefaultNla, Emitable as _, NLM_F_APPEND, NLM_F_CREATE};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeader, AddressMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteFlags, RouteHeader, RouteMessage};

use super::addr::listing;
use super::attr::{Attrs, octets, read_ip, read_u32};
use super::link::Link;
use super::route::{LOCAL, MAIN, Route, Scope, hop_gateway, hop_length, hops};
use super::socket::{Netlink, RTM_DELROUTE, RTM_GETROUTE, RTM_NEWADDR, RTM_NEWROUTE, Request};
use crate::error::Result;
use crate::family::Family;

/// rtmsg.
const ROUTE_HEADER: usize = 12;
/// ifaddrmsg.
const ADDRESS_HEADER: usize = 8;
/// The offsets of the fields of rtnexthop.
const RTNH_FLAGS: usize = 2;
const RTNH_IFINDEX: usize = 4;
/// The offset in rta_cacheinfo of the remaining lifetime.
const RTA_EXPIRES_LEFT: usize = 8;

// linux/rtnetlink.h
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_CACHEINFO: u16 = 12;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTA_EXPIRES: u16 = 23;
const RTA_NH_ID: u16 = 30;
/// The only flag of a hop that is configuration; the others are the hop's state, and the kernel
/// refuses them in a request.
const RTNH_F_ONLINK: u8 = 4;
/// The unit of rta_cacheinfo, in ticks per second.
const USER_HZ: i32 = 100;

// linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_DADFAILED: u32 = 0x08;

// linux/rtnetlink.h, within RTA_METRICS
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
/// IP6_RT_PRIO_USER of linux/ipv6_route.h: the metric of an IPv6 route that names none.
const USUAL_V6_METRIC: u32 = 1024;

/// The attributes after a message's header, by type.
type Attributes = Vec<(u16, Vec<u8>)>;

fn owned(attrs: Attrs<'_>) -> Attributes {
    attrs.iter().map(|(kind, value)| (kind, value.to_vec())).collect()
}

fn find(attributes: &Attributes, kind: u16) -> Option<&[u8]> {
    attributes.iter().find(|(found, _)| *found == kind).map(|(_, value)| value.as_slice())
}

fn find_u32(attributes: &Attributes, kind: u16) -> Option<u32> {
    read_u32(find(attributes, kind)?, 0)
}

fn find_ip(attributes: &Attributes, kind: u16) -> Option<IpAddr> {
    read_ip(find(attributes, kind)?)
}

/// The values of all attributes of this type.
fn find_mut(attributes: &mut Attributes, kind: u16) -> impl Iterator<Item = &mut Vec<u8>> {
    attributes.iter_mut().filter(move |(found, _)| *found == kind).map(|(_, value)| value)
}

/// A route all of whose hops go through one link. Of an IPv6 route with several hops it has those
/// through that link: the kernel keeps each hop as a route of its own, and reports the equivalent
/// routes of several links as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// The destination.
    pub dst: IpNet,
    /// The table.
    pub table: u32,
    header: RouteHeader,
    attributes: Attributes,
}

impl RouteEntry {
    /// Reads a route; None for a route that the kernel maintains itself, and for one of another
    /// link: kernels without strict checking send all.
    fn read(payload: &[u8], family: Family, link: &Link) -> Option<RouteEntry> {
        let is_of_family = |header: &RouteHeader| header.address_family == family.into();
        let header = RouteHeader::parse(payload).ok().filter(is_of_family)?;
        let mut attributes = owned(Attrs::after(payload, ROUTE_HEADER));
        if family == Family::V6 {
            for list in find_mut(&mut attributes, RTA_MULTIPATH) {
                let kept = hops(list).filter(|hop| is_hop_through(hop, link));
                *list = kept.flatten().copied().collect();
            }
        }
        let dst = find(&attributes, RTA_DST).map_or(Some(family.unspecified()), read_ip)?;
        let dst = IpNet::new(dst, header.destination_prefix_length).ok()?;
        let table = find_u32(&attributes, RTA_TABLE).unwrap_or(u32::from(header.table));
        let is_of_kernel = table == LOCAL || header.flags.bits() & RTM_F_CLONED != 0;
        let entry = RouteEntry { dst, table, header, attributes };
        (entry.is_through(link) && !is_of_kernel).then_some(entry)
    }

    /// The route as a request adds it: rtmsg and its attributes.
    pub fn to_octets(&self) -> Vec<u8> {
        let message = self.message();
        let mut octets = vec![0; message.buffer_len()];
        message.emit(&mut octets);
        octets
    }

    /// Reads [`RouteEntry::to_octets`]; None for something else, for a route of another link, and for
    /// one that expires: a router announces it again.
    pub fn from_octets(octets: &[u8], link: &Link) -> Option<RouteEntry> {
        let mut read = Family::ALL.iter().filter_map(|of| RouteEntry::read(octets, *of, link));
        read.next().filter(|route| find(&route.attributes, RTA_EXPIRES).is_none())
    }

    fn is_through(&self, link: &Link) -> bool {
        match find(&self.attributes, RTA_OIF) {
            Some(oif) => read_u32(oif, 0) == Some(link.index),
            None => {
                let list = self.hops();
                !list.is_empty() && hops(list).all(|hop| is_hop_through(hop, link))
            }
        }
    }

    /// The list of rtnexthop; empty for a route with a single hop.
    fn hops(&self) -> &[u8] {
        find(&self.attributes, RTA_MULTIPATH).unwrap_or_default()
    }

    /// The next hops; empty if the destination is on the link.
    pub fn gateways(&self) -> Vec<IpAddr> {
        let gateway = find_ip(&self.attributes, RTA_GATEWAY);
        gateway.into_iter().chain(hops(self.hops()).filter_map(hop_gateway)).collect()
    }

    /// The preferred source address.
    pub fn source(&self) -> Option<IpAddr> {
        find_ip(&self.attributes, RTA_PREFSRC)
    }

    /// How far its destination is; [`Scope::UNIVERSE`] for any route of IPv6.
    pub fn scope(&self) -> Scope {
        Scope(self.header.scope.into())
    }

    /// The metric; None without one.
    pub fn priority(&self) -> Option<u32> {
        find_u32(&self.attributes, RTA_PRIORITY)
    }

    /// A value of RTA_METRICS, which is nested; None if the route leaves it to the link.
    fn metric(&self, kind: u16) -> Option<u32> {
        Attrs::of(find(&self.attributes, RTA_METRICS)?).u32(kind)
    }

    /// Whether it is in the main table, which is looked up by default.
    pub fn is_in_main(&self) -> bool {
        self.table == MAIN
    }

    /// The same route in another table.
    #[must_use]
    pub fn in_table(&self, table: u32) -> RouteEntry {
        RouteEntry { table, ..self.clone() }
    }

    /// The same route through another gateway, if it has a gateway of its own.
    #[must_use]
    pub fn by(&self, gateway: IpAddr) -> RouteEntry {
        let mut route = self.clone();
        find_mut(&mut route.attributes, RTA_GATEWAY).for_each(|value| *value = octets(gateway));
        route
    }

    /// The same route with a gateway that no route leads to: the kernel assumes it to be on the
    /// link.
    #[must_use]
    pub fn on_link(&self) -> RouteEntry {
        let mut route = self.clone();
        route.header.flags |= RouteFlags::from_bits_retain(RTNH_F_ONLINK.into());
        route
    }

    /// Sorts so that each route comes after the routes that its gateway is reached by.
    pub fn sort_by_dependence(routes: &mut [RouteEntry]) {
        routes.sort_by_key(|route| {
            let has_gateway =
                !route.gateways().is_empty() || find(&route.attributes, RTA_VIA).is_some();
            (has_gateway, Reverse(u8::from(route.header.scope)))
        });
    }

    fn text(&self, link: &Link) -> String {
        let via: String = self.gateways().iter().map(|gateway| format!(" via {gateway}")).collect();
        format!("{}{via} dev {:?} table {}", self.dst, link.name, self.table)
    }

    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header = self.header.clone();
        message.header.flags &= RouteFlags::from_bits_retain(RTNH_F_ONLINK.into());
        message.header.table = u8::try_from(self.table).unwrap_or_default(); // RT_TABLE_UNSPEC: the attribute says which
        let lasting = self.attributes.iter().filter_map(|(kind, value)| lasting(*kind, value));
        let lasting = lasting.map(|(kind, value)| DefaultNla::new(kind, value));
        message.attributes = lasting.map(RouteAttribute::Other).collect();
        message.attributes.push(RouteAttribute::Table(self.table));
        message
    }
}

impl Route {
    /// Whether the kernel has it so: the same table, destination, next hop, metric, MTU and segment
    /// size. A scope counts only if it is another than the usual one, since a route that the kernel
    /// made may have a narrower one. Its origin does not count.
    pub fn is(&self, found: &RouteEntry) -> bool {
        // 0.0.0.0 is the link itself, which the kernel reports without a gateway.
        let mut wanted: Vec<_> = self.gateways().filter(|ip| !ip.is_unspecified()).collect();
        let mut present = found.gateways();
        wanted.sort_unstable(); // the kernel need not keep the order of IPv6 hops
        present.sort_unstable();
        let is_v6 = Family::of_net(self.dst) == Family::V6;
        let usual_metric = if is_v6 { USUAL_V6_METRIC } else { 0 };
        let has_scope = self.scope == Scope::UNIVERSE || is_v6 || self.scope == found.scope();
        self.is_to(found)
            && present == wanted
            && self.priority.unwrap_or(usual_metric) == found.priority().unwrap_or_default()
            && has_scope
            && self.mtu == found.metric(RTAX_MTU)
            && self.advmss == found.metric(RTAX_ADVMSS)
    }

    /// Whether the route of the kernel has the same destination in the same table.
    pub fn is_to(&self, found: &RouteEntry) -> bool {
        found.dst == self.dst && found.table == self.table.unwrap_or(MAIN)
    }
}

/// An attribute as the kernel accepts it in a request; None for one that it only reports.
fn lasting(kind: u16, value: &[u8]) -> Option<(u16, Vec<u8>)> {
    match kind {
        RTA_TABLE => None,
        // The hops follow expanded, and the kernel accepts only one of the two. The nexthop object
        // is removed when its link goes down.
        RTA_NH_ID => None,
        RTA_CACHEINFO => expiry(value),
        RTA_MULTIPATH => Some((kind, with_wishes_only(value))),
        _ => Some((kind, value.to_vec())),
    }
}

/// RTA_EXPIRES of a route that a router announced, from rta_cacheinfo.
fn expiry(cacheinfo: &[u8]) -> Option<(u16, Vec<u8>)> {
    let left = read_u32(cacheinfo, RTA_EXPIRES_LEFT)?.cast_signed();
    let seconds = (left / USER_HZ).max(1); // negative when the kernel is late to remove it; 0 would mean no expiry
    (left != 0).then(|| (RTA_EXPIRES, seconds.to_ne_bytes().to_vec()))
}

fn is_hop_through(hop: &[u8], link: &Link) -> bool {
    read_u32(hop, RTNH_IFINDEX) == Some(link.index)
}

fn with_wishes_only(hops: &[u8]) -> Vec<u8> {
    let mut all = hops.to_vec();
    let mut offset = 0;
    while let Some(length) = hop_length(&all, offset) {
        if let Some(flags) = all.get_mut(offset + RTNH_FLAGS) {
            *flags &= RTNH_F_ONLINK;
        }
        offset += length.next_multiple_of(4);
    }
    all
}

/// An IPv6 address of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressEntry {
    /// The address with its prefix.
    pub net: IpNet,
    header: AddressHeader,
    attributes: Attributes,
}

impl AddressEntry {
    /// Reads an address; None for an address that must not be restored: a temporary one, which the
    /// kernel generates again, and one that belongs to another host.
    fn read(payload: &[u8], link: &Link) -> Option<AddressEntry> {
        let header = AddressHeader::parse(payload).ok()?;
        let attributes = owned(Attrs::after(payload, ADDRESS_HEADER));
        let address =
            find(&attributes, IFA_LOCAL).or(find(&attributes, IFA_ADDRESS)).and_then(read_ip)?;
        let net = IpNet::new(address, header.prefix_len).ok()?;
        let is_of_link = header.family == AddressFamily::Inet6 && header.index == link.index;
        let flags = find_u32(&attributes, IFA_FLAGS).unwrap_or_default();
        let is_restorable = flags & (IFA_F_TEMPORARY | IFA_F_DADFAILED) == 0;
        (is_of_link && is_restorable).then_some(AddressEntry { net, header, attributes })
    }

    fn message(&self) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header = self.header.clone();
        let attributes = self.attributes.iter();
        message.attributes = attributes
            .map(|(kind, value)| AddressAttribute::Other(DefaultNla::new(*kind, value.clone())))
            .collect();
        message
    }
}

impl Netlink {
    /// The routes through this link and no other, in all tables but the kernel's own.
    pub fn routes_through(&self, link: &Link) -> Result<Vec<RouteEntry>> {
        let what = format_args!("list the routes through link {:?}", link.name);
        let mut all = vec![];
        for family in Family::ALL {
            let mut message = RouteMessage::default();
            message.header.address_family = family.into();
            message.attributes = vec![RouteAttribute::Oif(link.index)];
            let request = Request::new(RTM_GETROUTE, &message);
            let read = |payload: &[u8]| RouteEntry::read(payload, family, link);
            all.extend(self.dump(&request, what, read)?);
        }
        Ok(all)
    }

    /// Adds a route after any other to its destination; the very same route may exist already.
    pub fn put_route(&self, link: &Link, route: &RouteEntry) -> Result<()> {
        let what = format_args!("add route {}", route.text(link));
        let request = Request::new(RTM_NEWROUTE, &route.message());
        done_if_there(self.request(&request, NLM_F_CREATE | NLM_F_APPEND, what))
    }

    /// Removes exactly this route, if it exists.
    pub fn delete_route(&self, link: &Link, route: &RouteEntry) -> Result<()> {
        let what = format_args!("delete route {}", route.text(link));
        self.remove(&Request::new(RTM_DELROUTE, &route.message()), what)
    }

    /// The IPv6 addresses of a link.
    pub fn ipv6_addresses(&self, link: &Link) -> Result<Vec<AddressEntry>> {
        let what = format_args!("list the IPv6 addresses of link {:?}", link.name);
        self.dump(&listing(Family::V6, link.index), what, |payload| {
            AddressEntry::read(payload, link)
        })
    }

    /// Restores an address of the link, unless it is still there.
    pub fn put_address(&self, link: &Link, address: &AddressEntry) -> Result<()> {
        let what = format_args!("add address {} to link {:?}", address.net, link.name);
        done_if_there(self.add(&Request::new(RTM_NEWADDR, &address.message()), what))
    }
}

fn done_if_there(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_exists() => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::super::route::HOP_HEADER;
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn hop(flags: u8, index: u32, gateway: [u8; 4]) -> Vec<u8> {
        let gateway = attribute(RTA_GATEWAY, &gateway);
        let mut bytes = ((HOP_HEADER + gateway.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend([flags, 0]);
        bytes.extend(index.to_ne_bytes());
        bytes.extend(gateway);
        bytes
    }

    fn payload(attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut payload = vec![2, 8, 0, 0, 254, 4, 0, 1, 0x10, 0, 0, 0];
        payload.extend(attribute(RTA_DST, &[10, 0, 0, 0]));
        payload.extend(attributes.concat());
        payload
    }

    fn link() -> Link {
        Link { index: 7, name: "net1".into(), ..Link::default() }
    }

    fn read(attributes: &[Vec<u8>]) -> Option<RouteEntry> {
        RouteEntry::read(&payload(attributes), Family::V4, &link())
    }

    #[test]
    fn a_route_is_of_the_link_only_when_every_hop_is() {
        assert!(read(&[attribute(RTA_OIF, &7u32.to_ne_bytes())]).is_some());
        assert!(read(&[attribute(RTA_OIF, &8u32.to_ne_bytes())]).is_none());
        let hops = |second| [hop(0, 7, [10, 1, 0, 1]), hop(0, second, [10, 1, 0, 2])].concat();
        let both = read(&[attribute(RTA_MULTIPATH, &hops(7))]).unwrap();
        assert_eq!(
            both.gateways(),
            ["10.1.0.1", "10.1.0.2"].map(|ip| ip.parse::<IpAddr>().unwrap())
        );
        assert!(read(&[attribute(RTA_MULTIPATH, &hops(8))]).is_none());
        assert!(read(&[]).is_none());
    }

    #[test]
    fn of_an_ipv6_route_through_several_links_the_own_hops_are_kept() {
        let list = [hop(0, 8, [1; 4]), hop(0, 7, [2; 4])].concat();
        let mut payload = payload(&[]);
        payload.truncate(ROUTE_HEADER);
        payload[0] = 10;
        payload[1] = 0;
        payload.extend(attribute(RTA_MULTIPATH, &list));
        let read = |link: &Link| RouteEntry::read(&payload, Family::V6, link);
        assert_eq!(
            find(&read(&link()).unwrap().attributes, RTA_MULTIPATH),
            Some(hop(0, 7, [2; 4]).as_slice())
        );
        assert!(read(&Link { index: 9, ..Link::default() }).is_none());
    }

    #[test]
    fn what_is_put_back_is_what_was_told_but_for_its_state() {
        let oif = attribute(RTA_OIF, &7u32.to_ne_bytes());
        let unknown = attribute(99, &[1, 2, 3, 4]);
        let table = attribute(RTA_TABLE, &254u32.to_ne_bytes());
        let cacheinfo = attribute(
            RTA_CACHEINFO,
            &[[0; 8].as_slice(), &1250u32.to_ne_bytes(), &[0; 16]].concat(),
        );
        let entry =
            read(&[table, oif, unknown, attribute(RTA_NH_ID, &[1, 0, 0, 0]), cacheinfo]).unwrap();
        let message = entry.in_table(500).message();
        assert_eq!((message.header.table, message.header.flags.bits()), (0, 0));
        let other =
            |kind, value: &[u8]| RouteAttribute::Other(DefaultNla::new(kind, value.to_vec()));
        assert_eq!(
            message.attributes,
            [
                other(RTA_DST, &[10, 0, 0, 0]),
                other(RTA_OIF, &7u32.to_ne_bytes()),
                other(99, &[1, 2, 3, 4]),
                other(RTA_EXPIRES, &12u32.to_ne_bytes()),
                RouteAttribute::Table(500),
            ]
        );
    }

    #[test]
    fn a_route_that_has_an_end_gets_no_endless_life() {
        let expiry_of =
            |left: i32| expiry(&[[0; 8].as_slice(), &left.to_ne_bytes(), &[0; 16]].concat());
        assert_eq!(expiry_of(0), None);
        for (left, seconds) in [(-700, 1u32), (-1, 1), (1, 1), (1250, 12)] {
            assert_eq!(
                expiry_of(left),
                Some((RTA_EXPIRES, seconds.to_ne_bytes().to_vec())),
                "{left}"
            );
        }
    }

    #[test]
    fn of_a_hop_only_wishes_are_put_back() {
        let list = [hop(RTNH_F_ONLINK | 16, 7, [10, 1, 0, 1]), hop(1, 7, [10, 1, 0, 2])].concat();
        let put = with_wishes_only(&list);
        assert_eq!(hops(&put).map(|hop| hop[2]).collect::<Vec<_>>(), [RTNH_F_ONLINK, 0]);
        assert_eq!(with_wishes_only(&[8, 0]), [8, 0], "a list that is cut off");
    }

    #[test]
    fn a_route_comes_after_those_that_its_gateway_is_reached_by() {
        let oif = attribute(RTA_OIF, &7u32.to_ne_bytes());
        let mut far = read(&[oif.clone(), attribute(RTA_GATEWAY, &[10, 1, 0, 1])]).unwrap();
        far.dst = "0.0.0.0/0".parse().unwrap();
        let near = read(&[oif]).unwrap();
        let mut routes = [far.clone(), near.clone()];
        RouteEntry::sort_by_dependence(&mut routes);
        assert_eq!(routes, [near, far]);
    }
}
