//! The interface of a lease. No descriptor of it is open while a lease is held: each visit looks it
//! up again, so that the daemon keeps no namespace alive and mistakes none for another.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{AddressOptions, Link, LinkChange, Netlink, RouteEntry};
use crate::net::netns::Netns;
use crate::plugins::ipam::dhcp::client::Lease;
use crate::plugins::ipam::dhcp::wire::Wish;
use crate::steps::addresses;

/// The length of an Ethernet address.
const ETHERNET: usize = 6;

/// The identity of an interface, as data that outlives descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The path of its network namespace, as the plugin sees it.
    pub netns: String,
    /// The device number of the namespace.
    device: u64,
    /// The inode number of the namespace.
    inode: u64,
    /// The interface's index.
    ifindex: u32,
    /// Its hardware address when the lease was requested; a server may identify the client by it.
    #[serde(with = "octets")]
    pub mac: MacAddr,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Other interfaces share its hardware address, so servers must broadcast their answers.
    #[serde(default)]
    pub broadcast: bool,
    /// The link uses ARP, so an address can be probed.
    #[serde(default)]
    pub probe: bool,
    /// The kernel's cookie of the namespace, which is never reused; `None` before Linux 5.14.
    #[serde(skip_serializing_if = "Option::is_none")]
    cookie: Option<u64>,
    /// The daemon's prefix of `netns`, which the next daemon may have another of.
    #[serde(skip)]
    pub prefix: String,
}

/// Why an interface cannot be visited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// It no longer exists and will not return.
    Gone(&'static str),
    /// Its state is unknown, or the work there failed.
    Failed(Error),
}

impl From<Error> for Absent {
    fn from(error: Error) -> Absent {
        Absent::Failed(error)
    }
}

/// An interface during a visit.
pub struct Visited<'a> {
    /// A netlink socket in its namespace.
    pub netlink: &'a Netlink,
    /// The interface as it is now.
    pub link: &'a Link,
}

impl Place {
    /// Finds the interface that a lease is requested for, and sets it up.
    pub fn find(prefix: &str, wish: &Wish) -> Result<Place> {
        let ifname = wish.key.ifname.as_str();
        let netns = Netns::open(&format!("{prefix}{}", wish.netns))?;
        let (device, inode) = netns.identity()?;
        let (cookie, link) = netns.enter(|| {
            let netlink = Netlink::open()?;
            let link = netlink.link(ifname)?;
            if !link.up {
                let up = LinkChange { up: Some(true), ..LinkChange::default() };
                netlink.change_link(&link, &up)?;
            }
            Ok((netlink.netns_cookie(), link))
        })?;
        let mac = link.mac();
        if mac.octets().len() != ETHERNET || mac.is_zero() {
            let msg = format!("interface {ifname:?} has no Ethernet address, which DHCP goes by");
            return Err(Error::new(Code::INVALID_ENVIRONMENT, msg));
        }
        // All ipvlan links on one lower link share its address: what a server sends to it may reach
        // any of them.
        let is_shared = link.kind == "ipvlan";
        Ok(Place {
            netns: wish.netns.clone(),
            device,
            inode,
            cookie,
            ifindex: link.index,
            mac,
            broadcast: is_shared,
            mtu: link.mtu,
            probe: !is_shared && link.arp,
            prefix: prefix.to_owned(),
        })
    }

    /// Enters the namespace, if it and the interface still exist.
    pub fn visit<T: Send>(
        &self,
        work: impl FnOnce(&Visited<'_>) -> Result<T> + Send,
    ) -> Result<T, Absent> {
        self.netns()?.enter(|| {
            let netlink = Netlink::open()?;
            let link = self.link(&netlink);
            Ok(link.and_then(|link| Ok(work(&Visited { netlink: &netlink, link: &link })?)))
        })?
    }

    /// The interface as it is now. It may have been renamed, or given another hardware address, as
    /// `tuning` does.
    fn link(&self, netlink: &Netlink) -> Result<Link, Absent> {
        let cookies = self.cookie.zip(netlink.netns_cookie());
        if cookies.is_some_and(|(then, now)| then != now) {
            return Err(Absent::Gone("another namespace has its path"));
        }
        let is_ours = |link: &Link| cookies.is_some() || link.mac() == self.mac;
        let link = netlink.find_link_by_index(self.ifindex)?.filter(is_ours);
        link.ok_or(Absent::Gone("its interface is gone"))
    }

    /// Whether both are the same interface, whatever its settings.
    pub fn is_same(&self, other: &Place) -> bool {
        let is_known = self.cookie.is_some() || self.mac == other.mac;
        let identity = |place: &Place| (place.device, place.inode, place.cookie, place.ifindex);
        is_known && identity(self) == identity(other)
    }

    /// The namespace, if it still exists; does not enter it.
    pub fn netns(&self) -> Result<Netns, Absent> {
        let netns = Netns::open_if_there(&format!("{}{}", self.prefix, self.netns))?;
        let netns = netns.ok_or(Absent::Gone("its namespace is gone"))?;
        if netns.identity()? == (self.device, self.inode) {
            Ok(netns)
        } else {
            Err(Absent::Gone("another namespace has its path"))
        }
    }
}

/// Serialises a hardware address for the journal: its octets in hex without separators.
mod octets {
    use serde::{Deserializer, Serializer};

    use crate::hex;
    use crate::net::mac::MacAddr;

    pub fn serialize<S: Serializer>(mac: &MacAddr, serializer: S) -> Result<S::Ok, S::Error> {
        hex::serialize(mac.octets(), serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MacAddr, D::Error> {
        hex::deserialize(deserializer).map(|octets| MacAddr::new(&octets))
    }
}

impl Visited<'_> {
    /// Takes an address off the interface. Returns the IPv4 routes that go with it, for
    /// [`Visited::put_back`]; IPv6 routes stay.
    pub fn take_off(&self, address: IpAddr) -> Result<Vec<RouteEntry>> {
        let Visited { netlink, link } = self;
        let mut routes = if address.is_ipv4() { netlink.routes_through(link)? } else { vec![] };
        routes.retain(|route| route.dst.addr().is_ipv4());
        for found in netlink.addresses(link)?.iter().filter(|found| found.net.addr() == address) {
            netlink.delete_address(link, found.net)?;
        }
        Ok(routes)
    }

    /// Puts the address back on the interface, with the routes that went with it; after a restart
    /// of the daemon, with those in the lease.
    pub fn put_back(&self, lease: &Lease, priority: i64, routes: &[RouteEntry]) -> Result<()> {
        let options = AddressOptions { detect_duplicates: false, subnet_on_link: true };
        or_exists(self.netlink.add_address(self.link, lease.net(), options))?;
        if routes.is_empty() {
            return self.add_routes(lease, priority);
        }
        routes.iter().try_for_each(|route| self.netlink.put_route(self.link, route))
    }

    fn add_routes(&self, lease: &Lease, priority: i64) -> Result<()> {
        let routes = addresses::planned_routes(&lease.result(priority, self.link.mtu))?;
        routes.iter().try_for_each(|route| or_exists(self.netlink.add_route(self.link, route)))
    }

    /// Moves the routes from the previous router to the lease's, in whichever tables they are;
    /// without a router on either side, adds the lease's routes.
    pub fn reroute(&self, before: Option<Ipv6Addr>, lease: &Lease, priority: i64) -> Result<()> {
        let (Some(before), Some(router)) = (before, lease.router()) else {
            return self.add_routes(lease, priority);
        };
        for route in self.netlink.routes_through(self.link)? {
            if route.gateways() == [IpAddr::V6(before)] {
                self.netlink.put_route(self.link, &route.by(router.into()))?;
                self.netlink.delete_route(self.link, &route)?;
            }
        }
        Ok(())
    }
}

/// Treats an object that exists as added.
fn or_exists(added: Result<()>) -> Result<()> {
    added.or_else(|e| if e.is_exists() { Ok(()) } else { Err(e) })
}
