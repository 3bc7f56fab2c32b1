//! Addresses of services that are the host's own. kube-proxy in IPVS mode, and kube-router, give
//! them to a link of the host, and redirect their packets where the kernel delivers them: later than
//! any rule of nat. The ACCEPT that kube-proxy's rules of nat have for these packets ends its own
//! chain, and not ours (CVE-2019-9946).
//!
//! No expression of nftables tells which link has an address, except the one that a packet arrives
//! by. So where services may have such addresses, a port at all addresses is open at those of the
//! link that the packet arrives by, and in the networks that the host was in when the port was
//! published. kube-proxy may start later, and adds and removes addresses all the time.

use ipnet::IpNet;

use crate::error::Result;
use crate::family::Family;
use crate::net::netlink::{Address, Link};
use crate::net::nft::NfFamily;
use crate::plugin::Context;

/// The links of kube-proxy and kube-router.
const LINKS: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];
/// kube-proxy's chain in iptables' table `nat`.
const CHAIN: &str = "KUBE-SERVICES";
/// The prefix of CNI_ARGS that kubelet's runtimes send: kube-proxy may start later.
const POD: &str = "K8S_POD_";

/// The host's own networks, if some of its addresses are those of services, or may become so.
pub fn own_networks(cx: &Context<'_>) -> Result<Option<Vec<IpNet>>> {
    let links = links(cx)?;
    if links.is_empty() && !may_come(cx)? {
        return Ok(None);
    }
    let is_of_services = |address: &Address| links.iter().any(|link| link.index == address.link);
    let all = cx.host()?.all_addresses()?;
    let (of_services, own) = all.into_iter().partition::<Vec<_>, _>(is_of_services);
    let mut networks: Vec<IpNet> = own.iter().map(|own| network(own.net, &of_services)).collect();
    networks.sort_unstable();
    networks.dedup();
    Ok(Some(networks))
}

/// The same if there are such links now: what is only to come is no fault of an attachment.
pub fn own_networks_now(cx: &Context<'_>) -> Result<Option<Vec<IpNet>>> {
    if links(cx)?.is_empty() { Ok(None) } else { own_networks(cx) }
}

/// The links of the host that have the addresses of services.
pub fn links(cx: &Context<'_>) -> Result<Vec<Link>> {
    let mut found = vec![];
    for name in LINKS {
        found.extend(cx.host()?.find_link(name)?);
    }
    Ok(found)
}

fn may_come(cx: &Context<'_>) -> Result<bool> {
    if cx.args.split(';').any(|arg| arg.starts_with(POD)) {
        return Ok(true);
    }
    let Some(nft) = cx.handles().nft()? else { return Ok(false) };
    Ok(nft.chain(NfFamily::Ip, "nat", CHAIN)?.is_some())
}

/// The network of an own address, in which the host may get others later; the address alone if
/// services may be in the network.
fn network(own: IpNet, of_services: &[Address]) -> IpNet {
    let shortest = match Family::of_net(own) {
        Family::V4 => 16,
        Family::V6 => 64,
    };
    let has_service = of_services.iter().any(|service| own.contains(&service.net.addr()));
    if own.prefix_len() < shortest || has_service { own.addr().into() } else { own.trunc() }
}
