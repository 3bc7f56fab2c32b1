//! `ipam export`: the leases as a document that another machine imports.

use super::Request;
use super::document::{self, Section};
use super::networks::{Host, Leased};
use crate::error::{Code, Error, Result};

/// The document: of the named network, or of all that can be imported.
pub fn export(host: &Host<'_>, request: &Request) -> Result<String> {
    let networks = host.leased(request.network.as_ref())?;
    let (served, portable): (Vec<&Leased>, Vec<&Leased>) =
        networks.iter().partition(|leased| is_served(leased));
    if let (true, Some(leased)) = (request.network.is_some() && portable.is_empty(), served.first())
    {
        return Err(cannot_move(leased));
    }
    let sections: Result<Vec<Section>> =
        portable.into_iter().map(|leased| section(host, leased)).collect();
    Ok(document::write(&sections?).to_indented_text())
}

/// Whether the leases are granted by a server, which another machine would have to ask itself.
fn is_served(leased: &Leased) -> bool {
    leased.store.importer().is_none()
}

/// The error for leases that cannot be moved.
pub fn cannot_move(leased: &Leased) -> Error {
    let msg = format!("leases of {} belong to a server and cannot be moved", leased.ipam);
    Error::new(Code::INVALID_CONFIG, msg)
        .with_details(format_args!("network {:?}", leased.network.as_str()))
}

/// The leases that name their owner.
fn section(host: &Host<'_>, leased: &Leased) -> Result<Section> {
    let mut leases = leased.holdings(host)?.held;
    leases.retain(|held| !held.container_id.is_empty());
    Ok(Section { network: leased.network.clone(), ipam: leased.ipam.to_owned(), leases })
}
