//! The interfaces of a result.

use crate::cni::result::{AddResult, Interface};
use crate::net::mac::MacAddr;
use crate::net::netlink::Link;
use crate::plugin::Attachment;

/// The entry of a link on the host.
pub fn on_host(link: &Link) -> Interface {
    Interface { name: link.name.clone(), mac: link.mac().to_string(), ..Interface::default() }
}

/// The entry of the container's interface.
pub fn in_container(at: &Attachment, mac: &MacAddr) -> Interface {
    Interface {
        name: at.ifname().to_owned(),
        mac: mac.to_string(),
        sandbox: at.netns_path.clone(),
        ..Interface::default()
    }
}

/// Whether the result has this link of the host.
pub fn has_on_host(result: &AddResult, link: &Link) -> bool {
    let is_link =
        |interface: &Interface| interface.sandbox.is_empty() && interface.name == link.name;
    result.interfaces.iter().any(is_link)
}

/// Says of every address of the result that this one of its interfaces has it.
pub fn assign_addresses(result: &mut AddResult, interface: i64) {
    result.ips.iter_mut().for_each(|ip| ip.interface = Some(interface));
}
