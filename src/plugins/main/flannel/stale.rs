//! Notices a subnet.env of before: flanneld gives its own link the address of the node's subnet.

use ipnet::IpNet;

use super::subnet_env::SubnetEnv;
use crate::error::{Code, Error, Result};
use crate::net::netlink::Netlink;

/// The links of flanneld's backends: vxlan and geneve with their usual VNI, wireguard, ipip and udp.
/// Each is looked up by its name: a list of all links would take longer with every container.
const LINKS: [&str; 6] =
    ["flannel.1", "flannel-v6.1", "flannel-wg", "flannel-wg-v6", "flannel.ipip", "flannel0"];

/// Fails if a link of flanneld has an address of the network that is in none of the node's subnets.
/// Backends without a link, such as host-gw, show nothing, nor does a link of another name.
pub fn refuse(host: &Netlink, env: &SubnetEnv) -> Result<()> {
    let is_in = |all: &[IpNet], net: IpNet| all.iter().any(|one| one.contains(&net.addr()));
    for name in LINKS {
        let Some(link) = host.find_link(name)? else { continue };
        let mut nets = host.addresses(&link)?.into_iter().map(|address| address.net);
        let is_other = |net: &IpNet| is_in(&env.networks, *net) && !is_in(&env.subnets, *net);
        if let Some(other) = nets.find(is_other) {
            let address = other.addr();
            let msg = format!("subnet.env is stale: link {:?} has address {address}", link.name);
            return Err(Error::new(Code::TRY_AGAIN, msg).with_details(
                "flanneld has another subnet by now, and writes the file when it starts",
            ));
        }
    }
    Ok(())
}
