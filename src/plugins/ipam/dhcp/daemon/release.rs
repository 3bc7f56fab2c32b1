//! A lease is given back, by the daemon or by a DEL that finds none.

use std::time::Duration;

use super::exchange::Exchange;
use super::flags::Flags;
use super::interface::Absent;
use super::journal::Record;
use super::table::name_of;
use crate::net::clock::since_boot;
use crate::net::random::Random;
use crate::plugins::ipam::dhcp::v4::client::{Client, Outgoing, Patience, Setup, release_of};

/// The octets of a client id behind its type.
const CLIENT_ID_MAX: usize = 254;

/// What the client of a lease is told.
pub fn setup_of(record: &Record, flags: &Flags) -> Setup {
    let name = name_of(&record.key);
    let mut client_id = vec![0]; // of no hardware
    client_id.extend(name.bytes().take(CLIENT_ID_MAX));
    Setup {
        mac: record.place.mac.clone(),
        client_id,
        broadcast: flags.broadcast || record.place.broadcast,
        probe: record.place.probe,
        provide: record.terms.provide.clone(),
        request: record.terms.request.clone(),
        patience: Patience {
            timeout: flags.timeout,
            resend_max: flags.resendmax,
            resend_timeout: flags.resendtimeout.max(Duration::from_millis(1)),
        },
    }
}

/// What gives back what the record tells of; None where nothing has been granted, or it is lost.
fn message_of(record: &Record, flags: &Flags, random: &mut Random) -> Option<Outgoing> {
    let setup = setup_of(record, flags);
    match (&record.lease, &record.intent) {
        (Some(lease), _) => Client::resume(setup, lease.clone(), record.lost, since_boot()).release(random),
        (None, Some(intent)) => Some(release_of(intent, &setup, random)),
        (None, None) => None,
    }
}

/// Gives back what the record tells of, from the container's namespace: one message, which no server answers. False where
/// nothing was to be said.
pub fn give_back(record: &Record, flags: &Flags, random: &mut Random) -> Result<bool, Absent> {
    let Some(message) = message_of(record, flags, random) else { return Ok(false) };
    let mut exchange = Exchange::open(&record.place, &flags.hostprefix)?;
    exchange.send(&message, &record.place, &flags.hostprefix)?;
    Ok(true)
}
