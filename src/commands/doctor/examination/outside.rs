//! A machine outside for a moment: a namespace of its own on a link of the host, from which a published
//! port is tried. Both are gone with this process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process;

use ipnet::IpNet;

use crate::error::Result;
use crate::family::Family;
use crate::net::mac::MacAddr;
use crate::net::netlink::{
    AddressOptions, Filter, Handle, Link, Netlink, PeerSpec, Qdisc, QdiscKind, Route, Side,
    Verdict, VethSpec,
};
use crate::net::netns::Netns;
use crate::net::sysctl::Sysctl;
use crate::net::temporary::Temporary;

/// Of each 198.18.0.0/15 (RFC 2544) and 2001:2::/48 (RFC 5180), which no network has, a process takes
/// one subnet: as many as 198.18.0.0/15 has of two machines.
const SUBNETS: u32 = 1 << 15;
/// The name of its link.
pub const IFNAME: &str = "eth0";
const USABLE: AddressOptions = AddressOptions { detect_duplicates: false, subnet_on_link: true };

/// The machine.
pub struct Outside<'n> {
    /// Its namespace.
    pub netns: Netns,
    /// Its address.
    pub address: IpAddr,
    /// The ifindex of the host's end of its link.
    pub end: u32,
    _keeper: Temporary,
    host: &'n Netlink,
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        let _ = self.host.delete_link(self.end); // the kernel does it later, with the namespace
    }
}

impl Outside<'_> {
    /// Makes it. IPv4 packets to `to` go on as if the uplink had received them, if the kernel has
    /// mirred and the uplink does not check their source: rules often name the link.
    pub fn make<'n>(host: &'n Netlink, to: IpAddr, uplink: &Link) -> Result<Outside<'n>> {
        let keeper = Temporary::create()?;
        let netns = Netns::open(&keeper.path())?;
        let name = format!("cni-doctor{}", process::id() % 100_000);
        let peer = PeerSpec { name: IFNAME, mac: MacAddr::random(), netns: Some(netns.fd()) };
        host.create_veth(&VethSpec { name: &name, mac: MacAddr::random(), peer, mtu: None })?;
        let own = host.link(&name)?;
        let family = Family::of(to);
        let (address, gateway) = addresses(family, process::id() % SUBNETS);
        let outside =
            Outside { netns, address: address.addr(), end: own.index, _keeper: keeper, host };
        let netns = &outside.netns;
        let inside = netns.netlink()?;
        let its = inside.link(IFNAME)?;
        let accept_ra = |name: &str| {
            let setting = Sysctl::ipv6_conf(name, "accept_ra");
            if setting.exists()? { setting.write("0") } else { Ok(()) }
        };
        accept_ra(&name)?;
        netns.enter(|| accept_ra(IFNAME))?;
        host.set_up(&own)?;
        inside.set_up(&its)?;
        host.add_address(&own, gateway, USABLE)?;
        inside.add_address(&its, address, USABLE)?;
        let default = Route { gateway: Some(gateway.addr()), ..Route::to(family.whole()) };
        inside.add_route(&its, &default)?;
        let settings = ["all", uplink.name.as_str()].map(|of| Sysctl::ipv4_conf(of, "rp_filter"));
        let is_strict = settings.iter().any(|it| it.read().is_ok_and(|value| value == "1"));
        if family == Family::V4 && !is_strict {
            let qdisc = Qdisc {
                handle: Handle::new(0xffff, 0),
                parent: Handle::INGRESS,
                kind: QdiscKind::Ingress,
            };
            let filter =
                Filter::of_subnet(1, Side::Destination, &to.into(), Verdict::Receive(uplink.index));
            // Not every kernel has them: the packets are then received by the own link.
            let made = host.create_qdisc(&own, &qdisc);
            let _ = made.and_then(|()| host.create_filter(&own, qdisc.handle, &filter));
        }
        Ok(outside)
    }
}

/// The machine's address, and the host's, of this subnet.
fn addresses(family: Family, subnet: u32) -> (IpNet, IpNet) {
    let net = |ip: IpAddr, prefix| IpNet::new_assert(ip, prefix);
    match family {
        Family::V4 => {
            let base = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + 4 * subnet;
            let ip = |number| net(Ipv4Addr::from(base + number).into(), 30);
            (ip(2), ip(1))
        }
        Family::V6 => {
            let ip = |number| {
                net(Ipv6Addr::new(0x2001, 2, 0, subnet as u16, 0, 0, 0, number).into(), 64)
            };
            (ip(2), ip(1))
        }
    }
}
