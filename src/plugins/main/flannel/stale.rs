//! Notices a subnet.env of before: flanneld gives its own link the address of the node's subnet.

use ipnet::IpNet;

use super::subnet_env::SubnetEnv;
use crate::error::{Code, Error, Result};
use crate::net::netlink::{Link, Netlink};

/// Fails if a link of flanneld has an address of the network that is in none of the node's subnets.
/// Backends without a link, such as host-gw, show nothing.
pub fn refuse(host: &Netlink, env: &SubnetEnv) -> Result<()> {
    for link in host.links()?.iter().filter(|link| link.name.starts_with("flannel")) {
        if let Some(other) = other_subnet(host, link, env)? {
            return Err(stale(link, other));
        }
    }
    Ok(())
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
