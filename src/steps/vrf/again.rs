//! Puts an interface that has left its VRF there again, and adds routes that the VRF has lost.

use super::{Joined, Port, Vrf, Wanted, has_master, join, records, table_of};
use crate::error::Result;
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::plugin::{Attachment, Context};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::kept_routes;

/// Restores the VRF, the membership of the interface, and the routes that its record keeps. Fails if
/// the interface has another master.
pub fn rejoin(
    cx: &Context<'_>,
    at: &Attachment,
    wanted: &Wanted<'_>,
    repairs: &Repairs,
) -> Result<()> {
    let container = at.netlink()?;
    let link = container.link(at.ifname())?;
    match (link.master, container.find_link(wanted.name)?) {
        (Some(master), Some(vrf)) if vrf.index == master => {
            set_up(container, &vrf, repairs)?;
            add_routes(cx, at, wanted.accept(&vrf)?, repairs)
        }
        (Some(master), _) => Err(has_master(&link, &master.to_string())),
        (None, _) => {
            let what =
                format_args!("put {:?} into VRF {:?} in the container", link.name, wanted.name);
            repairs.make(what, || join_again(cx, at, wanted))
        }
    }
}

fn set_up(container: &Netlink, vrf: &Link, repairs: &Repairs) -> Result<()> {
    if vrf.up || vrf.alias != super::ALIAS {
        return Ok(());
    }
    let change = LinkChange { up: Some(true), ..LinkChange::default() };
    let what = format_args!("set VRF {:?} up in the container", vrf.name);
    repairs.make(what, || container.change_link(vrf, &change))
}

/// Joins as ADD does. The routes of the record were lost when the interface left the VRF.
fn join_again(cx: &Context<'_>, at: &Attachment, wanted: &Wanted<'_>) -> Result<()> {
    let lost = recorded_routes(at)?;
    transaction(|rb| join(cx, at, wanted, rb))?;
    let container = at.netlink()?;
    let vrf = container.link(wanted.name)?;
    let vrf = Vrf { index: vrf.index, table: table_of(&vrf)? };
    let port = port_with(cx, at, &lost)?;
    port.put_back_routes(Some(vrf.table))?;
    records().write(at, &port.member_of(vrf))
}

/// Adds the routes of the record that the VRF's table lacks.
fn add_routes(cx: &Context<'_>, at: &Attachment, vrf: Vrf, repairs: &Repairs) -> Result<()> {
    let port = port_with(cx, at, &recorded_routes(at)?)?;
    let present = port.container.routes_through(&port.link)?;
    for route in &port.routes {
        let route = route.in_table(vrf.table);
        if !kept_routes::has(&present, &route) {
            let what =
                format_args!("add route {} to table {} in the container", route.dst, vrf.table);
            repairs.make(what, || port.put_route(&route))?;
        }
    }
    Ok(())
}

/// The interface with these routes in place of its own.
fn port_with<'a>(cx: &Context<'_>, at: &'a Attachment, kept: &[String]) -> Result<Port<'a>> {
    let container = at.netlink()?;
    let link = container.link(at.ifname())?;
    let routes = kept_routes::read(kept, &link);
    Ok(Port { at, container, link, addresses: vec![], routes, deadline: cx.deadline() })
}

/// The routes that the record of this namespace keeps.
fn recorded_routes(at: &Attachment) -> Result<Vec<String>> {
    match records().find::<Joined>(&at.key)? {
        Some(record) if record.is_of(at.netns()?)? => Ok(routes_of(record.kept)),
        _ => Ok(vec![]),
    }
}

fn routes_of(joined: Joined) -> Vec<String> {
    match joined {
        Joined::Member { routes, .. } => routes,
        Joined::Creating { .. } | Joined::Refused { .. } => vec![],
    }
}
