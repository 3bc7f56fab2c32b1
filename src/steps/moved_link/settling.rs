//! A device that came back to the host without its former state: its namespace was deleted, or the
//! DEL that moved it was killed.

use super::belongings::Belongings;
use super::passage::rename;
use crate::error::Result;
use crate::net::netlink::{Link, Netlink};

/// Restores name and state of a device on the host, if it lacks them; returns the link with its
/// name.
pub(super) fn settle_unfinished(host: &Netlink, device: Link, kept: &Belongings) -> Result<Link> {
    if is_unfinished(host, &device, kept)? { settle(host, &device, kept) } else { Ok(device) }
}

/// Whether a device on the host lacks its former state. A device that the reference's DEL moved
/// back and an operator has reconfigured since does not count.
fn is_unfinished(host: &Netlink, link: &Link, kept: &Belongings) -> Result<bool> {
    let is_as_it_came = link.alias == kept.device || link.name != kept.device;
    Ok(is_as_it_came || (!link.up && host.keep_addresses(link)?.is_empty()))
}

fn settle(host: &Netlink, link: &Link, kept: &Belongings) -> Result<Link> {
    let name = &kept.device;
    if link.name != *name {
        rename(host, link, name)?;
    }
    kept.restore(host, &host.link(name)?)?;
    host.link(name)
}
