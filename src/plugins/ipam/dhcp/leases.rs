//! The leases for operators: those of the running daemon, or of the files that it has left.

use super::conf::{DEFAULT_SOCKET, socket_path};
use super::daemon::orphans;
use super::wire::{Described, Peer, Request, is_not_running};
use crate::cni::attachment::{Key, NetworkName};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::plugin::Context;
use crate::plugin::leases::{Holding, Holdings, LeaseImporter, LeaseStore};

/// The leases of the daemon.
pub struct Leases;

impl LeaseStore for Leases {
    fn holdings(&self, cx: &Context<'_>) -> Result<Holdings> {
        let of_network = |(key, _): &(Key, Holding)| key.network == cx.config.name;
        let leases = leases(&daemon(cx)?)?.into_iter().filter(of_network);
        Ok(Holdings { held: leases.map(|(_, held)| held).collect(), ranges: vec![] })
    }

    fn networks(&self) -> Result<Vec<NetworkName>> {
        let daemon = Peer { socket: DEFAULT_SOCKET.into(), deadline: Deadline::default() };
        Ok(leases(&daemon)?.into_iter().map(|(key, _)| key.network).collect())
    }

    fn shares_place_of(&self) -> Option<&'static str> {
        None
    }

    fn free(&self, cx: &Context<'_>, held: &Holding) -> Result<bool> {
        let network = cx.config.name.as_str();
        let family = if held.address.is_ipv6() { "/6" } else { "" };
        let key = format!("{}/{network}/{}{family}", held.container_id, held.ifname);
        daemon(cx)?.ask::<()>(&Request::Release(key)).map(|()| true)
    }

    fn importer(&self) -> Option<&dyn LeaseImporter> {
        None
    }
}

/// The daemon of the configuration.
fn daemon(cx: &Context<'_>) -> Result<Peer> {
    Ok(Peer { socket: socket_path(cx.config)?, deadline: cx.deadline() })
}

/// Every lease that has an address.
fn leases(daemon: &Peer) -> Result<Vec<(Key, Holding)>> {
    match daemon.ask::<Vec<Described>>(&Request::Leases) {
        Err(error) if is_not_running(&error) => orphans::holdings(&daemon.socket),
        leases => Ok(leases?.into_iter().filter_map(holding_of).collect()),
    }
}

fn holding_of(lease: Described) -> Option<(Key, Holding)> {
    let (key, address) = (lease.attachment()?, lease.net()?.addr());
    let held = orphans::holding(&key, address, lease.namespace);
    Some((key, held))
}
