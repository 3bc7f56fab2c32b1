//! VLANs of a bridge's ports: `bridge vlan`.

use rtnetlink::LinkBridgeVlan;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{
    AfSpecBridge, BridgeFlag, BridgeVlanInfoFlags, LinkAttribute, LinkExtentMask, LinkMessage,
};

use super::attr::{Attrs, read_u16, read_u32};
use super::link::Link;
use super::socket::{Netlink, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK, Request};
use crate::error::Result;

/// ifinfomsg.
const HEADER: usize = 16;
/// The offset in it of the link's index.
const IFI_INDEX: usize = 4;
// linux/if_link.h, linux/if_bridge.h
const IFLA_AF_SPEC: u16 = 26;
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;
/// BRIDGE_VLAN_INFO_PVID and BRIDGE_VLAN_INFO_UNTAGGED.
const NATIVE_UNTAGGED: u16 = 1 << 1 | 1 << 2;
const BRIDGE_VLAN_INFO_RANGE_BEGIN: u16 = 1 << 3;
const BRIDGE_VLAN_INFO_RANGE_END: u16 = 1 << 4;

/// How a port is a member of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanFlags {
    /// Packets keep their tag.
    Tagged,
    /// Packets without a tag belong to it, and leave without one.
    NativeUntagged,
}

impl From<VlanFlags> for BridgeVlanInfoFlags {
    fn from(flags: VlanFlags) -> BridgeVlanInfoFlags {
        match flags {
            VlanFlags::Tagged => BridgeVlanInfoFlags::empty(),
            VlanFlags::NativeUntagged => BridgeVlanInfoFlags::Pvid | BridgeVlanInfoFlags::Untagged,
        }
    }
}

/// A range of VLAN ids, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanRange {
    /// The first id.
    pub first: u16,
    /// The last id.
    pub last: u16,
    /// How the port is a member.
    pub flags: VlanFlags,
}

impl VlanRange {
    /// One VLAN.
    pub fn one(id: u16, flags: VlanFlags) -> VlanRange {
        VlanRange { first: id, last: id, flags }
    }

    /// A request of this type about the port's membership.
    fn request(self, kind: u16, port: &Link) -> Request {
        let flags = BridgeVlanInfoFlags::from(self.flags);
        let message = LinkBridgeVlan::new(port.index)
            .append_af_spec(AfSpecBridge::Flags(BridgeFlag::Controller));
        let message = match self.first == self.last {
            true => message.vlan(self.first, flags),
            false => message.vlan_range_start(self.first, flags).vlan_range_end(self.last, flags),
        };
        Request::new(kind, &message.build())
    }
}

impl Netlink {
    /// Adds the port to the VLANs: `bridge vlan add dev PORT vid FIRST-LAST`.
    pub fn add_vlans(&self, port: &Link, vlans: VlanRange) -> Result<()> {
        let what =
            format_args!("add VLAN {}-{} to bridge port {:?}", vlans.first, vlans.last, port.name);
        self.request(&vlans.request(RTM_SETLINK, port), 0, what)
    }

    /// Removes the port from a VLAN: `bridge vlan del dev PORT vid ID`.
    pub fn delete_vlan(&self, port: &Link, id: u16) -> Result<()> {
        let what = format_args!("delete VLAN {id} of bridge port {:?}", port.name);
        let vlan = VlanRange::one(id, VlanFlags::Tagged);
        self.request(&vlan.request(RTM_DELLINK, port), 0, what)
    }

    /// The VLANs of a port, for CHECK. The kernel cannot filter this list, so it is read whole.
    pub fn port_vlans(&self, port: &Link) -> Result<Vec<(u16, VlanFlags)>> {
        let what = format_args!("list the VLANs of bridge port {:?}", port.name);
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::BrvlanCompressed]));
        let lists = self.dump(&Request::new(RTM_GETLINK, &message), what, |payload| {
            let attrs = Attrs::after(payload, HEADER).nested(IFLA_AF_SPEC)?;
            (read_u32(payload, IFI_INDEX)? == port.index).then(|| read_vlans(attrs))
        })?;
        Ok(lists.concat())
    }
}

/// The largest VLAN id: it bounds the expansion of a range, whatever the message contains.
const LAST: u16 = 4094;

/// Reads IFLA_BRIDGE_VLAN_INFO: flags and id; a range is two entries.
fn read_vlans(attrs: Attrs<'_>) -> Vec<(u16, VlanFlags)> {
    let mut vlans = vec![];
    let mut first = None;
    for (_, info) in attrs.iter().filter(|(kind, _)| *kind == IFLA_BRIDGE_VLAN_INFO) {
        let (Some(flags), Some(id)) = (read_u16(info, 0), read_u16(info, 2)) else { continue };
        if flags & BRIDGE_VLAN_INFO_RANGE_BEGIN != 0 {
            first = Some(id);
            continue;
        }
        let is_native_untagged = flags & NATIVE_UNTAGGED == NATIVE_UNTAGGED;
        let member = if is_native_untagged { VlanFlags::NativeUntagged } else { VlanFlags::Tagged };
        let from = first.take().filter(|_| flags & BRIDGE_VLAN_INFO_RANGE_END != 0).unwrap_or(id);
        vlans.extend((from..=id.min(LAST)).map(|id| (id, member)));
    }
    vlans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(vlans: &[(u16, u16)]) -> Vec<(u16, VlanFlags)> {
        let mut bytes = vec![];
        for (flags, id) in vlans {
            bytes.extend(8u16.to_ne_bytes());
            bytes.extend(IFLA_BRIDGE_VLAN_INFO.to_ne_bytes());
            bytes.extend(flags.to_ne_bytes());
            bytes.extend(id.to_ne_bytes());
        }
        read_vlans(Attrs::of(&bytes))
    }

    #[test]
    fn ranges_are_unfolded() {
        use VlanFlags::{NativeUntagged, Tagged};
        let vlans = told(&[
            (NATIVE_UNTAGGED, 1),
            (BRIDGE_VLAN_INFO_RANGE_BEGIN, 10),
            (BRIDGE_VLAN_INFO_RANGE_END, 12),
        ]);
        assert_eq!(vlans, [(1, NativeUntagged), (10, Tagged), (11, Tagged), (12, Tagged)]);
    }

    #[test]
    fn ranges_without_an_end_or_a_beginning_do_not_fill_the_memory() {
        assert_eq!(told(&[(BRIDGE_VLAN_INFO_RANGE_END, 12); 3]).len(), 3, "each is one");
        assert_eq!(
            told(&[(BRIDGE_VLAN_INFO_RANGE_BEGIN, 1), (BRIDGE_VLAN_INFO_RANGE_END, u16::MAX)])
                .len(),
            4094
        );
        assert_eq!(
            told(&[(BRIDGE_VLAN_INFO_RANGE_BEGIN, 1), (0, 5), (BRIDGE_VLAN_INFO_RANGE_END, 7)]),
            [(5, VlanFlags::Tagged), (7, VlanFlags::Tagged)]
        );
    }
}
