//! The links of a replica: bridges, and what else the kernel can make, as they are; a veth pair in
//! place of a device, and of a link whose other side is elsewhere.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::error::Result;
use crate::net::mac::MacAddr;
use crate::net::netlink::{
    AddressOptions, BridgeSpec, Link, LinkChange, LinkSpec, Netlink, PeerSpec, RouteEntry, VethSpec,
};
use crate::net::netns::Netns;

/// The MTUs of a veth.
const MTU: RangeInclusive<u32> = 68..=65535;
/// The length of a hardware address of Ethernet.
const ETHERNET: usize = 6;
/// No packets are sent.
const AT_ONCE: AddressOptions = AddressOptions { detect_duplicates: false, subnet_on_link: true };

/// Where the other ends of veth pairs go.
pub struct Outside<'a> {
    /// A namespace that several replicas share.
    pub netns: &'a Netns,
    /// What the names of this replica's ends begin with.
    pub prefix: &'static str,
}

/// Makes the links of `original` in `replica`, with their addresses, routes and rules.
pub fn replicate(original: &Netns, replica: &Netns, outside: &Outside<'_>) -> Result<()> {
    let mut links = original.netlink()?.links()?;
    links.sort_by_key(|link| link.index); // a link is made after the one below it
    let copy = Copy { from: original.netlink()?, to: replica.netlink()?, outside };
    let mut names = BTreeMap::new();
    for link in &links {
        copy.create(link, &names)?;
        names.insert(link.index, link.name.clone());
    }
    for link in &links {
        copy.connect(link, &names)?;
    }
    copy.add_addresses(&names)?;
    for link in &links {
        copy.add_routes(link)?;
    }
    copy.add_rules()
}

/// The names of the links made so far, by the ifindex of the originals.
type Names = BTreeMap<u32, String>;

struct Copy<'a> {
    from: &'a Netlink,
    to: &'a Netlink,
    outside: &'a Outside<'a>,
}

impl Copy<'_> {
    fn create(&self, link: &Link, names: &Names) -> Result<()> {
        // The kernel makes some links in each namespace: lo, and those of tunnels.
        if self.to.find_link(&link.name)?.is_some() {
            return Ok(());
        }
        if link.kind == "bridge" {
            return self.create_bridge(link);
        }
        match self.create_alike(link, names)? {
            Some(()) => Ok(()),
            None => self.create_pair(link),
        }
    }

    fn create_bridge(&self, link: &Link) -> Result<()> {
        self.to.create_bridge(&BridgeSpec {
            name: &link.name,
            mtu: Some(link.mtu),
            mac: Some(link.mac()),
            vlan_filtering: link.vlan_filtering,
        })?;
        match link.group_fwd_mask {
            0 => Ok(()),
            mask => self.to.set_group_fwd_mask(&self.to.link(&link.name)?, mask),
        }
    }

    /// A link of the same kind on the same lower link; None if that is not here, or the kernel
    /// refuses.
    fn create_alike(&self, link: &Link, names: &Names) -> Result<Option<()>> {
        let Some(kind) = link.detail.clone() else { return Ok(None) };
        let lower = match link.lower.filter(|index| *index != link.index) {
            Some(_) if link.lower_is_elsewhere() => return Ok(None),
            Some(index) => match names.get(&index) {
                Some(name) => Some(self.to.link(name)?.index),
                None => return Ok(None),
            },
            None => None,
        };
        let mac = Some(link.mac()).filter(|_| link.mac.len() == ETHERNET);
        let spec = LinkSpec { kind, lower, mtu: Some(link.mtu), mac };
        Ok(self.to.create_link(&link.name, None, &spec).ok())
    }

    fn create_pair(&self, link: &Link) -> Result<()> {
        let is_ethernet = link.mac.len() == ETHERNET && link.mac.iter().any(|octet| *octet != 0);
        let mac = if is_ethernet { link.mac() } else { MacAddr::random() };
        let Outside { netns, prefix } = *self.outside;
        let end = format!("{prefix}{}", link.index);
        let peer = PeerSpec { name: &end, mac: MacAddr::random(), netns: Some(netns.fd()) };
        let spec = VethSpec {
            name: &link.name,
            mac,
            peer,
            mtu: Some(link.mtu.clamp(*MTU.start(), *MTU.end())),
        };
        self.to.create_veth(&spec)?;
        if link.has_carrier && link.up {
            let outside = netns.netlink()?;
            outside.set_up(&outside.link(&end)?)?;
        }
        Ok(())
    }

    /// The link's names, its master and its state.
    fn connect(&self, link: &Link, names: &Names) -> Result<()> {
        let made = self.to.link(&link.name)?;
        for name in &link.alternative_names {
            self.to.add_alternative_name(&made, name)?;
        }
        let master = link.master.and_then(|index| names.get(&index));
        let master = master.map(|name| self.to.link(name).map(|link| link.index)).transpose()?;
        let alias = Some(link.alias.as_str()).filter(|alias| !alias.is_empty());
        let up = link.up.then_some(true);
        // A kernel that refuses a port of this kind has made it by other means, as openvswitch.
        let _ = self.to.change_link(&made, &LinkChange { master, ..LinkChange::default() });
        self.to.change_link(&made, &LinkChange { alias, up, ..LinkChange::default() })
    }

    fn add_addresses(&self, names: &Names) -> Result<()> {
        for address in self.from.all_addresses()? {
            let Some(name) = names.get(&address.link) else { continue };
            if is_of_kernel(&address.net) {
                continue;
            }
            match self.to.add_address(&self.to.link(name)?, address.net, AT_ONCE) {
                Err(error) if !error.is_exists() => return Err(error),
                _ => (),
            }
        }
        Ok(())
    }

    /// The routes that the link has in its replica as well. A route that depends on what a replica
    /// lacks is left out.
    fn add_routes(&self, link: &Link) -> Result<()> {
        let made = self.to.link(&link.name)?;
        let mut routes = self.from.routes_through(link)?;
        RouteEntry::sort_by_dependence(&mut routes);
        for route in &routes {
            let _ = self.to.put_route(&made, &route.through(&made)); // as said above
        }
        Ok(())
    }

    fn add_rules(&self) -> Result<()> {
        for rule in self.from.rules()? {
            if let Some(source) = rule.source {
                self.to.add_rule(source, rule.table)?;
            }
        }
        Ok(())
    }
}

/// Whether the kernel adds the address itself when the link is up.
fn is_of_kernel(net: &IpNet) -> bool {
    match net.addr() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    }
}
