//! Notices a subnet.env of before: flanneld gives its own link the address of the node's subnet.

use ipnet::IpNet;

use super::subnet_env::SubnetEnv;
use crate::error::{Code, Error, Result};
use crate::net::netlink::{Link, Netlink};

/// The links of flanneld's backends: vxlan and geneve with their usual VNI, wireguard, ipip and udp.
/// Each is looked up by its name: a list of all links would take longer with every container.
const LINKS: [&str; 6] =
    ["flannel.1", "flannel-v6.1", "flannel-wg", "flannel-wg-v6", "flannel.ipip", "flannel0"];

/// Fails if a link of flanneld has an address of the network that is in none of the node's subnets.
/// Backends without a link, such as host-gw, show nothing, nor does a link of another name.
pub fn refuse(host: &Netlink, env: &SubnetEnv) -> Result<()> {
    LINKS.iter().try_for_each(|name| match host.find_link(name)? {
        Some(link) => refuse_by(host, &link, env),
        None => Ok(()),
    })
}

fn refuse_by(host: &Netlink, link: &Link, env: &SubnetEnv) -> Result<()> {
    other_subnet(host, link, env)?.map_or(Ok(()), |other| Err(stale(link, other)))
}

fn other_subnet(host: &Netlink, link: &Link, env: &SubnetEnv) -> Result<Option<IpNet>> {
    let is_in = |all: &[IpNet], net: &IpNet| all.iter().any(|one| one.contains(&net.addr()));
    let addresses = host.addresses(link)?.into_iter().map(|address| address.net);
    let mut foreign = addresses.filter(|net| is_in(&env.networks, net));
    Ok(foreign.find(|net| !is_in(&env.subnets, net)))
}

fn stale(link: &Link, other: IpNet) -> Error {
    Error::new(
        Code::TRY_AGAIN,
        format!("subnet.env is stale: link {:?} has address {}", link.name, other.addr()),
    )
    .with_details("flanneld has another subnet by now, and writes the file when it starts")
}
