//! Routes: `ip route`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use nix::libc::{
    AF_INET, AF_INET6, RT_SCOPE_HOST, RT_SCOPE_LINK, RT_SCOPE_NOWHERE, RT_SCOPE_SITE,
    RT_SCOPE_UNIVERSE, RT_TABLE_LOCAL, RT_TABLE_MAIN, RT_TABLE_UNSPEC, RTM_F_CLONED, RTN_LOCAL,
    RTN_UNICAST,
};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_DUMP};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};

use super::attr::{Attrs, read_u16, read_u32};
use super::link::Link;
use super::request::{RTM_GETROUTE, RTM_NEWROUTE, Request};
use super::socket::{Netlink, refused};
use crate::error::{Error, Result};
use crate::family::Family;

/// rtmsg.
const HEADER: usize = 12;
/// The offsets of its fields.
const RTM_FAMILY: usize = 0;
const RTM_DST_LEN: usize = 1;
const RTM_TABLE: usize = 4;
const RTM_TYPE: usize = 7;
const RTM_FLAGS: usize = 8;
/// rtnexthop, and the offset in it of the link's index.
const HOP_HEADER: usize = 8;
const RTNH_IFINDEX: usize = 4;
/// The main table, which is looked up by default.
pub(super) const MAIN: u32 = RT_TABLE_MAIN as u32;
/// The table that the kernel maintains itself.
pub(super) const LOCAL: u32 = RT_TABLE_LOCAL as u32;

// linux/rtnetlink.h
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;

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
    /// The next hop; None if the destination is on the link.
    pub gateway: Option<IpAddr>,
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
        let gateway = None;
        let table = None;
        let priority = None;
        let mtu = None;
        let advmss = None;
        let source = None;
        Route { dst, gateway, table, scope: Scope::UNIVERSE, priority, mtu, advmss, source }
    }

    fn text(&self, link: &Link) -> String {
        let gateway = self.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        let table = self.table.map(|table| format!(" table {table}")).unwrap_or_default();
        format!("{}{gateway} dev {:?}{table}", self.dst, link.name)
    }

    fn message(&self, link: &Link) -> Result<RouteMessage> {
        let mixed = |what: &str| {
            Error::config("routes", format_args!("{what} is not of the family of {}", self.dst))
        };
        let mut message = match (self.dst, self.gateway, self.source) {
            (IpNet::V4(dst), None | Some(IpAddr::V4(_)), None | Some(IpAddr::V4(_))) => {
                RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(dst.addr(), dst.prefix_len())
                    .build()
            }
            (IpNet::V6(dst), None | Some(IpAddr::V6(_)), None | Some(IpAddr::V6(_))) => {
                RouteMessageBuilder::<Ipv6Addr>::new()
                    .destination_prefix(dst.addr(), dst.prefix_len())
                    .build()
            }
            (_, Some(gateway), _) => return Err(mixed(&format!("gateway {gateway}"))),
            (_, None, _) => return Err(mixed("the source")),
        };
        message.header.protocol = RouteProtocol::Boot;
        message.header.scope = RouteScope::from(self.scope.0);
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Oif(link.index));
        attributes.extend(self.gateway.map(|ip| RouteAttribute::Gateway(ip.into())));
        attributes.extend(self.source.map(|ip| RouteAttribute::PrefSource(ip.into())));
        attributes.extend(self.priority.map(RouteAttribute::Priority));
        let metrics: Vec<RouteMetric> = self
            .mtu
            .map(RouteMetric::Mtu)
            .into_iter()
            .chain(self.advmss.map(RouteMetric::Advmss))
            .collect();
        if !metrics.is_empty() {
            attributes.push(RouteAttribute::Metrics(metrics));
        }
        match u8::try_from(self.table.unwrap_or(MAIN)) {
            Ok(table) => message.header.table = table,
            Err(_) => {
                message.header.table = RT_TABLE_UNSPEC; // the attribute has the number
                attributes.extend(self.table.map(RouteAttribute::Table));
            }
        }
        Ok(message)
    }

    /// Reads a route; None for one that the kernel maintains itself.
    fn read(payload: &[u8]) -> Option<FoundRoute> {
        let attrs = Attrs::after(payload, HEADER);
        let family = match i32::from(*payload.get(RTM_FAMILY)?) {
            AF_INET => Family::V4,
            AF_INET6 => Family::V6,
            _ => return None,
        };
        let any = family.unspecified();
        let dst = IpNet::new(attrs.ip(RTA_DST).unwrap_or(any), *payload.get(RTM_DST_LEN)?).ok()?;
        let table = attrs.u32(RTA_TABLE).unwrap_or(u32::from(*payload.get(RTM_TABLE)?));
        let mut gateways: Vec<IpAddr> = attrs.ip(RTA_GATEWAY).into_iter().collect();
        gateways.extend(nexthop_gateways(attrs.bytes(RTA_MULTIPATH).unwrap_or_default()));
        (table != LOCAL).then_some(FoundRoute { dst, gateways, table })
    }
}

/// A route as the kernel has it; one with several hops has several gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRoute {
    /// The destination.
    pub dst: IpNet,
    /// The next hops.
    pub gateways: Vec<IpAddr>,
    /// The table.
    pub table: u32,
}

/// The link of a default route in the main table.
fn default_link(payload: &[u8]) -> Option<u32> {
    let attrs = Attrs::after(payload, HEADER);
    let prefix_len = *payload.get(RTM_DST_LEN)?;
    let kind = *payload.get(RTM_TYPE)?;
    let table = attrs.u32(RTA_TABLE).unwrap_or(u32::from(*payload.get(RTM_TABLE)?));
    let first_hop = || read_u32(attrs.bytes(RTA_MULTIPATH)?, RTNH_IFINDEX);
    let link = attrs.u32(RTA_OIF).or_else(first_hop);
    link.filter(|_| (prefix_len, kind, table) == (0, RTN_UNICAST, MAIN))
}

/// The gateways in a list of rtnexthop.
fn nexthop_gateways(mut hops: &[u8]) -> Vec<IpAddr> {
    let mut gateways = vec![];
    while let Some(length) =
        read_u16(hops, 0).map(usize::from).filter(|length| *length >= HOP_HEADER)
    {
        gateways
            .extend(Attrs::of(hops.get(HOP_HEADER..length).unwrap_or_default()).ip(RTA_GATEWAY));
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    gateways
}

impl Netlink {
    /// Adds a route; one with the same destination but another next hop or another metric may
    /// exist.
    pub fn add_route(&self, link: &Link, route: &Route) -> Result<()> {
        let what = format_args!("add route {}", route.text(link));
        self.request(&Request::new(RTM_NEWROUTE, &route.message(link)?), NLM_F_CREATE, what)
    }

    /// Adds a route that must be the only one to its destination with its metric.
    pub fn add_only_route(&self, link: &Link, route: &Route) -> Result<()> {
        let what = format_args!("add route {}", route.text(link));
        self.add(&Request::new(RTM_NEWROUTE, &route.message(link)?), what)
    }

    /// ifindex of the link that the default route goes through: the preferred route, IPv4's before
    /// IPv6's, the first hop of several. The kernel lists default routes first, so not all routes
    /// are read; the socket is unusable afterwards.
    pub fn into_default_link(self) -> Result<Option<u32>> {
        for family in Family::ALL {
            let mut message = RouteMessage::default();
            message.header.address_family = family.into();
            message.header.table = MAIN as u8;
            let what = "find the default route";
            let seq = self
                .send(&Request::new(RTM_GETROUTE, &message), NLM_F_DUMP)
                .map_err(|e| Error::kernel(what, e))?;
            let mut found = None;
            let read = self.transport.dump_until(seq, |reply| {
                found = default_link(reply.payload);
                found.is_some()
            });
            read.map_err(|refusal| refused(what, refusal))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// ifindex of the link that packets to `ip` leave by: `ip route get`.
    pub fn link_towards(&self, ip: IpAddr) -> Result<u32> {
        self.ask(ip, |payload| Attrs::after(payload, HEADER).u32(RTA_OIF))
    }

    /// Whether packets to `ip` are for this host.
    pub fn is_local(&self, ip: IpAddr) -> Result<bool> {
        self.ask(ip, |payload| payload.get(RTM_TYPE).map(|kind| *kind == RTN_LOCAL))
    }

    /// Requests the route that packets to `ip` take.
    fn ask<T>(&self, ip: IpAddr, read: impl Fn(&[u8]) -> Option<T>) -> Result<T> {
        let message = match ip {
            IpAddr::V4(ip) => {
                RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(ip, 32).build()
            }
            IpAddr::V6(ip) => {
                RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(ip, 128).build()
            }
        };
        self.get(
            &Request::new(RTM_GETROUTE, &asking(message)),
            format_args!("find the route to {ip}"),
            read,
        )
    }

    /// The routes of all tables, for CHECK; a container has few.
    pub fn routes(&self) -> Result<Vec<FoundRoute>> {
        let mut all = vec![];
        for family in Family::ALL {
            let mut message = RouteMessage::default();
            message.header.address_family = family.into();
            all.extend(self.dump(
                &Request::new(RTM_GETROUTE, &message),
                "list the routes",
                |payload| {
                    let is_cached =
                        read_u32(payload, RTM_FLAGS).is_some_and(|flags| flags & RTM_F_CLONED != 0);
                    Route::read(payload).filter(|_| !is_cached)
                },
            )?);
        }
        Ok(all)
    }
}

/// With strict checking a lookup has a destination and nothing that only a route could have.
fn asking(mut message: RouteMessage) -> RouteMessage {
    message.header.table = RT_TABLE_UNSPEC;
    message.header.protocol = RouteProtocol::Unspec;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unspec;
    message
}
