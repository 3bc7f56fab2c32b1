//! A DHCPv4 lease: what a server has granted, and the result of ADD that follows from it.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::Message;
use super::options::{Options, code};
use crate::cni::result::{AddResult, Dns, IpConfig, Route};
use crate::plugins::ipam::dhcp::reader::{Reader, domain, search};
use crate::plugins::ipam::dhcp::times::Times;
use crate::sys::clock::{Moment, NEVER};

/// The lease time where the server gives none, as in the reference.
const DEFAULT_TIME: Duration = Duration::from_secs(60 * 60);
/// The lease time without end.
const INFINITE: Duration = Duration::from_secs(u32::MAX as u64);
/// RT_SCOPE_LINK: a destination without a router is on the link.
const SCOPE_LINK: i64 = 253;
/// From the least that every link must carry (RFC 791) to Ethernet's. A smaller MTU is a mistake of
/// the server. A larger one is of no use on a route: the link's own applies then; and if that is
/// smaller, the kernel drops the packets between the two.
const MTUS: RangeInclusive<u16> = 68..=1500;

/// A lease as granted by a server, and as journalled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The address in its subnet. A renewal does not change the prefix length: it is part of the
    /// address on the link.
    #[serde(rename = "address")]
    pub net: Ipv4Net,
    /// The server to send renewals to.
    pub server: Ipv4Addr,
    /// The transaction id of its exchange.
    pub xid: u32,
    /// The options that the server has sent with it.
    pub options: Options,
    /// When it was requested, is due and ends.
    #[serde(flatten)]
    pub times: Times,
}

impl Lease {
    /// The lease that an ACK grants, for a request sent at `asked`; `None` if it has no valid mask
    /// and there was no lease `before`.
    pub fn of_ack(
        ack: &Message,
        server: Ipv4Addr,
        asked: Moment,
        before: Option<&Lease>,
    ) -> Option<Lease> {
        let options = ack.options.clone();
        let prefix_len = match before {
            Some(lease) => lease.net.prefix_len(),
            None => {
                let mask = options.address(code::SUBNET_MASK)?;
                ipnet::ipv4_mask_to_prefix(mask).ok().filter(|length| *length > 0)?
            }
        };
        let net = Ipv4Net::new_assert(ack.yiaddr, prefix_len);
        let times = times(&options, asked);
        Some(Lease { net, server, xid: ack.xid, options, times })
    }

    /// Whether the address is neither the network's nor the broadcast address of its subnet (RFC
    /// 1122, section 3.2.1.3).
    pub fn is_for_a_host(&self) -> bool {
        let address = self.net.addr();
        self.net.prefix_len() >= 31
            || (address != self.net.network() && address != self.net.broadcast())
    }

    /// The result of ADD, from the server's options. Invalid options are left out. A `priority` of
    /// 0 means no metric.
    pub fn result(&self, priority: i64) -> AddResult {
        let options = &self.options;
        let is_known = |address: &Ipv4Addr| !address.is_unspecified();
        let gateway = options.addresses(code::ROUTERS).next().filter(is_known);
        let mtu = options.short(code::MTU).filter(|mtu| MTUS.contains(mtu)).unwrap_or_default();
        let mut routes = self.routes(gateway);
        for route in &mut routes {
            (route.priority, route.mtu) = (priority, mtu.into());
        }
        let name_servers = options.addresses(code::NAME_SERVERS).filter(is_known);
        let gateway = gateway.map(IpAddr::V4);
        AddResult {
            ips: vec![IpConfig { interface: None, address: self.net.into(), gateway }],
            routes,
            dns: Dns {
                nameservers: name_servers.map(|server| server.to_string()).collect(),
                domain: options.get(code::DOMAIN).and_then(domain).unwrap_or_default(),
                search: options.get(code::DOMAIN_SEARCH).and_then(search).unwrap_or_default(),
                options: vec![],
            },
            ..AddResult::default()
        }
    }

    /// The routes: those of option 121, or of Microsoft's, replace all others (RFC 3442); without
    /// any, those of option 33 and the default route.
    fn routes(&self, gateway: Option<Ipv4Addr>) -> Vec<Route> {
        let codes = [code::CLASSLESS_ROUTES, code::CLASSLESS_ROUTES_OF_MICROSOFT];
        let classless =
            codes.into_iter().find_map(|code| classless_routes(self.options.get(code)?));
        if let Some(routes) = classless.filter(|routes| !routes.is_empty()) {
            return routes;
        }
        let pairs: Vec<Ipv4Addr> = self.options.addresses(code::STATIC_ROUTES).collect();
        let mut routes = vec![];
        for [to, router] in pairs.as_chunks::<2>().0 {
            // Neither a multicast group nor the default route can be the destination of option 33.
            let prefix_len = match to.octets()[0] {
                0 | 224.. => continue,
                1..=127 => 8,
                128..=191 => 16,
                192..=223 => 24,
            };
            routes.push(route(*to, prefix_len, *router));
        }
        routes.extend(gateway.map(|gateway| route(Ipv4Addr::UNSPECIFIED, 0, gateway)));
        routes
    }
}

/// The times in the options, of a lease that runs since `acquired`. As in other clients, a lease
/// time of 0 counts as missing. Where T1 < T2 < expiry does not hold, the defaults of RFC 2131,
/// section 4.4.5, replace what is wrong.
fn times(options: &Options, acquired: Moment) -> Times {
    let seconds = |code| Some(Duration::from_secs(options.long(code)?.into()));
    let time = seconds(code::LEASE_TIME).filter(|time| !time.is_zero()).unwrap_or(DEFAULT_TIME);
    if time == INFINITE {
        return Times { acquired, t1: NEVER, t2: NEVER, expires: NEVER };
    }
    let before = |end, code| seconds(code).filter(|time: &Duration| !time.is_zero() && *time < end);
    let t2 = before(time, code::REBINDING_TIME).unwrap_or(time * 7 / 8);
    let t1 = before(t2, code::RENEWAL_TIME).unwrap_or_else(|| (time / 2).min(t2 * 4 / 7));
    Times { acquired, t1: acquired + t1, t2: acquired + t2, expires: acquired + time }
}

fn route(to: Ipv4Addr, prefix_len: u8, router: Ipv4Addr) -> Route {
    let to = Ipv4Net::new_assert(to, prefix_len).trunc();
    let scope = router.is_unspecified().then_some(SCOPE_LINK);
    Route { gw: Some(router.into()), scope, ..Route::to(to.into()) }
}

/// The routes of RFC 3442: a prefix length, as many octets of the destination as it needs, a
/// router. `None` if the value ends within a route.
fn classless_routes(value: &[u8]) -> Option<Vec<Route>> {
    let mut value = Reader::new(value);
    let mut routes = vec![];
    while let Some(prefix_len) = value.u8() {
        let significant = value.take(usize::from(prefix_len).div_ceil(8))?;
        let mut to = [0; 4];
        to.get_mut(..significant.len())?.copy_from_slice(significant);
        routes.push(route(to.into(), prefix_len, value.ipv4()?));
    }
    Some(routes)
}

/// An address that is about to be requested. It must be released if the outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The address.
    pub address: Ipv4Addr,
    /// The server that has offered it.
    pub server: Ipv4Addr,
    /// The transaction id of the exchange.
    pub xid: u32,
}

impl Intent {
    /// The intent that led to a lease, which releases it.
    pub fn of(lease: &Lease) -> Intent {
        Intent { address: lease.net.addr(), server: lease.server, xid: lease.xid }
    }

    /// Names the offer in a message about it.
    pub fn write(&self, options: &mut Options) {
        options.set(code::REQUESTED_ADDRESS, &self.address.octets());
        options.set(code::SERVER_ID, &self.server.octets());
    }
}
