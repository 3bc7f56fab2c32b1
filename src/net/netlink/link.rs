//! Links: netdevice(7), `ip link`.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::os::fd::RawFd;

use nix::errno::Errno;
use rtnetlink::packet_core::{DefaultNla, NLA_F_NESTED};
use rtnetlink::packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::nsid::{NsidAttribute, NsidMessage};
use rtnetlink::{LinkBridge, LinkBridgePort, LinkUnspec, LinkVeth};

use super::attr::{Attributes, Attrs, read_u32};
use super::kind::LinkKind;
use super::socket::{
    Netlink, RTM_DELLINK, RTM_DELLINKPROP, RTM_GETLINK, RTM_GETNSID, RTM_NEWLINK, RTM_NEWLINKPROP,
    RTM_SETLINK, Request, none_if_gone, refused,
};
use crate::error::{Error, Result};
use crate::net::mac::MacAddr;
use crate::net::module;

/// ifinfomsg.
const HEADER: usize = 16;
/// The offsets of its fields.
const IFI_INDEX: usize = 4;
const IFI_FLAGS: usize = 8;
const IFF_UP: u32 = 1;
const IFF_NOARP: u32 = 0x80;
const IFF_PROMISC: u32 = 0x100;
const IFF_ALLMULTI: u32 = 0x200;
// linux/if.h
const IF_OPER_NOTPRESENT: u8 = 1;
const IF_OPER_DOWN: u8 = 2;
const IF_OPER_LOWERLAYERDOWN: u8 = 3;
const IF_OPER_TESTING: u8 = 4;
const IF_OPER_DORMANT: u8 = 5;
const IF_OPER_UP: u8 = 6;

// linux/if.h, without the NUL
const NAME_MAX: usize = 15;
const ALTERNATIVE_NAME_MAX: usize = 127;

// linux/if_link.h
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_CARRIER: u16 = 33;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_MIN_MTU: u16 = 50;
const IFLA_MAX_MTU: u16 = 51;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
const IFLA_PERM_ADDRESS: u16 = 54;
// within IFLA_LINKINFO
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
// within IFLA_INFO_SLAVE_DATA and IFLA_INFO_DATA of a bridge
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_ISOLATED: u16 = 33;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_GROUP_FWD_MASK: u16 = 9;
const IFLA_BR_VLAN_DEFAULT_PVID: u16 = 39;

// within IFLA_AF_SPEC
const AF_INET: u16 = 2;
const IFLA_INET_CONF: u16 = 1;
/// The offset of the 26th setting, of 4 bytes each (linux/ip.h).
const IPV4_DEVCONF_ROUTE_LOCALNET: usize = 25 * 4;

/// rtgenmsg, padded.
const NSID_HEADER: usize = 4;
// linux/net_namespace.h
const NETNSA_NSID: u16 = 1;
const NOT_ASSIGNED: u32 = -1_i32 as u32;

/// A link as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// ifindex.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Its alternative names, which are equivalent to the first.
    pub alternative_names: Vec<String>,
    /// Hardware address, as octets; empty where the link has none.
    pub mac: Vec<u8>,
    /// The hardware address that it was created with; empty if the kernel chose it, and before
    /// Linux 5.6.
    pub permanent_mac: Vec<u8>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The smallest MTU that it accepts.
    pub min_mtu: u32,
    /// The largest MTU that it accepts; 0 if there is no limit.
    pub max_mtu: u32,
    /// How many packets may be queued for sending.
    pub txqlen: u32,
    /// `bridge`, `veth`, …; empty for hardware.
    pub kind: String,
    /// Its settings, if it is of a kind that [`LinkKind`] has.
    pub detail: Option<LinkKind>,
    /// ifindex of the bridge (or bond, or VRF) it is a port of.
    pub master: Option<u32>,
    /// ifindex of the veth's other end, in the namespace of that end; of the lower link for other
    /// kinds.
    pub lower: Option<u32>,
    /// The number by which this namespace knows that link's, if it is another one.
    pub lower_nsid: Option<u32>,
    /// The text that was attached to it.
    pub alias: String,
    /// Whether the administrator set it up.
    pub up: bool,
    /// Whether it resolves hardware addresses with ARP.
    pub arp: bool,
    /// Whether something is at its other end.
    pub has_carrier: bool,
    /// IF_OPER_*: up only if it can carry packets.
    pub operstate: u8,
    /// Whether the administrator set promiscuous mode. A capture that sets it as well is not
    /// reported here.
    pub promisc: bool,
    /// Whether the administrator set all-multicast mode.
    pub allmulti: bool,
    /// Bridge port: packets may leave by the port they came in.
    pub hairpin: bool,
    /// Bridge port: no packets to other isolated ports.
    pub isolated: bool,
    /// Bridge: whether it filters by VLAN, where the kernel can.
    pub vlan_filtering: bool,
    /// Bridge: `IFLA_BR_GROUP_FWD_MASK`. It forwards frames to the reserved multicast address
    /// 01:80:c2:00:00:0N if bit N is set.
    pub group_fwd_mask: u16,
    /// Bridge: the VLAN that new ports are members of; 0 for none.
    pub default_pvid: u16,
    /// The sysctl of this name in `net/ipv4/conf`: whether packets from and to 127.0.0.0/8 pass.
    pub route_localnet: u32,
}

impl Link {
    fn read(payload: &[u8]) -> Option<Link> {
        let attrs = Attrs::after(payload, HEADER);
        let flags = read_u32(payload, IFI_FLAGS)?;
        let info = attrs.within(IFLA_LINKINFO);
        let data = info.within(IFLA_INFO_DATA);
        let port = info.within(IFLA_INFO_SLAVE_DATA);
        let kind = info.text(IFLA_INFO_KIND).unwrap_or_default();
        let names = attrs.within(IFLA_PROP_LIST);
        let is_bridge = kind == "bridge"; // the numbers below mean something else in other kinds
        Some(Link {
            index: read_u32(payload, IFI_INDEX)?,
            name: attrs.text(IFLA_IFNAME)?,
            alternative_names: names.texts(IFLA_ALT_IFNAME),
            mac: attrs.bytes(IFLA_ADDRESS).unwrap_or_default().to_vec(),
            permanent_mac: attrs.bytes(IFLA_PERM_ADDRESS).unwrap_or_default().to_vec(),
            mtu: attrs.u32(IFLA_MTU).unwrap_or_default(),
            min_mtu: attrs.u32(IFLA_MIN_MTU).unwrap_or_default(),
            max_mtu: attrs.u32(IFLA_MAX_MTU).unwrap_or_default(),
            txqlen: attrs.u32(IFLA_TXQLEN).unwrap_or_default(),
            detail: LinkKind::read(&kind, data),
            master: attrs.u32(IFLA_MASTER),
            lower: attrs.u32(IFLA_LINK),
            lower_nsid: attrs.u32(IFLA_LINK_NETNSID),
            alias: attrs.text(IFLA_IFALIAS).unwrap_or_default(),
            up: flags & IFF_UP != 0,
            arp: flags & IFF_NOARP == 0,
            has_carrier: attrs.u8(IFLA_CARRIER) != Some(0),
            operstate: attrs.u8(IFLA_OPERSTATE).unwrap_or_default(),
            promisc: flags & IFF_PROMISC != 0,
            allmulti: flags & IFF_ALLMULTI != 0,
            hairpin: port.u8(IFLA_BRPORT_MODE) == Some(1),
            isolated: port.u8(IFLA_BRPORT_ISOLATED) == Some(1),
            vlan_filtering: is_bridge && data.u8(IFLA_BR_VLAN_FILTERING) == Some(1),
            group_fwd_mask: data
                .u16(IFLA_BR_GROUP_FWD_MASK)
                .filter(|_| is_bridge)
                .unwrap_or_default(),
            default_pvid: data
                .u16(IFLA_BR_VLAN_DEFAULT_PVID)
                .filter(|_| is_bridge)
                .unwrap_or_default(),
            route_localnet: attrs
                .within(IFLA_AF_SPEC)
                .within(AF_INET)
                .bytes(IFLA_INET_CONF)
                .and_then(|conf| read_u32(conf, IPV4_DEVCONF_ROUTE_LOCALNET))
                .unwrap_or_default(),
            kind,
        })
    }

    /// The hardware address.
    pub fn mac(&self) -> MacAddr {
        MacAddr::new(&self.mac)
    }

    /// Whether the veth's other end, or the lower link, is in another namespace.
    pub fn lower_is_elsewhere(&self) -> bool {
        self.lower_nsid.is_some()
    }

    /// Its kind for messages; hardware has none.
    pub fn kind_text(&self) -> &str {
        if self.kind.is_empty() { "device" } else { &self.kind }
    }

    /// Whether it carries packets.
    pub fn is_operational(&self) -> bool {
        self.operstate == IF_OPER_UP
    }

    /// Whether it is up, and nothing is at its other end. The operational state follows later.
    pub fn lacks_carrier(&self) -> bool {
        self.up && !self.has_carrier
    }

    /// The operational state in the kernel's words (Documentation/networking/operstates.rst).
    pub fn operstate_text(&self) -> &'static str {
        match self.operstate {
            IF_OPER_NOTPRESENT => "not-present",
            IF_OPER_DOWN => "down",
            IF_OPER_LOWERLAYERDOWN => "lower-layer-down",
            IF_OPER_TESTING => "testing",
            IF_OPER_DORMANT => "dormant",
            IF_OPER_UP => "up",
            _ => "unknown",
        }
    }
}

/// A bridge to be created.
#[derive(Clone, Debug, Default)]
pub struct BridgeSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// MTU in bytes; the kernel's default where none is given.
    pub mtu: Option<u32>,
    /// Its hardware address.
    pub mac: Option<MacAddr>,
    /// Whether it filters by VLAN.
    pub vlan_filtering: bool,
}

/// A veth pair to be created: one end here, the other directly in another namespace.
#[derive(Clone, Debug)]
pub struct VethSpec<'a> {
    /// The name of the end here.
    pub name: &'a str,
    /// Its hardware address.
    pub mac: MacAddr,
    /// The other end.
    pub peer: PeerSpec<'a>,
    /// MTU of both ends in bytes; the kernel's default where none is given.
    pub mtu: Option<u32>,
}

/// The other end of a veth pair.
#[derive(Clone, Debug)]
pub struct PeerSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its hardware address.
    pub mac: MacAddr,
    /// The namespace it is created in; None for this one.
    pub netns: Option<RawFd>,
}

impl Netlink {
    /// The link with this name or alternative name; fails if there is none.
    pub fn link(&self, name: &str) -> Result<Link> {
        let what = format_args!("find link {name:?}");
        let Some(name) = name_attribute(name) else {
            return Err(Error::kernel(what, Errno::ENODEV));
        };
        self.get(&finding(vec![name, without_statistics()]), what, Link::read)
    }

    /// The link of this name, if it exists.
    pub fn find_link(&self, name: &str) -> Result<Option<Link>> {
        none_if_gone(self.link(name))
    }

    /// The link of this ifindex, if it exists.
    pub fn find_link_by_index(&self, index: u32) -> Result<Option<Link>> {
        let message =
            LinkUnspec::new_with_index(index).append_extra_attribute(without_statistics()).build();
        let request = Request::new(RTM_GETLINK, &message);
        none_if_gone(self.get(&request, format_args!("find link {index}"), Link::read))
    }

    /// The first link with this hardware address, if there is one. The kernel has no index of
    /// hardware addresses, so all links are read.
    pub fn find_link_by_mac(&self, mac: &MacAddr) -> Result<Option<Link>> {
        let all = self
            .links()
            .map_err(|e| e.context(format_args!("find the link with address {mac}")))?;
        Ok(all.into_iter().find(|link| link.mac == mac.octets()))
    }

    /// All links.
    pub fn links(&self) -> Result<Vec<Link>> {
        self.dump(&finding(vec![without_statistics()]), "list the links", Link::read)
    }

    /// The links of one kind.
    pub fn links_of_kind(&self, kind: &str) -> Result<Vec<Link>> {
        let filter = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::from(kind))]);
        let all = self.list_links(filter, format_args!("list the links of type {kind}"))?;
        Ok(all.into_iter().filter(|link| link.kind == kind).collect())
    }

    /// The ports of a bridge.
    pub fn ports(&self, bridge: &Link) -> Result<Vec<Link>> {
        let filter = LinkAttribute::Controller(bridge.index);
        let all = self.list_links(filter, format_args!("list the ports of {:?}", bridge.name))?;
        Ok(all.into_iter().filter(|link| link.master == Some(bridge.index)).collect())
    }

    fn list_links(
        &self,
        filter: LinkAttribute,
        what: std::fmt::Arguments<'_>,
    ) -> Result<Vec<Link>> {
        self.dump(&finding(vec![without_statistics(), filter]), what, Link::read)
    }

    /// The number by which this namespace knows the one that `netns` is open on; None if it has
    /// none. The kernel gives it one at the latest when it reports a link that leads there.
    pub fn nsid(&self, netns: RawFd) -> Result<Option<u32>> {
        let what = "find the number of a netns";
        let mut message = NsidMessage::default();
        message.attributes.push(NsidAttribute::Fd(netns as u32));
        let request = Request::new(RTM_GETNSID, &message);
        // Not by `get`, which may have kept the answer of another namespace: the question has only
        // the number of a descriptor.
        let seq = self.send(&request, 0).map_err(|e| Error::kernel(what, e))?;
        let mut found = None;
        self.transport
            .one(seq, |reply| found = Attrs::after(reply.payload, NSID_HEADER).u32(NETNSA_NSID))
            .map_err(|refusal| refused(what, refusal))?;
        Ok(found.filter(|nsid| *nsid != NOT_ASSIGNED))
    }

    /// Creates a bridge that is up from the start: `ip link add NAME up type bridge`.
    pub fn create_bridge(&self, spec: &BridgeSpec<'_>) -> Result<()> {
        let mut message = LinkBridge::new(spec.name).up();
        if spec.vlan_filtering {
            message = message.vlan_filtering(true);
        }
        if let Some(mtu) = spec.mtu {
            message = message.mtu(mtu);
        }
        if let Some(mac) = &spec.mac {
            message = message.address(mac.octets().to_vec());
        }
        match self.create(message.build(), spec.name, "bridge") {
            Err(e) if spec.vlan_filtering && e.is_errno(Errno::EOPNOTSUPP) => {
                Err(e.with_details("or can it not filter by VLAN?"))
            }
            created => created,
        }
    }

    /// Makes a bridge forward the frames to these link-local group addresses, and to no others of
    /// them: bit N is for 01:80:c2:00:00:0N.
    pub fn set_group_fwd_mask(&self, bridge: &Link, mask: u16) -> Result<()> {
        let data = InfoData::Bridge(vec![InfoBridge::GroupFwdMask(mask)]);
        let info = vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(data)];
        let message = LinkUnspec::new_with_index(bridge.index)
            .append_extra_attribute(LinkAttribute::LinkInfo(info))
            .build();
        let what = format_args!("set bridge {:?}: group_fwd_mask {mask}", bridge.name);
        self.request(&Request::new(RTM_NEWLINK, &message), 0, what)
    }

    /// Creates a veth pair: `ip link add NAME type veth peer name PEER netns NS`.
    pub fn create_veth(&self, spec: &VethSpec<'_>) -> Result<()> {
        let PeerSpec { name, mac, netns } = &spec.peer;
        let mut peer = LinkUnspec::new_with_name(name).address(mac.octets().to_vec());
        if let Some(netns) = *netns {
            peer = peer.setns_by_fd(netns);
        }
        if let Some(mtu) = spec.mtu {
            peer = peer.mtu(mtu);
        }
        let peer = InfoData::Veth(InfoVeth::Peer(peer.build()));
        let mut message =
            LinkVeth::new(spec.name, spec.peer.name).address(spec.mac.octets().to_vec());
        if let Some(mtu) = spec.mtu {
            message = message.mtu(mtu);
        }
        self.create(message.set_info_data(peer).build(), spec.name, "veth")
    }

    pub(super) fn create(&self, message: LinkMessage, name: &str, kind: &str) -> Result<()> {
        match self.request_link(&message, name, kind) {
            // A module is missing, or the kernel or the lower link lacks a property.
            Err(e) if e.is_errno(Errno::EOPNOTSUPP) => Err(match self.has_kind(kind) {
                Ok(false) => e.with_details(module::advice(module::of_links(kind))),
                // The refusal is the error to report, whether or not this question was answered.
                Ok(true) | Err(_) => e.with_details(format_args!(
                    "does the kernel have {kind}, with all that is asked of it?"
                )),
            }),
            created => created,
        }
    }

    pub(super) fn request_link(&self, message: &LinkMessage, name: &str, kind: &str) -> Result<()> {
        let what = format_args!("create link {name:?} ({kind})");
        self.add(&Request::new(RTM_NEWLINK, message), what)
    }

    /// Removes a link; a veth's other end goes with it.
    pub fn delete_link(&self, index: u32) -> Result<()> {
        self.request(
            &Request::new(RTM_DELLINK, &LinkUnspec::new_with_index(index).build()),
            0,
            format_args!("delete link {index}"),
        )
    }

    /// Removes links. One request removes several of them, and the kernel waits for the same RCU
    /// grace periods as for one. Succeeds for links that are already gone.
    pub fn delete_links(&self, indexes: &[u32]) -> Result<()> {
        match indexes {
            [] => Ok(()),
            [index] => none_if_gone(self.delete_link(*index)).map(drop),
            several => self.delete_group(several),
        }
    }

    /// Puts the links into a group of their own and removes that: `ip link delete group NUMBER`.
    fn delete_group(&self, indexes: &[u32]) -> Result<()> {
        // A random group (IFLA_GROUP of rtnetlink(7)), above those that administrators name in
        // /etc/iproute2/group. Never 0: the kernel creates every link in group 0.
        let random = RandomState::new().build_hasher().finish() as u32;
        let group = random & 0x3fff_ffff | 0x4000_0000;
        for index in indexes {
            let message = LinkUnspec::new_with_index(*index)
                .append_extra_attribute(LinkAttribute::Group(group))
                .build();
            let what = format_args!("set link {index}: group {group}");
            none_if_gone(self.request(&Request::new(RTM_SETLINK, &message), 0, what))?;
        }
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::Group(group));
        self.remove(&Request::new(RTM_DELLINK, &message), format_args!("delete links {indexes:?}"))
    }

    /// Removes the link of this name, if it exists.
    pub fn delete_link_by_name(&self, name: &str) -> Result<()> {
        let message = LinkUnspec::new_with_name(name).build();
        self.remove(&Request::new(RTM_DELLINK, &message), format_args!("delete link {name:?}"))
    }

    /// Gives a link an alternative name: `ip link property add NAME altname OTHER`.
    pub fn add_alternative_name(&self, link: &Link, name: &str) -> Result<()> {
        let request = alternative_name_request(RTM_NEWLINKPROP, link, name);
        self.add(&request, format_args!("add altname {name:?} to link {:?}", link.name))
    }

    /// Removes an alternative name of a link, if the link has it.
    pub fn delete_alternative_name(&self, link: &Link, name: &str) -> Result<()> {
        let request = alternative_name_request(RTM_DELLINKPROP, link, name);
        self.remove(&request, format_args!("delete altname {name:?} of link {:?}", link.name))
    }

    /// Changes the flags of a bridge's port: `bridge link set`.
    pub fn set_port(&self, link: &Link, hairpin: bool, isolated: bool) -> Result<()> {
        let message = LinkBridgePort::new(link.index).hairpin(hairpin).isolated(isolated).build();
        self.request(
            &Request::new(RTM_NEWLINK, &message),
            0,
            format_args!("set bridge port {:?}: hairpin {hairpin}, isolated {isolated}", link.name),
        )
    }
}

/// The request for links with these attributes.
fn finding(attributes: Vec<LinkAttribute>) -> Request {
    let mut message = LinkMessage::default();
    message.attributes = attributes;
    Request::new(RTM_GETLINK, &message)
}

/// Excludes statistics, which are most of the reply and of the kernel's work.
fn without_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}

/// The attribute that requests a link by its name or by an alternative name; a longer name has an
/// attribute of its own. None if no link can have such a name: the kernel would read it up to the
/// NUL, or refuse it as out of range.
fn name_attribute(name: &str) -> Option<LinkAttribute> {
    match name.len() {
        _ if name.is_empty() || name.contains('\0') => None,
        length if length <= NAME_MAX => Some(LinkAttribute::IfName(name.to_owned())),
        length if length <= ALTERNATIVE_NAME_MAX => {
            let text = [name.as_bytes(), &[0]].concat();
            Some(LinkAttribute::Other(DefaultNla::new(IFLA_ALT_IFNAME, text)))
        }
        _ => None,
    }
}

/// A request of this type about an alternative name.
fn alternative_name_request(kind: u16, link: &Link, name: &str) -> Request {
    let mut list = Attributes::default();
    list.text(IFLA_ALT_IFNAME, name);
    let list = DefaultNla::new(IFLA_PROP_LIST | NLA_F_NESTED, list.bytes().to_vec());
    let message = LinkUnspec::new_with_index(link.index)
        .append_extra_attribute(LinkAttribute::Other(list))
        .build();
    Request::new(kind, &message)
}
