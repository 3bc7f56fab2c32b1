//! A DHCPv4 lease: what a server has granted, and the result of ADD that follows from it.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::message::Message;
use super::options::{Malformed, Options, code};
use crate::cni::result::{AddResult, Dns, IpConfig, Route};
use crate::hex;
use crate::plugins::ipam::dhcp::domains::{domain, search};
use crate::plugins::ipam::dhcp::reader::Reader;
use crate::plugins::ipam::dhcp::times::Times;
use crate::sys::clock::{Moment, NEVER};

/// The seconds of a lease without a lease time, as in the reference.
const DEFAULT_TIME: u32 = 60 * 60;
/// A lease without end.
const INFINITE: u32 = u32::MAX;
/// RT_SCOPE_LINK: a destination without a router is on the link.
const SCOPE_LINK: i64 = 253;
/// From the least that every link must carry (RFC 791) to Ethernet's. A smaller MTU is a mistake of
/// the server. A larger one is of no use on a route: the link's own applies then; and if that is
/// smaller, the kernel drops the packets between the two.
const MTUS: RangeInclusive<u16> = 68..=1500;

/// A lease as granted by a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Lease {
    /// The address.
    pub address: Ipv4Addr,
    /// The subnet's prefix length. A renewal does not change it: it is part of the address on the
    /// link.
    pub prefix_len: u8,
    /// The server to send renewals to.
    pub server: Ipv4Addr,
    /// When it was requested, which is when its time began to run.
    pub acquired: Moment,
    /// T1: when to renew it.
    pub t1: Moment,
    /// T2: when to ask any server.
    pub t2: Moment,
    /// When it expires. All three times may be [`NEVER`].
    pub expires: Moment,
    /// The options that the server has sent with it.
    pub options: Options,
    /// The transaction id of its exchange.
    pub xid: u32,
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
        let prefix_len = before.map(|lease| lease.prefix_len).or_else(|| prefix_len(&options))?;
        let mut lease = Lease {
            address: ack.yiaddr,
            prefix_len,
            server,
            acquired: asked,
            t1: NEVER,
            t2: NEVER,
            expires: NEVER,
            options,
            xid: ack.xid,
        };
        lease.set_times();
        Some(lease)
    }

    /// Sets the times from the options. Where T1 < T2 < expiry does not hold, the defaults of RFC
    /// 2131, section 4.4.5, replace what is wrong.
    fn set_times(&mut self) {
        let Some(time) = lease_time(&self.options) else { return };
        let t2 = time_before(time, code::REBINDING_TIME, &self.options).unwrap_or(time * 7 / 8);
        let t1 = time_before(t2, code::RENEWAL_TIME, &self.options)
            .unwrap_or_else(|| (time / 2).min(t2 * 4 / 7));
        self.t1 = self.acquired + t1;
        self.t2 = self.acquired + t2;
        self.expires = self.acquired + time;
    }

    /// The four times: requested, T1, T2 and expiry.
    pub fn times(&self) -> [Moment; 4] {
        [self.acquired, self.t1, self.t2, self.expires]
    }

    /// When to ask for more time first.
    pub fn first_renewal(&self) -> Moment {
        self.t1.min(self.t2)
    }

    /// The address with its prefix length.
    pub fn net(&self) -> Ipv4Net {
        Ipv4Net::new_assert(self.address, self.prefix_len.min(32))
    }

    /// Whether the address is neither the network's nor the broadcast address of its subnet (RFC
    /// 1122, section 3.2.1.3).
    pub fn is_for_a_host(&self) -> bool {
        let net = self.net();
        net.prefix_len() >= 31 || (self.address != net.network() && self.address != net.broadcast())
    }

    /// The result of ADD, from the server's options. Invalid options are left out. A `priority` of
    /// 0 means no metric.
    pub fn result(&self, priority: i64) -> AddResult {
        let gateway = self.gateway();
        let mut routes = self.routes(gateway);
        let mtu = self.mtu();
        for route in &mut routes {
            (route.priority, route.mtu) = (priority, mtu.into());
        }
        let ips = vec![self.ip_config(gateway)];
        AddResult { ips, routes, dns: self.dns(), ..AddResult::default() }
    }

    fn ip_config(&self, gateway: Option<Ipv4Addr>) -> IpConfig {
        let gateway = gateway.map(IpAddr::V4);
        IpConfig { interface: None, address: self.net().into(), gateway }
    }

    fn gateway(&self) -> Option<Ipv4Addr> {
        self.options.addresses(code::ROUTERS).next().filter(|router| !router.is_unspecified())
    }

    /// The MTU for the routes; 0 for the link's.
    fn mtu(&self) -> u16 {
        self.options.short(code::MTU).filter(|mtu| MTUS.contains(mtu)).unwrap_or_default()
    }

    /// The routes: those of option 121 replace all others (RFC 3442); without it, those of option
    /// 33 and the default route.
    fn routes(&self, gateway: Option<Ipv4Addr>) -> Vec<Route> {
        if let Some(routes) = self.classless_routes() {
            return routes;
        }
        let default = gateway.map(|gateway| route(Ipv4Addr::UNSPECIFIED, 0, gateway));
        let mut routes = self.static_routes();
        routes.extend(default);
        routes
    }

    /// The routes of option 121, if there are any; without it, those of Microsoft's option.
    fn classless_routes(&self) -> Option<Vec<Route>> {
        let codes = [code::CLASSLESS_ROUTES, code::CLASSLESS_ROUTES_OF_MICROSOFT];
        let routes = codes.into_iter().find_map(|code| classless_routes(self.options.get(code)?));
        routes.filter(|routes| !routes.is_empty())
    }

    /// The routes of option 33: pairs of a destination and a router.
    fn static_routes(&self) -> Vec<Route> {
        let pairs: Vec<Ipv4Addr> = self.options.addresses(code::STATIC_ROUTES).collect();
        let (pairs, _) = pairs.as_chunks::<2>();
        let of_class =
            |[to, router]: &[Ipv4Addr; 2]| Some(route(*to, prefix_len_of_class(*to)?, *router));
        pairs.iter().filter_map(of_class).collect()
    }

    fn dns(&self) -> Dns {
        Dns {
            nameservers: self.name_servers(),
            domain: self.options.get(code::DOMAIN).and_then(domain).unwrap_or_default(),
            search: self.options.get(code::DOMAIN_SEARCH).and_then(search).unwrap_or_default(),
            options: vec![],
        }
    }

    fn name_servers(&self) -> Vec<String> {
        let servers = self.options.addresses(code::NAME_SERVERS);
        servers.filter(|server| !server.is_unspecified()).map(|server| server.to_string()).collect()
    }
}

/// A lease as journalled.
#[derive(Serialize, Deserialize)]
struct Stored {
    address: Ipv4Net,
    server: Ipv4Addr,
    xid: u32,
    #[serde(with = "hex")]
    options: Vec<u8>,
    #[serde(flatten)]
    times: Times,
}

impl From<Lease> for Stored {
    fn from(lease: Lease) -> Stored {
        Stored {
            address: lease.net(),
            server: lease.server,
            xid: lease.xid,
            options: lease.options.encode(),
            times: Times::from(lease.times()),
        }
    }
}

impl TryFrom<Stored> for Lease {
    type Error = Malformed;

    fn try_from(stored: Stored) -> Result<Lease, Malformed> {
        let mut options = Options::default();
        options.read(&stored.options)?;
        let [acquired, t1, t2, expires] = stored.times.into();
        Ok(Lease {
            address: stored.address.addr(),
            prefix_len: stored.address.prefix_len(),
            server: stored.server,
            acquired,
            t1,
            t2,
            expires,
            options,
            xid: stored.xid,
        })
    }
}

/// The lease time, unless the lease has no end. As in other clients, a lease time of 0 counts as
/// missing.
fn lease_time(options: &Options) -> Option<Duration> {
    let given = options.long(code::LEASE_TIME);
    let time = given.filter(|time| *time != 0).unwrap_or(DEFAULT_TIME);
    (time != INFINITE).then(|| seconds(time))
}

fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

/// The time in an option, if it is positive and before `end`.
fn time_before(end: Duration, code: u8, options: &Options) -> Option<Duration> {
    let time = seconds(options.long(code)?);
    (!time.is_zero() && time < end).then_some(time)
}

/// The prefix length of the subnet mask; `None` if it has holes, or is 0.0.0.0.
fn prefix_len(options: &Options) -> Option<u8> {
    let mask = options.address(code::SUBNET_MASK)?;
    ipnet::ipv4_mask_to_prefix(mask).ok().filter(|length| *length > 0)
}

/// The classful prefix length of a destination in option 33; `None` for multicast groups, and for
/// the default route, which the option must not contain.
fn prefix_len_of_class(to: Ipv4Addr) -> Option<u8> {
    match to.octets()[0] {
        0 | 224.. => None,
        1..=127 => Some(8),
        128..=191 => Some(16),
        192..=223 => Some(24),
    }
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
        let to = read_destination(prefix_len, &mut value)?;
        routes.push(route(to, prefix_len, value.ipv4()?));
    }
    Some(routes)
}

fn read_destination(prefix_len: u8, value: &mut Reader<'_>) -> Option<Ipv4Addr> {
    let significant = value.take(usize::from(prefix_len).div_ceil(8))?;
    let mut to = [0; 4];
    to.get_mut(..significant.len())?.copy_from_slice(significant);
    Some(to.into())
}
