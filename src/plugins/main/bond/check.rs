//! CHECK of a bond: its kind, its mode, its links and its addresses.

use super::KIND;
use super::conf::Conf;
use crate::error::{Error, ErrorList, Result};
use crate::net::netlink::{Link, LinkKind, Netlink};
use crate::plugin::part::{Part, Target};
use crate::steps::{container_link, prev_result};

/// Compares the bond with prevResult and the configuration.
pub fn compare(on: Target<'_>, conf: &Conf) -> Result<()> {
    let mut result = prev_result::require(on.cx);
    if let Ok(result) = &mut result
        && conf.follows_active_link()
    {
        // The bond's hardware address changes with its active link.
        result.interfaces.iter_mut().for_each(|interface| interface.mac.clear());
    }
    container_link::compare(on, result, Some(KIND), |bond| {
        ErrorList::of([
            verify_mode(conf, bond),
            verify_mtu(conf, bond),
            on.at.netlink().and_then(|container| verify_ports(conf, container, bond)),
            conf.accept_ra.compare(on),
        ])
    })
}

fn verify_mode(conf: &Conf, bond: &Link) -> Result<()> {
    match &bond.detail {
        Some(LinkKind::Bond(found)) if found.mode != conf.mode() => Err(Error::check(format!(
            "interface {:?} has bonding mode {}, expected {}",
            bond.name,
            found.mode,
            conf.mode()
        ))),
        _ => Ok(()),
    }
}

fn verify_mtu(conf: &Conf, bond: &Link) -> Result<()> {
    match conf.mtu() {
        Some(mtu) if mtu != bond.mtu => Err(Error::check(format!(
            "interface {:?} has MTU {}, expected {mtu}",
            bond.name, bond.mtu
        ))),
        _ => Ok(()),
    }
}

fn verify_ports(conf: &Conf, container: &Netlink, bond: &Link) -> Result<()> {
    let ports = container.ports(bond)?;
    let is_port = |name: &str| ports.iter().any(|port| goes_by(port, name));
    let missing = conf.names().filter(|name| !is_port(name));
    ErrorList::of(missing.map(|name| Err(unbonded(bond, name))))
}

fn goes_by(link: &Link, name: &str) -> bool {
    link.name == name || link.alternative_names.iter().any(|other| other == name)
}

fn unbonded(bond: &Link, name: &str) -> Error {
    Error::check(format!("link {name:?} is not a port of {:?}", bond.name))
}
