//! `ipam export`: the leases as a document that another machine imports.

use super::Request;
use super::document::{self, Section};
use super::networks::{Host, Leased};
use crate::error::{Code, Error, Result};

/// The document: of the named network, or of all that can be imported.
pub fn export(host: &Host<'_>, request: &Request) -> Result<String> {
    let networks = host.leased(request.network.as_ref())?;
    // Leases that a server grants have no importer: another machine would have to ask it itself.
    let (served, portable): (Vec<&Leased>, Vec<&Leased>) =
        networks.iter().partition(|leased| leased.store.importer().is_none());
    if let (true, Some(leased)) = (request.network.is_some() && portable.is_empty(), served.first())
    {
        return Err(cannot_move(leased));
    }
    let mut sections = vec![];
    for leased in portable {
        let mut leases = leased.holdings(host)?.held;
        leases.retain(|held| !held.container_id.is_empty()); // those that name their owner
        let Leased { network, ipam, .. } = leased;
        sections.push(Section { network: network.clone(), ipam: (*ipam).to_owned(), leases });
    }
    Ok(document::write(&sections).to_indented_text())
}

/// The error for leases that cannot be moved.
pub fn cannot_move(leased: &Leased) -> Error {
    let msg = format!("leases of {} belong to a server and cannot be moved", leased.ipam);
    Error::new(Code::INVALID_CONFIG, msg)
        .with_details(format_args!("network {:?}", leased.network.as_str()))
}
