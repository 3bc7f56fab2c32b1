//! The VLANs of a bridge's port.

use std::collections::BTreeSet;

use super::conf::Conf;
use crate::error::{Error, Result};
use crate::net::netlink::{Link, Netlink, VlanFlags, VlanRange};
use crate::steps::vlan_trunk::Trunk;

/// The VLAN of untagged packets if trunks are configured without `vlan`.
const DEFAULT_NATIVE: u16 = 1;

/// The VLANs that a port must be a member of; empty if the configuration has no VLANs.
pub fn plan(conf: &Conf) -> Vec<VlanRange> {
    let mut tagged: BTreeSet<u16> = conf.vlan_trunk.iter().flatten().flat_map(Trunk::ids).collect();
    let native = match conf.vlan() {
        0 if tagged.is_empty() => return vec![],
        0 => DEFAULT_NATIVE,
        vlan => vlan,
    };
    // In the reference a trunk that includes the native VLAN makes it tagged; no configuration can
    // intend that.
    tagged.remove(&native);
    let mut all = vec![VlanRange::one(native, VlanFlags::NativeUntagged)];
    // Joins neighbouring ids: the kernel takes a range in one message.
    for id in tagged {
        match all.last_mut() {
            Some(range) if range.flags == VlanFlags::Tagged && range.last + 1 == id => {
                range.last = id;
            }
            _ => all.push(VlanRange::one(id, VlanFlags::Tagged)),
        }
    }
    all
}

/// Makes the port a member of these VLANs, and removes it from the one that it `leaves`.
pub fn set(host: &Netlink, port: &Link, plan: &[VlanRange], leaves: Option<u16>) -> Result<()> {
    if plan.is_empty() {
        return Ok(());
    }
    if let Some(left) = leaves {
        host.delete_vlan(port, left)?;
    }
    plan.iter().try_for_each(|vlans| host.add_vlans(port, *vlans))
}

/// Verifies that the port is a member of these VLANs.
pub fn verify(host: &Netlink, port: &Link, plan: &[VlanRange]) -> Result<()> {
    if plan.is_empty() {
        return Ok(());
    }
    let found = host.port_vlans(port)?;
    // A trunk may have thousands: the first missing VLAN says enough.
    let mut members =
        plan.iter().flat_map(|vlans| (vlans.first..=vlans.last).map(|id| (id, vlans.flags)));
    match members.find(|vlan| !found.contains(vlan)) {
        Some((id, flags)) => Err(Error::check(format!(
            "bridge port {:?} is not a member ({flags:?}) of VLAN {id}",
            port.name
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trunk(min_id: Option<i64>, max_id: Option<i64>, id: Option<i64>) -> Trunk {
        Trunk::of(min_id, max_id, id)
    }

    fn plan_of(vlan: i64, trunks: Option<Vec<Trunk>>) -> Vec<(u16, u16, VlanFlags)> {
        let mut conf = Conf::default();
        (conf.vlan, conf.vlan_trunk) = (vlan, trunks);
        plan(&conf).iter().map(|vlans| (vlans.first, vlans.last, vlans.flags)).collect()
    }

    /// The reference lets `vlanTrunk` make the VLAN of `vlan` tagged, and sends a message for each
    /// VLAN, not for each range.
    #[test]
    fn plans_are_sorted_ranges_with_the_native_vlan_first() {
        use VlanFlags::{NativeUntagged, Tagged};
        assert_eq!(plan_of(0, None), []);
        assert_eq!(plan_of(0, Some(vec![])), []);
        assert_eq!(plan_of(100, None), [(100, 100, NativeUntagged)]);
        let trunks = Some(vec![
            trunk(Some(200), Some(210), None),
            trunk(None, None, Some(101)),
            trunk(Some(205), Some(211), Some(1)),
        ]);
        assert_eq!(
            plan_of(0, trunks.clone()),
            [(1, 1, NativeUntagged), (101, 101, Tagged), (200, 211, Tagged)]
        );
        assert_eq!(
            plan_of(205, trunks),
            [
                (205, 205, NativeUntagged),
                (1, 1, Tagged),
                (101, 101, Tagged),
                (200, 204, Tagged),
                (206, 211, Tagged)
            ]
        );
    }
}
