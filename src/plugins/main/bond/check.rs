//! CHECK of a bond: its kind, its mode, its links and its addresses.

use super::KIND;
use super::conf::Conf;
use crate::error::{Error, ErrorList, Result};
use crate::net::netlink::LinkKind;
use crate::plugin::part::{Part, Target};
use crate::steps::{container_link, prev_result};

/// Compares the bond with prevResult and the configuration.
pub fn compare(on: Target<'_>, conf: &Conf) -> Result<()> {
    let mut result = prev_result::require(on.cx);
    if let Ok(result) = &mut result
        && conf.fail_over_mac == 1
    {
        // The bond's hardware address changes with its active link.
        result.interfaces.iter_mut().for_each(|interface| interface.mac.clear());
    }
    container_link::compare(on, result, Some(KIND), |bond| {
        let name = &bond.name;
        let mut found = ErrorList::default();
        if let Some(LinkKind::Bond(detail)) = &bond.detail
            && detail.mode != conf.mode()
        {
            let problem = format!("bonding mode {}, expected {}", detail.mode, conf.mode());
            found.push::<()>(Err(Error::check(format!("interface {name:?} has {problem}"))));
        }
        if let Some(mtu) = conf.mtu().filter(|mtu| *mtu != bond.mtu) {
            let problem = format!("MTU {}, expected {mtu}", bond.mtu);
            found.push::<()>(Err(Error::check(format!("interface {name:?} has {problem}"))));
        }
        if let Some(ports) = found.push(on.at.netlink().and_then(|netlink| netlink.ports(bond))) {
            let is_port = |name: &&str| {
                let mut others = ports.iter().flat_map(|port| &port.alternative_names);
                ports.iter().any(|port| port.name == *name) || others.any(|other| other == name)
            };
            for link in conf.names().filter(|name| !is_port(name)) {
                let problem = format!("link {link:?} is not a port of {name:?}");
                found.push::<()>(Err(Error::check(problem)));
            }
        }
        found.push(conf.accept_ra.compare(on));
        found.finish()
    })
}
