//! A link as a port of the bridge, and its VLANs.

use std::collections::BTreeSet;

use super::conf::Conf;
use super::creation::Member;
use crate::error::{Aspect, Error, ErrorList, Result, warn};
use crate::net::netlink::{Link, LinkChange, Netlink, VlanFlags, VlanRange};
use crate::rollback::Rollback;
use crate::steps::vlan_trunk::Trunk;
use crate::steps::{settings, veth};

/// How many times a bridge that another ADD's rollback deleted is created again.
const TRIES: usize = 3;

/// Makes the host's end a port of the bridge and sets it up; returns the bridge that it is now a
/// port of.
pub fn attach<'a>(
    member: Member<'a>,
    bridge: Link,
    port: &Link,
    rb: &mut Rollback<'a>,
) -> Result<Link> {
    settings::ignore_ra(&port.name)?;
    let bridge = join(member, bridge, port, rb)?;
    let Conf { hairpin_mode, port_isolation, .. } = *member.conf;
    let host = member.host()?;
    // A new link has no flags. A repair may find some that the configuration does not have, and the
    // kernel resets those of a port of another bridge.
    let found = match port.master {
        None => (false, false),
        Some(_) => host.link(&port.name).map(|port| (port.hairpin, port.isolated))?,
    };
    if found != (hairpin_mode, port_isolation) {
        host.set_port(port, hairpin_mode, port_isolation)?;
    }
    let plan = planned_vlans(member.conf);
    if !plan.is_empty() && !bridge.vlan_filtering {
        let name = &bridge.name;
        warn(format_args!(
            "bridge {name:?} was made without VLAN filtering: its ports see every VLAN until vlan_filtering is set"
        ));
    }
    set_vlans(host, port, &plan, member.conf.left_vlan(&bridge))?;
    Ok(bridge)
}

/// Verifies that the host's end is up, and a port of the bridge with its flags and its VLANs.
pub fn verify(member: Member<'_>, port: &Link, bridge: &Link) -> Result<()> {
    let (conf, name) = (member.conf, &port.name);
    if port.master != Some(bridge.index) {
        let problem = format!("{name:?} is not a port of bridge {:?}", bridge.name);
        let error = no_port(Error::check(problem).about(&Aspect::Port), &bridge.name);
        return ErrorList::of([Err(error), veth::verify_up(port)]);
    }
    let flag = |flag, found, wanted| match found == wanted {
        true => Ok(()),
        false => {
            Err(Error::check(format!("bridge port {name:?} has {flag} {found}, expected {wanted}")))
        }
    };
    ErrorList::of([
        veth::verify_up(port),
        flag("hairpin", port.hairpin, conf.hairpin_mode),
        flag("isolated", port.isolated, conf.port_isolation),
        verify_vlans(member.host()?, port, &planned_vlans(conf)),
    ])
}

/// The error in the reference's words for a bridge without the port.
pub fn no_port(reason: Error, bridge: &str) -> Error {
    reason.saying(format_args!("CNI veth created for bridge {bridge} was not found"))
}

/// Makes the host's end a port. A bridge that another ADD created is deleted by that ADD's rollback
/// unless it has ports; then it is created again.
fn join<'a>(
    member: Member<'a>,
    mut bridge: Link,
    port: &Link,
    rb: &mut Rollback<'a>,
) -> Result<Link> {
    let host = member.host()?;
    for _ in 1..TRIES {
        match enslave(host, &bridge, port) {
            // The kernel reports only an invalid argument.
            Err(_) if host.find_link_by_index(bridge.index)?.is_none() => {
                bridge = member.ensure_bridge(None, rb)?
            }
            done => return done.map(|()| bridge),
        }
    }
    enslave(host, &bridge, port).map(|()| bridge)
}

/// Makes a link a port and sets it up.
pub fn enslave(host: &Netlink, bridge: &Link, port: &Link) -> Result<()> {
    let change = LinkChange {
        up: Some(true),
        master: Some(bridge.index),
        without_link_local: true,
        ..LinkChange::default()
    };
    let what = format_args!("failed to connect {:?} to bridge {}", port.name, bridge.name);
    host.change_link(port, &change).map_err(|e| e.worded(what))
}

/// The VLAN of untagged packets if trunks are configured without `vlan`.
const DEFAULT_NATIVE: u16 = 1;

/// The VLANs that a port must be a member of; empty if the configuration has no VLANs.
pub fn planned_vlans(conf: &Conf) -> Vec<VlanRange> {
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
pub fn set_vlans(
    host: &Netlink,
    port: &Link,
    plan: &[VlanRange],
    leaves: Option<u16>,
) -> Result<()> {
    if plan.is_empty() {
        return Ok(());
    }
    if let Some(left) = leaves {
        host.delete_vlan(port, left)?;
    }
    plan.iter().try_for_each(|vlans| host.add_vlans(port, *vlans))
}

/// Verifies that the port is a member of these VLANs.
pub fn verify_vlans(host: &Netlink, port: &Link, plan: &[VlanRange]) -> Result<()> {
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
        planned_vlans(&conf).iter().map(|vlans| (vlans.first, vlans.last, vlans.flags)).collect()
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
