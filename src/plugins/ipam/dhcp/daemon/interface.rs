//! The interface of a lease. Nothing of it is open while a lease is held: it is looked up anew for
//! each visit, so no namespace is kept alive and none is taken for another.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{AddressOptions, Link, LinkChange, Netlink, RouteEntry};
use crate::net::netns::Netns;
use crate::plugins::ipam::dhcp::family::Lease;
use crate::plugins::ipam::dhcp::wire::Wish;
use crate::steps::addresses;

/// The octets of an Ethernet address.
const ETHERNET: usize = 6;

/// Where an interface is, in words that outlive descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The path of its namespace, as the plugin has it.
    pub netns: String,
    /// The device of the namespace.
    device: u64,
    /// The inode of the namespace.
    inode: u64,
    /// ifindex.
    ifindex: u32,
    /// The hardware address that it had when the lease was asked for, which a server may know the
    /// client by.
    #[serde(with = "octets")]
    pub mac: MacAddr,
    /// What it carries, in bytes.
    pub mtu: u32,
    /// Its hardware address is that of other interfaces as well, so answers have to be broadcast.
    #[serde(default)]
    pub broadcast: bool,
    /// ARP is spoken there, and an address may be tried.
    #[serde(default)]
    pub probe: bool,
    /// The kernel's number of the namespace, which no other ever gets; None before Linux 5.14.
    #[serde(skip_serializing_if = "Option::is_none")]
    cookie: Option<u64>,
}

/// Why an interface cannot be visited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// It is not there any more, and never will be.
    Gone(&'static str),
    /// We cannot tell, or what was to be done there failed.
    Failed(Error),
}

impl From<Error> for Absent {
    fn from(error: Error) -> Absent {
        Absent::Failed(error)
    }
}

impl From<Absent> for Error {
    fn from(absent: Absent) -> Error {
        match absent {
            Absent::Gone(why) => Error::new(Code::UNKNOWN_CONTAINER, why),
            Absent::Failed(error) => error,
        }
    }
}

/// What is done in the namespace, with a socket for it and the interface as it is.
pub type Visit<'a> = &'a mut (dyn FnMut(&Netlink, &Link) -> Result<()> + Send);

impl Place {
    /// Finds the interface that a lease is wanted for, and sets it up.
    pub fn find(prefix: &str, wish: &Wish) -> Result<Place> {
        let ifname = wish.key.ifname.as_str();
        let netns = Netns::open(&format!("{prefix}{}", wish.netns))?;
        let (device, inode) = netns.identity()?;
        let (cookie, link) = netns.enter(|| {
            let netlink = Netlink::open()?;
            let link = netlink.link(ifname)?;
            if !link.up {
                netlink
                    .change_link(&link, &LinkChange { up: Some(true), ..LinkChange::default() })?;
            }
            Ok((netlink.netns_cookie(), link))
        })?;
        let mac = link.mac();
        if mac.octets().len() != ETHERNET || mac.is_zero() {
            let msg = format!("interface {ifname:?} has no Ethernet address, which DHCP goes by");
            return Err(Error::new(Code::INVALID_ENVIRONMENT, msg));
        }
        // All ipvlans of a lower link have its address: what a server sends to it reaches any of
        // them.
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
        })
    }

    /// Enters the namespace, if it and the interface still are there.
    pub fn visit(&self, prefix: &str, work: Visit<'_>) -> Result<(), Absent> {
        let netns = self.netns(prefix)?;
        netns.enter(|| {
            let netlink = Netlink::open()?;
            let cookies = self.cookie.zip(netlink.netns_cookie());
            if cookies.is_some_and(|(then, now)| then != now) {
                return Ok(Err(Absent::Gone("another namespace has its path")));
            }
            // Others may rename it, and give it another hardware address, as `tuning` does.
            let is_ours = |link: &Link| cookies.is_some() || link.mac() == self.mac;
            let link = netlink.find_link_by_index(self.ifindex)?.filter(is_ours);
            let Some(link) = link else { return Ok(Err(Absent::Gone("its interface is gone"))) };
            work(&netlink, &link).map(Ok)
        })?
    }

    /// Whether it is the same interface, whatever was changed of it.
    pub fn is_same(&self, other: &Place) -> bool {
        let identity = |place: &Place| (place.device, place.inode, place.cookie, place.ifindex);
        identity(self) == identity(other) && (self.cookie.is_some() || self.mac == other.mac)
    }

    /// Whether the namespace is there; that is told without entering it.
    pub fn is_there(&self, prefix: &str) -> Result<(), Absent> {
        self.netns(prefix).map(drop)
    }

    fn netns(&self, prefix: &str) -> Result<Netns, Absent> {
        let netns = Netns::open_if_there(&format!("{prefix}{}", self.netns))?;
        let netns = netns.ok_or(Absent::Gone("its namespace is gone"))?;
        if netns.identity()? == (self.device, self.inode) {
            Ok(netns)
        } else {
            Err(Absent::Gone("another namespace has its path"))
        }
    }
}

/// A hardware address in the journal: its octets without anything between.
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

/// Takes an address off the interface. What routes go with it is returned, for [`put_back`]; those
/// of IPv6 stay.
pub fn take_off(netlink: &Netlink, link: &Link, address: IpAddr) -> Result<Vec<RouteEntry>> {
    let mut routes = if address.is_ipv4() { netlink.routes_through(link)? } else { vec![] };
    routes.retain(|route| route.dst.addr().is_ipv4());
    for found in netlink.addresses(link)?.iter().filter(|found| found.net.addr() == address) {
        netlink.delete_address(link, found.net)?;
    }
    Ok(routes)
}

/// Gives the interface its address back, and the routes that went with it; after a restart of the
/// daemon those that the server has sent.
pub fn put_back(
    netlink: &Netlink,
    link: &Link,
    lease: &Lease,
    priority: i64,
    routes: &[RouteEntry],
) -> Result<()> {
    let options = AddressOptions { detect_duplicates: false, subnet_on_link: true };
    match netlink.add_address(link, lease.net(), options) {
        Err(e) if !e.is_exists() => return Err(e),
        _ => (),
    }
    if !routes.is_empty() {
        return routes.iter().try_for_each(|route| netlink.put_route(link, route));
    }
    add_routes(netlink, link, lease, priority)
}

fn add_routes(netlink: &Netlink, link: &Link, lease: &Lease, priority: i64) -> Result<()> {
    for route in addresses::planned_routes(&lease.result(priority, link.mtu))? {
        match netlink.add_route(link, &route) {
            Err(e) if !e.is_exists() => return Err(e),
            _ => (),
        }
    }
    Ok(())
}

/// Leads the routes by the router that is another now, in whichever tables they are; where there
/// was none, adds them.
pub fn reroute(
    netlink: &Netlink,
    link: &Link,
    before: Option<Ipv6Addr>,
    lease: &Lease,
    priority: i64,
) -> Result<()> {
    let (Some(before), Some(router)) = (before, lease.router()) else {
        return add_routes(netlink, link, lease, priority);
    };
    for route in netlink
        .routes_through(link)?
        .iter()
        .filter(|route| route.gateways() == [IpAddr::V6(before)])
    {
        netlink.put_route(link, &route.by(router.into()))?;
        netlink.delete_route(link, route)?;
    }
    Ok(())
}
