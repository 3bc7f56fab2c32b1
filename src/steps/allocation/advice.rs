//! What the reader of an allocation's error can do.

use std::net::IpAddr;

use crate::cni::attachment::{Key, NetworkName};
use crate::net::namespaces;
use crate::plugin::Attachment;

/// What frees addresses of sets that are full. Looks into every namespace of the machine, so it is
/// for failures only.
pub fn on_full(held: &[IpAddr], network: &NetworkName) -> String {
    let gone = namespaces::addresses_elsewhere()
        .map(|in_use| held.iter().filter(|ip| !in_use.contains(ip)).count());
    let count = held.len();
    match gone {
        Ok(0) => format!("all {count} leases are of containers that exist: make the range larger"),
        Ok(gone) => format!(
            "{gone} of {count} leases are of containers that are gone; \
             free those with: cni-multi net gc {network}"
        ),
        Err(_) => {
            format!("free leases of containers that are gone with: cni-multi net gc {network}")
        }
    }
}

/// What frees the address of an attachment that has one.
pub fn on_second_add(at: &Attachment) -> String {
    let Key { network, container_id, ifname } = &at.key;
    let netns = &at.netns_path;
    format!(
        "its {:?} has the address from an earlier ADD; DEL frees it: \
         cni-multi net del {network} {netns} --container-id {container_id} --ifname {ifname}",
        ifname.as_str()
    )
}
