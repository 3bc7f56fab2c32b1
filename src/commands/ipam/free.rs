//! `ipam free`: frees an address that a container left behind, and refuses for a container that is
//! alive.

use std::net::IpAddr;

use super::Request;
use super::networks::{Host, Leased};
use super::owners::{Lease, Owners};
use crate::cni::attachment::NetworkName;
use crate::error::{Code, Error, Result};
use crate::plugin::leases::Holding;
use crate::runtime::living::Verdict;

/// Frees the address; returns what is printed.
pub fn free(host: &Host<'_>, request: &Request) -> Result<String> {
    let (Some(network), Some(address)) = (&request.network, request.address) else {
        return Err(Error::new(Code::BUG, "clap requires both"));
    };
    let (leased, held) = find(host, network, address)?;
    let owners = Owners::look(&host.cache)?;
    require_free(&owners, (network, &held), request.is_forced)?;
    if !leased.store.free(&leased.context(host), &held)? {
        return Err(Error::new(Code::CONFLICT, format!("{address} has another owner by now")));
    }
    Ok(format!("freed {address}, which {} had\n", words(&held)))
}

/// The network of this name that has a lease of the address, and the lease.
fn find(host: &Host<'_>, network: &NetworkName, address: IpAddr) -> Result<(Leased, Holding)> {
    for leased in host.leased(Some(network))? {
        let mut held = leased.holdings(host)?.held.into_iter();
        if let Some(held) = held.find(|held| held.address == address) {
            return Ok((leased, held));
        }
    }
    let msg = format!("{address} is not held in network {:?}", network.as_str());
    let advice = format!("what is held: cni-multi ipam ls {network}");
    Err(Error::new(Code::UNKNOWN_CONTAINER, msg).with_details(advice))
}

/// Refuses for an owner that is alive, and for one that may be unless this is forced.
fn require_free(owners: &Owners, lease: Lease<'_>, is_forced: bool) -> Result<()> {
    let (network, held @ Holding { container_id, ifname, .. }) = lease;
    let advice = match owners.judge(&[lease])[..] {
        _ if container_id.is_empty() => {
            "its file names no container; remove the file by hand".to_owned()
        }
        [Verdict::Gone] => return Ok(()),
        [Verdict::Unknown] if is_forced => return Ok(()),
        [Verdict::Lives] => {
            let netns = owners.record(lease).map_or("NETNS", |at| &at.netns);
            let ifname =
                if ifname.is_empty() { String::new() } else { format!(" --ifname {ifname}") };
            format!(
                "its container is alive; detach it: \
                 cni-multi net del {network} {netns} --container-id {container_id}{ifname}"
            )
        }
        _ => "nothing shows whether its container is alive; if it is gone, add --force".to_owned(),
    };
    let msg = format!("{} is not freed: {} has it", held.address, words(held));
    Err(Error::new(Code::CONFLICT, msg).with_details(advice))
}

/// The container and the interface, as far as the lease has them.
fn words(held: &Holding) -> String {
    match (held.container_id.as_str(), held.ifname.as_str()) {
        ("", _) => "an unknown container".to_owned(),
        (id, "") => format!("container {id}"),
        (id, ifname) => format!("{ifname} of container {id}"),
    }
}
