//! A link as a port of the bridge.

use super::conf::Conf;
use super::creation::Member;
use super::vlan;
use crate::error::{Aspect, Error, ErrorList, Result, warn};
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::rollback::Rollback;
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
    let plan = vlan::plan(member.conf);
    if !plan.is_empty() && !bridge.vlan_filtering {
        let name = &bridge.name;
        warn(format_args!(
            "bridge {name:?} was made without VLAN filtering: its ports see every VLAN until vlan_filtering is set"
        ));
    }
    vlan::set(host, port, &plan, member.conf.left_vlan(&bridge))?;
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
        vlan::verify(member.host()?, port, &vlan::plan(conf)),
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
