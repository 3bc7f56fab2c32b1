//! Links of the kinds that need nothing else, or only a lower link: `ip link add … type KIND`.

use std::fmt;
use std::os::fd::RawFd;

use nix::errno::Errno;
use rtnetlink::packet_route::link::{
    InfoData, InfoIpVlan, InfoKind, InfoMacVlan, InfoVlan, InfoVrf, IpVlanMode, LinkAttribute,
    LinkInfo, LinkMessage, MacVlanMode,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::attr::Attrs;
use super::bond::{Bond, setting};
use super::socket::Netlink;
use crate::error::{Result, Word};
use crate::net::mac::MacAddr;

// linux/if_link.h, each within IFLA_INFO_DATA
const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_MACVLAN_BC_QUEUE_LEN: u16 = 7;
const IFLA_IPVLAN_MODE: u16 = 1;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VRF_TABLE: u16 = 1;

/// A kind of link, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Several links that work as one.
    Bond(Box<Bond>),
    /// An interface that discards what is sent.
    Dummy,
    /// Passes packets that are redirected to it through a qdisc of its own and returns them.
    Ifb,
    /// Shares the lower link's hardware address.
    Ipvlan(IpvlanMode),
    /// Has a hardware address of its own on the lower link.
    Macvlan {
        /// Which other links it exchanges packets with.
        mode: MacvlanMode,
        /// How many broadcasts may be queued on the lower link; None for the kernel's default, and
        /// in what is read for a kernel that has no such setting (before Linux 5.11).
        broadcast_queue: Option<u32>,
    },
    /// Carries the lower link's frames with this IEEE 802.1Q tag.
    Vlan(u16),
    /// Links with it as their master look up routes in this table only.
    Vrf(u32),
}

impl LinkKind {
    /// The kernel's name for it.
    pub fn name(&self) -> &'static str {
        match self {
            LinkKind::Bond(_) => "bond",
            LinkKind::Dummy => "dummy",
            LinkKind::Ifb => "ifb",
            LinkKind::Ipvlan(_) => "ipvlan",
            LinkKind::Macvlan { .. } => "macvlan",
            LinkKind::Vlan(_) => "vlan",
            LinkKind::Vrf(_) => "vrf",
        }
    }

    /// Reads the kind of a link, if it is one of these. Of a bond only the mode is read.
    pub(super) fn read(name: &str, data: Attrs<'_>) -> Option<LinkKind> {
        match name {
            "bond" => Some(LinkKind::Bond(Box::new(Bond::read(data)?))),
            "dummy" => Some(LinkKind::Dummy),
            "ifb" => Some(LinkKind::Ifb),
            "ipvlan" => Some(LinkKind::Ipvlan(IpvlanMode(data.u16(IFLA_IPVLAN_MODE)?))),
            "macvlan" => {
                let mode = MacvlanMode(data.u32(IFLA_MACVLAN_MODE)?);
                let broadcast_queue = data.u32(IFLA_MACVLAN_BC_QUEUE_LEN);
                Some(LinkKind::Macvlan { mode, broadcast_queue })
            }
            "vlan" => Some(LinkKind::Vlan(data.u16(IFLA_VLAN_ID)?)),
            "vrf" => Some(LinkKind::Vrf(data.u32(IFLA_VRF_TABLE)?)),
            _ => None,
        }
    }

    fn info(&self) -> (InfoKind, Option<InfoData>) {
        match self {
            LinkKind::Bond(bond) => (InfoKind::Bond, Some(bond.info())),
            LinkKind::Dummy => (InfoKind::Dummy, None),
            LinkKind::Ifb => (InfoKind::Ifb, None),
            LinkKind::Ipvlan(mode) => (
                InfoKind::IpVlan,
                Some(InfoData::IpVlan(vec![InfoIpVlan::Mode(IpVlanMode::from(mode.0))])),
            ),
            LinkKind::Macvlan { mode, broadcast_queue } => {
                let mut data = vec![InfoMacVlan::Mode(MacVlanMode::from(mode.0))];
                data.extend(broadcast_queue.map(InfoMacVlan::BcQueueLen));
                (InfoKind::MacVlan, Some(InfoData::MacVlan(data)))
            }
            LinkKind::Vlan(id) => (InfoKind::Vlan, Some(InfoData::Vlan(vec![InfoVlan::Id(*id)]))),
            LinkKind::Vrf(table) => {
                (InfoKind::Vrf, Some(InfoData::Vrf(vec![InfoVrf::TableId(*table)])))
            }
        }
    }
}

/// A link to be created.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// Its kind.
    pub kind: LinkKind,
    /// ifindex of its lower link, in the namespace of the socket.
    pub lower: Option<u32>,
    /// MTU in bytes; None for the kernel's default, which for most kinds is the lower link's.
    pub mtu: Option<u32>,
    /// Its hardware address; None for the kernel's choice.
    pub mac: Option<MacAddr>,
}

impl LinkSpec {
    /// A link of this kind without a lower link, with the kernel's defaults.
    pub fn of(kind: LinkKind) -> LinkSpec {
        LinkSpec { kind, lower: None, mtu: None, mac: None }
    }
}

impl Netlink {
    /// Creates a link that is down, here or in the namespace `netns`: `ip link add link LOWER name
    /// NAME netns NS type …`. Kernels before 6.13 refuse a name that a link here has, even if the
    /// new link is created elsewhere.
    pub fn create_link(&self, name: &str, netns: Option<RawFd>, spec: &LinkSpec) -> Result<()> {
        let (kind, data) = spec.kind.info();
        let info = [Some(LinkInfo::Kind(kind)), data.map(LinkInfo::Data)];
        let attributes = [
            Some(LinkAttribute::IfName(name.to_owned())),
            spec.lower.map(LinkAttribute::Link),
            spec.mtu.map(LinkAttribute::Mtu),
            spec.mac.as_ref().map(|mac| LinkAttribute::Address(mac.octets().to_vec())),
            netns.map(LinkAttribute::NetNsFd),
            Some(LinkAttribute::LinkInfo(info.into_iter().flatten().collect())),
        ];
        let mut message = LinkMessage::default();
        message.attributes = attributes.into_iter().flatten().collect();
        self.create(message, name, spec.kind.name())
    }

    /// Whether the kernel has links of this kind, by its name for it. The request has an invalid
    /// address and no lower link: a kernel that has the kind refuses it for that, so nothing is
    /// created.
    pub fn has_kind(&self, kind: &str) -> Result<bool> {
        let probe = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::from(kind));
        let probe = probe.name(PROBE).address(vec![0; 6]).build();
        match self.request_link(&probe, PROBE, kind) {
            Err(e) if e.is_errno(Errno::EOPNOTSUPP) => Ok(false),
            Err(e) if e.is_errno(Errno::EPERM) => Err(e),
            Err(_) => Ok(true),
            Ok(()) => self.delete_link_by_name(PROBE).map(|()| true),
        }
    }
}

/// The name of the link that [`Netlink::has_kind`] requests.
const PROBE: &str = "cni-probe";

setting! {
    /// MACVLAN_MODE_* of linux/if_link.h. By default the links of one lower link talk to each other.
    MacvlanMode(u32) = 4 or "", "unknown macvlan mode:":
    "bridge" = 4, "private" = 1, "vepa" = 2, "passthru" = 8
}

setting! {
    /// IPVLAN_MODE_* of linux/if_link.h; the default is `l2`.
    IpvlanMode(u16) = 0 or "", "unknown ipvlan mode:":
    "l2" = 0, "l3" = 1, "l3s" = 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_the_names_of_iproute2() {
        assert_eq!(MacvlanMode::of("passthru").unwrap(), MacvlanMode(8));
        assert_eq!(MacvlanMode::default().to_string(), "bridge");
        assert_eq!(IpvlanMode::of("l3s").unwrap().to_string(), "l3s");
        assert_eq!(IpvlanMode::default().to_string(), "l2");
        assert_eq!(MacvlanMode(16).to_string(), "16", "a mode that others set");
        assert_eq!(MacvlanMode::of("brige"), None);
        assert_eq!(MacvlanMode::WORDS, ["bridge", "private", "vepa", "passthru"]);
    }
}
