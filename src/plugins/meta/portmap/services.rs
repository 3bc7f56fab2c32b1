//! Addresses of services that are the host's own. kube-proxy in IPVS mode, and kube-router, give
//! them to a link of the host, and redirect their packets where the kernel delivers them: later than
//! any rule of nat. The ACCEPT that kube-proxy's rules of nat have for these packets ends its own
//! chain, and not ours (CVE-2019-9946).
//!
//! No expression of nftables tells which link has an address, except the one that a packet arrives
//! by. So where there is such a link, a port at all addresses is open at those of the link that the
//! packet arrives by, and at the others that the host had when the port was published. kube-proxy
//! adds and removes addresses all the time.

use ipnet::IpNet;

use crate::error::Result;
use crate::net::netlink::Link;
use crate::plugin::Context;

/// The links of kube-proxy and kube-router.
const LINKS: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

/// The host's own addresses, if it has some that are those of services.
pub fn own_addresses(cx: &Context<'_>) -> Result<Option<Vec<IpNet>>> {
    let links = links(cx)?;
    if links.is_empty() {
        return Ok(None);
    }
    let mut all = cx.host()?.all_addresses()?;
    all.retain(|address| links.iter().all(|link| link.index != address.link));
    let mut own: Vec<IpNet> = all.into_iter().map(|own| own.net.addr().into()).collect();
    own.sort_unstable();
    own.dedup();
    Ok(Some(own))
}

/// The links of the host that have the addresses of services.
pub fn links(cx: &Context<'_>) -> Result<Vec<Link>> {
    let mut found = vec![];
    for name in LINKS {
        found.extend(cx.host()?.find_link(name)?);
    }
    Ok(found)
}
