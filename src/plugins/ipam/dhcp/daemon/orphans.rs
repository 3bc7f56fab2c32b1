//! DEL and GC without a daemon: the plugin itself releases the leases of a daemon that has exited,
//! and lists them.

use std::net::IpAddr;
use std::path::Path;

use super::flags::Flags;
use super::journal::{Journal, Record, file_name, forget_all_torn};
use super::release::give_back;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::{Holder, Stale};
use crate::error::{ErrorList, Result};
use crate::family::Family;
use crate::plugin::leases::Holding;
use crate::plugins::ipam::dhcp::family::Lease;
use crate::plugins::ipam::dhcp::wire::DAEMON;
use crate::service::journal::{Read, Record as _};
use crate::sys::random::Random;

/// Releases the leases of an attachment, if the daemon that used `socket` has left any.
pub fn del(socket: &Path, key: &Key) -> Result<()> {
    let Some(journal) = left_behind(socket)? else { return Ok(()) };
    let mut errors = ErrorList::default();
    for family in Family::ALL {
        errors.push(del_named(&journal, &file_name(key, family)));
    }
    errors.finish()
}

/// The journal of a daemon that has exited.
fn left_behind(socket: &Path) -> Result<Option<Journal>> {
    Journal::left_behind(&DAEMON, &DAEMON.journal_beside(socket))
}

fn del_named(journal: &Journal, name: &str) -> Result<()> {
    journal.find(name)?.iter().for_each(release);
    journal.remove(name)
}

/// Releases the leases of a network except those of valid attachments.
pub fn gc(socket: &Path, network: &NetworkName, valid: &ValidAttachments) -> Result<()> {
    let Some(journal) = left_behind(socket)? else { return Ok(()) };
    let mut errors = ErrorList::default();
    for read in journal.read_all()? {
        let Read::Record(record) = read else { continue };
        if valid.is_stale(network, &record.key) {
            errors.push(valid.remove(|| stale(&record), || release_and_remove(&journal, &record)));
        }
    }
    if !valid.is_look() {
        forget_torn_except(&journal, network, valid);
    }
    errors.finish()
}

fn forget_torn_except(journal: &Journal, network: &NetworkName, valid: &ValidAttachments) {
    let names = valid.names();
    let names = names.iter().map(|at| (at.container_id.as_str(), at.ifname.as_str()));
    forget_all_torn(journal, network, names);
}

/// The leases with an address that the daemon that used `socket` has left.
pub fn holdings(socket: &Path) -> Result<Vec<(Key, Holding)>> {
    let Some(journal) = left_behind(socket)? else { return Ok(vec![]) };
    Ok(journal.read_all()?.into_iter().filter_map(held).collect())
}

fn held(read: Read<Record>) -> Option<(Key, Holding)> {
    let Read::Record(record) = read else { return None };
    let address = record.lease.as_ref()?.address();
    Some((record.key.clone(), holding(&record.key, address, record.place.netns)))
}

/// Describes a lease for operators.
pub fn holding(key: &Key, address: IpAddr, netns_path: String) -> Holding {
    let container_id = key.container_id.to_string();
    let ifname = key.ifname.to_string();
    Holding { address, container_id, ifname, since: None, netns_path }
}

fn release_and_remove(journal: &Journal, record: &Record) -> Result<()> {
    release(record);
    journal.remove(&record.name())
}

/// Describes a lease that GC removes.
fn stale(record: &Record) -> Stale {
    let address = record.lease.as_ref().map(Lease::address);
    stale_lease(&record.key, address, record.place.netns.clone())
}

/// Describes a lease, with its address if it has one.
pub fn stale_lease(key: &Key, address: Option<IpAddr>, netns_path: String) -> Stale {
    let what = address.map_or_else(|| "lease".to_owned(), |ip| format!("lease {ip}"));
    let addresses = address.into_iter().collect();
    Stale { what, holder: Holder::of(key), addresses, netns_path, ..Stale::default() }
}

fn release(record: &Record) {
    // One message without an answer: if it cannot be sent, the server reclaims the address when the
    // lease expires.
    let _ = give_back(record, None, &Flags::default(), &mut Random::new());
}
