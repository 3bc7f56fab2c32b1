//! Addresses of services that are the host's own. kube-proxy in IPVS mode, and kube-router, give
//! them to a link of the host, and redirect their packets where the kernel delivers them: later than
//! any rule of nat. The ACCEPT that kube-proxy's rules of nat have for these packets ends its own
//! chain, and not ours (CVE-2019-9946).
//!
//! No expression of nftables tells which link has an address, except the one that a packet arrives
//! by. So where there is such a link, a port at all addresses is open at those of the link that the
//! packet arrives by, and at the others that the host had when the port was published. kube-proxy
//! adds and removes addresses all the time. A port is published like this also where kubelet runs and
//! kube-proxy, which has to come yet, may make such a link.

use ipnet::IpNet;

use crate::error::Result;
use crate::net::netlink::Link;
use crate::net::nft::NfFamily;
use crate::net::nft::batch::Table;
use crate::plugin::Context;

/// The links of kube-proxy and kube-router.
pub const LINKS: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

/// The host's own addresses, if it has some that are those of services, or may get them.
pub fn own_addresses(cx: &Context<'_>) -> Result<Option<Vec<IpNet>>> {
    let may_come = may_come(cx)?; // before the links, which come last
    let links = links(cx)?;
    if links.is_empty() && !may_come {
        return Ok(None);
    }
    let mut all = cx.host()?.all_addresses()?;
    all.retain(|address| links.iter().all(|link| link.index != address.link));
    let mut own: Vec<IpNet> = all.into_iter().map(|own| own.net.addr().into()).collect();
    own.sort_unstable();
    own.dedup();
    Ok(Some(own))
}

/// Whether kubelet runs, and no kube-proxy yet. Since Kubernetes 1.24 kubelet makes a chain before it
/// starts a container; kube-proxy makes one, or a table, in each of its modes.
fn may_come(cx: &Context<'_>) -> Result<bool> {
    const PROXY: Table = Table { family: NfFamily::Ip, name: "kube-proxy" };
    let Some(nft) = cx.handles().nft()? else { return Ok(false) };
    let has = |table, chain| nft.chain(NfFamily::Ip, table, chain).map(|found| found.is_some());
    let is_kubelet_there = has("mangle", "KUBE-IPTABLES-HINT")?;
    Ok(is_kubelet_there && !has("nat", "KUBE-SERVICES")? && !nft.has_table(PROXY)?)
}

/// The links of the host that have the addresses of services.
pub fn links(cx: &Context<'_>) -> Result<Vec<Link>> {
    let mut found = vec![];
    for name in LINKS {
        found.extend(cx.host()?.find_link(name)?);
    }
    Ok(found)
}
