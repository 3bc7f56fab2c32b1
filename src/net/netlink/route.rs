//! Routes: `ip route`.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use nix::errno::Errno;
use nix::libc::{
    AF_INET, AF_INET6, RT_SCOPE_HOST, RT_SCOPE_LINK, RT_SCOPE_NOWHERE, RT_SCOPE_SITE,
    RT_SCOPE_UNIVERSE, RT_TABLE_LOCAL, RT_TABLE_MAIN, RT_TABLE_UNSPEC, RTM_F_CLONED, RTN_LOCAL,
    RTN_UNICAST,
};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_DUMP};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};

use super::attr::{Attributes, Attrs, octets, read_u16, read_u32};
use super::link::Link;
use super::socket::{Netlink, RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE, Request, refused};
use crate::error::{Error, Result};
use crate::family::Family;

/// rtmsg.
const HEADER: usize = 12;
/// The offsets of its fields.
const RTM_FAMILY: usize = 0;
const RTM_DST_LEN: usize = 1;
const RTM_TABLE: usize = 4;
const RTM_PROTOCOL: usize = 5;
const RTM_TYPE: usize = 7;
const RTM_FLAGS: usize = 8;
/// rtnexthop, and the offset in it of the link's index.
pub(super) const HOP_HEADER: usize = 8;
const RTNH_IFINDEX: usize = 4;
/// The main table, which is looked up by default.
pub(super) const MAIN: u32 = RT_TABLE_MAIN as u32;
/// The table that the kernel maintains itself.
pub(super) const LOCAL: u32 = RT_TABLE_LOCAL as u32;

// linux/rtnetlink.h
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;

/// RTPROT_RA and RTPROT_DHCP.
const LEASING: [u8; 2] = [9, 16];

/// How far a route's destination is: `scope` of `ip route`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope(pub u8);

impl Scope {
    /// Behind a gateway.
    pub const UNIVERSE: Scope = Scope(RT_SCOPE_UNIVERSE);
    /// On the link.
    pub const LINK: Scope = Scope(RT_SCOPE_LINK);
    /// On this host.
    pub const HOST: Scope = Scope(RT_SCOPE_HOST);
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            RT_SCOPE_UNIVERSE => f.write_str("universe"),
            RT_SCOPE_SITE => f.write_str("site"),
            RT_SCOPE_LINK => f.write_str("link"),
            RT_SCOPE_HOST => f.write_str("host"),
            RT_SCOPE_NOWHERE => f.write_str("nowhere"),
            other => write!(f, "{other}"),
        }
    }
}

/// A route through one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub dst: IpNet,
    /// The next hop; None if the destination is on the link, or if there are several.
    pub gateway: Option<IpAddr>,
    /// The next hops, if there are several: the kernel distributes flows over them.
    pub hops: Vec<IpAddr>,
    /// The table; None for main.
    pub table: Option<u32>,
    /// How far the destination is.
    pub scope: Scope,
    /// The metric; lower is preferred.
    pub priority: Option<u32>,
    /// The path's MTU in bytes.
    pub mtu: Option<u32>,
    /// The maximum segment size that TCP advertises, in bytes.
    pub advmss: Option<u32>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
}

impl Route {
    /// A route to `dst` without any options.
    pub fn to(dst: IpNet) -> Route {
        Route {
            dst,
            gateway: None,
            hops: vec![],
            table: None,
            scope: Scope::UNIVERSE,
            priority: None,
            mtu: None,
            advmss: None,
            source: None,
        }
    }

    /// The next hops, of which there may be one, several or none.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        self.gateway.iter().chain(&self.hops).copied()
    }

    fn text(&self, link: &Link) -> String {
        let via: String = self.gateways().map(|gateway| format!(" via {gateway}")).collect();
        let table = self.table.map(|table| format!(" table {table}")).unwrap_or_default();
        format!("{}{via} dev {:?}{table}", self.dst, link.name)
    }

    fn message(&self, link: &Link) -> RouteMessage {
        let mut message = message_to(self.dst);
        message.header.protocol = RouteProtocol::Boot;
        message.header.scope = RouteScope::from(self.scope.0);
        let attributes = &mut message.attributes;
        if self.hops.is_empty() {
            attributes.push(RouteAttribute::Oif(link.index));
        } else {
            let hops = self.hops.iter().flat_map(|gateway| hop(link, *gateway)).collect();
            attributes.push(RouteAttribute::Other(DefaultNla::new(RTA_MULTIPATH, hops)));
        }
        attributes.extend(self.gateway.map(|ip| RouteAttribute::Gateway(ip.into())));
        attributes.extend(self.source.map(|ip| RouteAttribute::PrefSource(ip.into())));
        attributes.extend(self.priority.map(RouteAttribute::Priority));
        let mtu = self.mtu.map(RouteMetric::Mtu);
        let metrics: Vec<_> = mtu.into_iter().chain(self.advmss.map(RouteMetric::Advmss)).collect();
        if !metrics.is_empty() {
            attributes.push(RouteAttribute::Metrics(metrics));
        }
        match u8::try_from(self.table.unwrap_or(MAIN)) {
            Ok(table) => message.header.table = table,
            Err(_) => {
                message.header.table = RT_TABLE_UNSPEC; // the attribute has the number
                message.attributes.extend(self.table.map(RouteAttribute::Table));
            }
        }
        message
    }

    /// The request to add the route; fails if it has addresses of different families.
    fn creation(&self, link: &Link) -> Result<Request> {
        let is_other = |ip: &IpAddr| Family::of(*ip) != Family::of_net(self.dst);
        let what = match self.gateways().find(is_other) {
            Some(gateway) => format!("gateway {gateway}"),
            None if self.source.is_some_and(|ip| is_other(&ip)) => "the source".to_owned(),
            None => return Ok(Request::new(RTM_NEWROUTE, &self.message(link))),
        };
        Err(Error::config("routes", format_args!("{what} is not of the family of {}", self.dst)))
    }
}

/// The message that selects a destination.
fn message_to(dst: IpNet) -> RouteMessage {
    match dst {
        IpNet::V4(dst) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(dst.addr(), dst.prefix_len())
            .build(),
        IpNet::V6(dst) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(dst.addr(), dst.prefix_len())
            .build(),
    }
}

fn table_of(payload: &[u8]) -> Option<u32> {
    let number = u32::from(*payload.get(RTM_TABLE)?);
    Some(Attrs::after(payload, HEADER).u32(RTA_TABLE).unwrap_or(number))
}

/// A route as the kernel has it; one with several hops has several gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRoute {
    /// The destination.
    pub dst: IpNet,
    /// The next hops.
    pub gateways: Vec<IpAddr>,
    /// ifindex of its link; of the first hop's for one with several.
    pub link: Option<u32>,
    /// The table.
    pub table: u32,
    /// The metric; lower is preferred.
    pub metric: u32,
    /// Whether a router or a DHCP client of the namespace gave it.
    pub is_leased: bool,
}

impl FoundRoute {
    /// Reads a route; None for one that the kernel maintains itself.
    fn read(payload: &[u8]) -> Option<FoundRoute> {
        let attrs = Attrs::after(payload, HEADER);
        let dst = destination(payload)?;
        let hops_of_route = attrs.bytes(RTA_MULTIPATH).unwrap_or_default();
        let gateways = hops(hops_of_route).filter_map(hop_gateway);
        let gateways = attrs.ip(RTA_GATEWAY).into_iter().chain(gateways).collect();
        let table = table_of(payload)?;
        let metric = attrs.u32(RTA_PRIORITY).unwrap_or_default();
        let is_leased = payload.get(RTM_PROTOCOL).is_some_and(|by| LEASING.contains(by));
        let link = attrs.u32(RTA_OIF).or_else(|| hop_link(hops_of_route));
        (table != LOCAL).then_some(FoundRoute { dst, gateways, link, table, metric, is_leased })
    }

    /// Whether it is a default route of the main table.
    pub fn is_default(&self, family: Family) -> bool {
        self.dst == family.whole() && self.table == MAIN
    }
}

/// A packet that the kernel is asked about: `ip route get`.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Its source address.
    pub from: IpAddr,
    /// Its destination.
    pub to: IpAddr,
    /// ifindex of the link that it comes in by; None for one that is sent here.
    pub comes_by: Option<u32>,
}

/// Where the kernel sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the link with this ifindex.
    Link(u32),
    /// Nowhere: ENETUNREACH without a route; EINVAL, EACCES or EHOSTUNREACH of a rule or a route that
    /// is a blackhole, prohibits or is unreachable. EHOSTUNREACH also where IPv4 is not forwarded, and
    /// EXDEV, or EINVAL of older kernels, where its source is refused (rp_filter).
    Nowhere(Errno),
}

/// The links of a default route in the main table: one for each hop.
fn default_links(payload: &[u8]) -> Vec<u32> {
    let kind = (payload.get(RTM_DST_LEN), payload.get(RTM_TYPE), table_of(payload));
    if kind != (Some(&0), Some(&RTN_UNICAST), Some(MAIN)) {
        return vec![];
    }
    let attrs = Attrs::after(payload, HEADER);
    match attrs.u32(RTA_OIF) {
        Some(link) => vec![link],
        None => hops(attrs.bytes(RTA_MULTIPATH).unwrap_or_default()).filter_map(hop_link).collect(),
    }
}

fn hop_link(hop: &[u8]) -> Option<u32> {
    read_u32(hop, RTNH_IFINDEX)
}

/// A rtnexthop of this gateway through the link.
fn hop(link: &Link, gateway: IpAddr) -> Vec<u8> {
    let mut attributes = Attributes::default();
    attributes.raw(RTA_GATEWAY, &octets(gateway));
    let length = (HOP_HEADER + attributes.bytes().len()) as u16;
    let mut hop = [length.to_ne_bytes(), [0; 2]].concat(); // without flags, of the smallest weight
    hop.extend(link.index.to_ne_bytes());
    hop.extend(attributes.bytes());
    hop
}

/// The gateway of a rtnexthop.
pub(super) fn hop_gateway(hop: &[u8]) -> Option<IpAddr> {
    Attrs::after(hop, HOP_HEADER).ip(RTA_GATEWAY)
}

/// The length of the rtnexthop that begins at `offset`.
pub(super) fn hop_length(list: &[u8], offset: usize) -> Option<usize> {
    read_u16(list, offset).map(usize::from).filter(|length| *length >= HOP_HEADER)
}

/// Each rtnexthop of a list.
pub(super) fn hops(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = list;
    std::iter::from_fn(move || {
        let length = hop_length(rest, 0)?;
        let hop = rest.get(..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(hop)
    })
}

impl Netlink {
    /// Adds a route; one with the same destination but another next hop or another metric may
    /// exist.
    pub fn add_route(&self, link: &Link, route: &Route) -> Result<()> {
        let what = format_args!("add route {}", route.text(link));
        self.request(&route.creation(link)?, NLM_F_CREATE, what)
    }

    /// Adds a route that must be the only one to its destination with its metric.
    pub fn add_only_route(&self, link: &Link, route: &Route) -> Result<()> {
        let what = format_args!("add route {}", route.text(link));
        self.add(&route.creation(link)?, what)
    }

    /// Removes exactly the route that [`Netlink::add_only_route`] adds, if it exists.
    pub fn remove_route(&self, link: &Link, route: &Route) -> Result<()> {
        let what = format_args!("delete route {}", route.text(link));
        self.remove(&Request::new(RTM_DELROUTE, &route.message(link)), what)
    }

    /// ifindex of the link that the default route goes through: the preferred route, IPv4's before
    /// IPv6's, the first hop of several. The kernel lists default routes first, so not all routes
    /// are read; the socket is unusable afterwards.
    pub fn into_default_link(self) -> Result<Option<u32>> {
        let mut found = None;
        for family in Family::ALL {
            self.walk_routes(family, |payload| {
                found = default_links(payload).into_iter().next();
                found.is_some()
            })?;
            if found.is_some() {
                break;
            }
        }
        Ok(found)
    }

    /// The ifindexes of the links that the family's default routes go through: every hop of each.
    /// The kernel lists those of IPv4 before all other routes, which are not read then; the socket
    /// is unusable afterwards.
    pub fn into_default_links(self, family: Family) -> Result<BTreeSet<u32>> {
        let mut links = BTreeSet::new();
        self.walk_routes(family, |payload| {
            let is_of_main = family == Family::V4 && table_of(payload) == Some(MAIN);
            links.extend(default_links(payload));
            is_of_main && payload.get(RTM_DST_LEN).is_some_and(|length| *length != 0)
        })?;
        Ok(links)
    }

    /// Reads the main table until `is_enough`.
    fn walk_routes(&self, family: Family, is_enough: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family.into();
        message.header.table = MAIN as u8;
        self.walk(&message, "find the default route", is_enough)
    }

    /// Reads the routes that the message selects until `is_enough`.
    fn walk(
        &self,
        message: &RouteMessage,
        what: &str,
        mut is_enough: impl FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        let request = Request::new(RTM_GETROUTE, message);
        let seq = self.send(&request, NLM_F_DUMP).map_err(|e| Error::kernel(what, e))?;
        let read = self.transport.dump_until(seq, |reply| is_enough(reply.payload));
        read.map_err(|refusal| refused(what, refusal))
    }

    /// The host's own addresses of a family, as prefixes; None if the kernel lists more than `most`.
    /// One of more than one address is 127.0.0.0/8, or an administrator's route of the type
    /// `local`. The rest of a longer list stays in the socket, which is unusable afterwards.
    pub fn into_own_prefixes(self, family: Family, most: usize) -> Result<Option<Vec<IpNet>>> {
        let mut message = RouteMessage::default();
        message.header.address_family = family.into();
        message.header.table = RT_TABLE_LOCAL;
        message.header.kind = RouteType::Local;
        let what = "list the host's own addresses";
        let mut own = vec![];
        self.walk(&message, what, |payload| {
            // An older kernel lists the others, too.
            let is_local =
                table_of(payload) == Some(LOCAL) && payload.get(RTM_TYPE) == Some(&RTN_LOCAL);
            own.extend(destination(payload).filter(|_| is_local));
            own.len() > most
        })?;
        Ok(Some(own).filter(|own| own.len() <= most))
    }

    /// ifindex of the link that packets to `ip` leave by: `ip route get`.
    pub fn link_towards(&self, ip: IpAddr) -> Result<u32> {
        self.ask(ip, |payload| Attrs::after(payload, HEADER).u32(RTA_OIF))
    }

    /// Whether packets to `ip` are for this host.
    pub fn is_local(&self, ip: IpAddr) -> Result<bool> {
        self.ask(ip, |payload| payload.get(RTM_TYPE).map(|kind| *kind == RTN_LOCAL))
    }

    /// The way of a packet.
    pub fn way(&self, packet: Question) -> Result<Way> {
        let Question { from, to, comes_by } = packet;
        let mut message = asking(message_to(to.into()));
        message.header.source_prefix_length = IpNet::from(from).prefix_len();
        message.attributes.push(RouteAttribute::Source(from.into()));
        message.attributes.extend(comes_by.map(RouteAttribute::Iif));
        let request = Request::new(RTM_GETROUTE, &message);
        let what = format_args!("find the route from {from} to {to}");
        let read = |payload: &[u8]| Attrs::after(payload, HEADER).u32(RTA_OIF);
        self.get(&request, what, read).map(Way::Link).or_else(|error| {
            use Errno::{EACCES, EHOSTUNREACH, EINVAL, ENETUNREACH, EXDEV};
            let nowhere = [ENETUNREACH, EHOSTUNREACH, EACCES, EINVAL, EXDEV];
            match nowhere.into_iter().find(|errno| error.is_errno(*errno)) {
                Some(errno) => Ok(Way::Nowhere(errno)),
                None => Err(error),
            }
        })
    }

    /// Requests the route that packets to `ip` take.
    fn ask<T>(&self, ip: IpAddr, read: impl Fn(&[u8]) -> Option<T>) -> Result<T> {
        let request = Request::new(RTM_GETROUTE, &asking(message_to(ip.into())));
        self.get(&request, format_args!("find the route to {ip}"), read)
    }

    /// The routes of all tables, for CHECK; a container has few.
    pub fn routes(&self) -> Result<Vec<FoundRoute>> {
        let mut all = vec![];
        for family in Family::ALL {
            let mut message = RouteMessage::default();
            message.header.address_family = family.into();
            let request = Request::new(RTM_GETROUTE, &message);
            all.extend(self.dump(&request, "list the routes", |payload| {
                let flags = read_u32(payload, RTM_FLAGS).unwrap_or_default();
                FoundRoute::read(payload).filter(|_| flags & RTM_F_CLONED == 0)
            })?);
        }
        Ok(all)
    }
}

fn destination(payload: &[u8]) -> Option<IpNet> {
    let family = match i32::from(*payload.get(RTM_FAMILY)?) {
        AF_INET => Family::V4,
        AF_INET6 => Family::V6,
        _ => return None,
    };
    let any = family.unspecified();
    let address = Attrs::after(payload, HEADER).ip(RTA_DST).unwrap_or(any);
    IpNet::new(address, *payload.get(RTM_DST_LEN)?).ok()
}

/// With strict checking a message_to has a destination and nothing that only a route could have.
fn asking(mut message: RouteMessage) -> RouteMessage {
    message.header.table = RT_TABLE_UNSPEC;
    message.header.protocol = RouteProtocol::Unspec;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unspec;
    message
}
