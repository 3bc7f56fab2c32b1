//! DEL and GC without a daemon: the plugin itself releases the leases of a daemon that has exited.

use std::path::Path;

use super::flags::Flags;
use super::journal::{Journal, Record, file_name, forget_all_torn};
use super::release::give_back;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::{Holder, Stale};
use crate::error::{ErrorList, Result};
use crate::family::Family;
use crate::plugins::ipam::dhcp::family::Lease;
use crate::plugins::ipam::dhcp::wire::DAEMON;
use crate::service::journal::{Read, Record as _};
use crate::sys::random::Random;

/// Releases the leases of an attachment, if the daemon that used `socket` has left any.
pub fn del(socket: &Path, key: &Key) -> Result<()> {
    let Some(journal) = Journal::left_behind(&DAEMON, &DAEMON.journal_beside(socket))? else {
        return Ok(());
    };
    let mut errors = ErrorList::default();
    for family in Family::ALL {
        let name = file_name(key, family);
        let released = journal.find(&name).map(|record| record.iter().for_each(release));
        errors.push(released.and_then(|()| journal.remove(&name)));
    }
    errors.finish()
}

/// Releases the leases of a network except those of valid attachments.
pub fn gc(socket: &Path, network: &NetworkName, valid: &ValidAttachments) -> Result<()> {
    let Some(journal) = Journal::left_behind(&DAEMON, &DAEMON.journal_beside(socket))? else {
        return Ok(());
    };
    let mut errors = ErrorList::default();
    for read in journal.read_all()? {
        let Read::Record(record) = read else { continue };
        let key = &record.key;
        if key.network == *network
            && !valid.contains(key.container_id.as_str(), key.ifname.as_str())
        {
            errors.push(valid.remove(
                || stale(&record),
                || {
                    release(&record);
                    journal.remove(&record.name())
                },
            ));
        }
    }
    if !valid.is_look() {
        let names = valid.names();
        forget_all_torn(
            &journal,
            network,
            names.iter().map(|at| (at.container_id.as_str(), at.ifname.as_str())),
        );
    }
    errors.finish()
}

/// Describes a lease that GC removes.
fn stale(record: &Record) -> Stale {
    let address = record.lease.as_ref().map(Lease::address);
    let what = address.map_or_else(|| "lease".to_owned(), |ip| format!("lease {ip}"));
    let holder = Holder::of(&record.key);
    let netns_path = record.place.netns.clone();
    Stale { what, holder, addresses: address.into_iter().collect(), netns_path, ..Stale::default() }
}

fn release(record: &Record) {
    // One message without an answer: if it cannot be sent, the server reclaims the address when the
    // lease expires.
    let _ = give_back(record, None, &Flags::default(), &mut Random::new());
}
