//! Leases whose daemon does not run: DEL and GC give them back themselves.

use std::path::Path;

use super::flags::Flags;
use super::journal::{Journal, Read, Record};
use super::release::give_back;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::error::{ErrorList, Result};
use crate::net::random::Random;
use crate::plugins::ipam::dhcp::family::Family;

/// Gives the leases of an attachment back, if the daemon that listened at `socket` has left any.
pub fn del(socket: &Path, key: &Key) -> Result<()> {
    let Some(journal) = Journal::left_behind(&Journal::beside(socket))? else { return Ok(()) };
    let mut errors = ErrorList::default();
    for family in Family::ALL {
        if let Some(record) = journal.find(key, family) {
            release(&record);
        }
        errors.push(journal.remove(key, family));
    }
    errors.finish()
}

/// Gives the leases of a network back but for those of valid attachments.
pub fn gc(socket: &Path, network: &NetworkName, valid: &ValidAttachments) -> Result<()> {
    let Some(journal) = Journal::left_behind(&Journal::beside(socket))? else { return Ok(()) };
    let mut errors = ErrorList::default();
    for read in journal.read_all()? {
        let Read::Record(record) = read else { continue };
        let key = &record.key;
        if key.network == *network && !valid.contains(key.container_id.as_str(), key.ifname.as_str()) {
            release(&record);
            errors.push(journal.remove(key, record.family()));
        }
    }
    journal.forget_all_torn(network, valid.iter().map(|valid| (valid.container_id.as_str(), valid.ifname.as_str())));
    errors.finish()
}

fn release(record: &Record) {
    // One message that nobody answers: where it cannot be sent, the server takes the address back at the end of the lease.
    let _ = give_back(record, None, &Flags::default(), &mut Random::new());
}
